"""Summaries: how they are asked for, when one is believed, and how it stands in the history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from proxy.history.constraints import constraints
from proxy.history.identifiers import identifiers
from proxy.history.marks import (
    CLOSE,
    FENCE,
    FENCE_END,
    NAMES,
    OPEN,
    defanged,
    is_instruction,
    is_summary,
    told_rules,
)
from proxy.history.tooltext import calls_in, own_words, results_in, spoken, texts_of, without
from proxy.history.turns import calls_of, is_result, is_user
from proxy.neutral.request import Message, text_of

BRIDGE = "Go on with the task from where the summary ends."
NOTED = "Noted."

_SECTIONS = (
    "Goal and constraints (word for word where the user set them); decisions and their reasons; "
    "state of the work; files and identifiers; errors and how they were fixed; open items and next step"
)
_INSTRUCTION = (
    "Summarise the conversation {what} so that it can be continued without the original messages. "
    "Sections: {sections}. Keep names, numbers, paths and exact values. Where something was corrected, keep only "
    "the correction. Write plain text of at most {words} words, nothing before or after it, and call no tools."
)
_WISHED = (
    "This is about the conversation {what}. Write plain text of at most {words} words, nothing before or after it, and "
    "call no tools."
)
_REFUSAL = re.compile(
    r"^\W*(?:i['\u2019]?m sorry|i am sorry|sorry|i cannot|i can['\u2019]?t|as an ai)\b", re.IGNORECASE
)
_FENCES = re.compile(
    "|".join(r"\s{1,4}".join(map(re.escape, mark.split())) for mark in (FENCE, FENCE_END)), re.IGNORECASE
)
_LABEL = re.compile(r"^(?=(?:USER|ASSISTANT|TOOL|FUNCTION|SYSTEM|DEVELOPER):)", re.MULTILINE)
"""Where a line of somebody's text reads as if another spoke from there on."""
_SHORTEST = 24
_UNBOUNDED = 10**9
_ENTRIES = (4_000, 1_500, 500)
"""Characters that transcripts keep of a message."""
_LINE, _LINE_READ = 200, 2_000


