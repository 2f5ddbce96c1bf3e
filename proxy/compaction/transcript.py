"""A conversation as plain text, as a summariser reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from proxy.compaction.middles import cut_text
from proxy.core.history.embedded import calls_in, results_in, texts_of, without
from proxy.core.history.marks import is_instruction, is_summary
from proxy.core.history.turns import calls_of, is_result, is_user
from proxy.core.request import Message, text_of

_ENTRIES = (4_000, 1_500, 500)
"""Characters that transcripts keep of a message."""
_UNBOUNDED = 10**9
_LABEL = re.compile(r"^(?=(?:USER|ASSISTANT|TOOL|FUNCTION|SYSTEM|DEVELOPER):)", re.MULTILINE)
"""Where a line of somebody's text reads as if another spoke from there on."""


def transcripts(messages: Sequence[Message]) -> Iterator[str]:
    """Transcripts of the same conversation, each much shorter than the one before it: less is kept of long messages.

    Tool calls and results look the same in either form. What the user says itself, and earlier summaries, are kept as in
    the first one.
    """
    entries = [(_speaker(m), all_text(m), _most(m)) for m in messages]
    length = 0
    for entry in _ENTRIES:
        text = "\n\n".join(f"{speaker}: {unlabelled(_entry(words, most, entry))}" for speaker, words, most in entries)
        if not length or len(text) < 0.9 * length:
            length = len(text)
            yield text
        if all(most or len(words) <= _ENTRIES[-1] for _, words, most in entries):
            return


def unlabelled(text: str) -> str:
    """Somebody's words without a line in them that reads as if another spoke."""
    return _LABEL.sub("> ", text)


def call_lines(message: Message) -> list[str]:
    """The calls of a message, a line each."""
    functions = [call.get("function") for call in calls_of(message)]
    called = [(f.get("name"), f.get("arguments")) for f in functions if isinstance(f, dict)]
    if message.get("role") == "assistant":
        called += ((call.name, call.arguments) for _, text in texts_of(message) for call in calls_in(text))
    return [f"{name}({str(arguments)[:120]})" for name, arguments in called]


def _most(message: Message) -> int | None:
    """The characters that are kept of a message in any transcript; None: it may lose more."""
    if is_summary(message):
        return _UNBOUNDED
    return _ENTRIES[0] if is_user(message) else None


def _entry(text: str, users: int | None, most: int) -> str:
    if users is not None:
        return cut_text(text, users)
    return text if len(text) <= most else f"{text[: most // 2]}\n[…]\n{text[-most // 2 :]}"


def all_text(message: Message) -> str:
    """Text of a message, and the calls that it makes."""
    return "\n".join(part for part in (text_without_calls(message), *call_lines(message)) if part)


def text_without_calls(message: Message) -> str:
    """The text without what stands for calls, and of messages that are nothing but results without their marks."""
    if message.get("role") == "assistant":
        texts = (without(text, [call.span for call in calls_in(text)]) for _, text in texts_of(message))
        return "\n".join(texts).strip("\n")
    if message.get("role") == "user" and is_result(message):
        inside = ((text, result.inside) for _, text in texts_of(message) for result in results_in(text))
        return "\n".join(text[start:end] for text, (start, end) in inside)
    return text_of(message)


def _speaker(message: Message) -> str:
    if message.get("role") == "user" and (is_result(message) or is_instruction(message)):
        return "TOOL" if is_result(message) else "SYSTEM"
    return str(message.get("role")).upper()