def instruction(*, tokens: int, what: str = "so far", wish: str = "") -> str:
    """The request for a summary of at most so many tokens (three quarters of a word each), in a client's own words if it has a `wish`."""
    words = max(40, tokens * 3 // 5)
    if wish:
        return f"{wish}\n\n{_WISHED.format(what=what, words=words)}"
    return _INSTRUCTION.format(what=what, sections=_SECTIONS, words=words)


def acceptable(text: str) -> bool:
    """Whether a reply says something: not empty, not a refusal, not the instruction repeated."""
    # A model that writes its calls as text may write one here too.
    stripped = _without_calls(text).strip()
    if len(stripped) < _SHORTEST or stripped.startswith("Summarise the conversation"):
        return False
    return not (len(stripped) < 300 and _REFUSAL.match(stripped))


def block(text: str, covered: Sequence[Message], *, limit: int) -> str:
    """A summary as it stands in the history: marked, with the user's rules and identifiers appended by code.

    `limit` bounds each of the two, in characters. The rules are told whether or not the summary has them: the next one
    takes them from there.
    """
    text = plain(text)
    names = [n for n in identifiers(map(_all_text, covered), limit=limit) if n not in text]
    listed = f"\n{NAMES}{defanged(', '.join(names))}" if names else ""
    return f"{OPEN}\n{text}{told_rules(constraints(covered, limit=limit))}{listed}\n{CLOSE}"


def plain(text: str) -> str:
    """What a model wrote, without calls and marks: it closes no block that it is put into, and opens none."""
    return defanged(_without_calls(text)).strip()


def _without_calls(text: str) -> str:
    # A space for each, so that what was around it makes no new one.
    return without(text, [call.span for call in calls_in(text)], left=" ")


def is_bridge(messages: Sequence[Message], at: int) -> bool:
    """Whether the message there is the user turn that Spillway puts behind a summary."""
    return 0 < at < len(messages) and messages[at].get("content") == BRIDGE and is_summary(messages[at - 1])


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as plain text for a summariser; tool calls and results look the same in either form."""
    return next(iter(transcripts(messages)))


def transcripts(messages: Sequence[Message]) -> Iterator[str]:
    """Transcripts of the same conversation, each much shorter than the one before it: less is kept of long messages.

    What the user says itself, and earlier summaries, are kept as in the first one.
    """
    told = [(_speaker(m), _all_text(m), _most(m)) for m in messages]
    length = 0
    for entry in _ENTRIES:
        text = "\n\n".join(
            f"{speaker}: {unlabelled(_entry(said, most or entry))}" for speaker, said, most in told
        )
        if not length or len(text) < 0.9 * length:
            length = len(text)
            yield text
        if all(most or len(said) <= _ENTRIES[-1] for _, said, most in told):
            return


def unlabelled(text: str) -> str:
    """Somebody's words without a line in them that reads as if another spoke."""
    return _LABEL.sub("> ", text)


def fenced(text: str, *, tokens: int, before: str = "", wish: str = "") -> Message:
    """A user message that asks for a summary of a text, going on from an earlier summary if there is one.

    The fence cannot be closed from inside.
    """
    text, before = _unfenced(text), unlabelled(_unfenced(before))
    known = f"Summary of what came before:\n{before}\n\n" if before else ""
    what = "between the marks, together with the summary before it," if before else "between the marks"
    ask = instruction(tokens=tokens, what=what, wish=wish)
    return {"role": "user", "content": f"{known}{FENCE}\n{text}\n{FENCE_END}\n\n{ask}"}


def digest(messages: Sequence[Message], *, limit: int) -> str:
    """A summary made without a model, of at most about `limit` characters.

    The beginning of an earlier summary, the user's requests, the assistant's last statements and the tools called, newest
    first in priority.
    """
    earlier = "\n".join(text_of(m) for m in messages if is_summary(m))
    earlier = defanged(earlier.replace(f"{OPEN}\n", "").replace(f"\n{CLOSE}", ""))[: limit // 4]
    share, newest = (limit - len(earlier)) // 3, [m for m in reversed(messages) if not is_summary(m)]
    asked = _newest((_line(own_words(m)) for m in newest if is_user(m)), share)
    said = _newest((_line(_said(m)) for m in newest if m.get("role") == "assistant"), share)
    called = _newest((_line(call) for m in newest for call in reversed(_calls(m))), share)
    parts = (
        ("Before that:", [earlier] if earlier else []),
        ("The user asked:", asked),
        ("The assistant said:", said),
        ("Tools called:", called),
    )
    return "\n".join(f"{title}\n" + "\n".join(lines) for title, lines in parts if lines)


def _newest(texts: Iterable[str], room: int) -> list[str]:
    """Lines for the first of these, the newest, that there is room for; the oldest of them first."""
    kept: list[str] = []
    for line in (f"- {text}" for text in texts if text):
        if len(line) + 1 > room:
            return kept[::-1] or [line[: max(0, room - 1)]]
        room -= len(line) + 1
        kept.append(line)
    return kept[::-1]


def _line(text: str) -> str:
    """One line of it: what is said or called must not read like lines of its own."""
    return " ".join(text[:_LINE_READ].split())[:_LINE]


def _calls(message: Message) -> list[str]:
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


def _entry(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}\n[…]\n{text[-most // 2 :]}"


def _unfenced(text: str) -> str:
    # Round brackets, because the rest of nested marks must not make a new one.
    return _FENCES.sub(lambda mark: f"({mark.group().strip('<>')})", text)


def _all_text(message: Message) -> str:
    return "\n".join(part for part in (_said(message), *_calls(message)) if part)


def _said(message: Message) -> str:
    """The text without what stands for calls, and of messages that are nothing but results without their marks."""
    if message.get("role") == "assistant":
        return spoken(message).strip("\n")
    if message.get("role") == "user" and is_result(message):
        inside = ((text, result.inside) for _, text in texts_of(message) for result in results_in(text))
        return "\n".join(text[start:end] for text, (start, end) in inside)
    return text_of(message)


def _speaker(message: Message) -> str:
    if message.get("role") == "user" and (is_result(message) or is_instruction(message)):
        return "TOOL" if is_result(message) else "SYSTEM"
    return str(message.get("role")).upper()
