"""What an answer holds besides its text and its calls: remembered when it ends, and put back where a client left it out.

Reasoning models want the reasoning of a tool loop back as they gave it, and some servers refuse a history without it (DeepSeek,
Moonshot, Gemini: docs/agents.md). Most clients return text and calls only. An answer is recognised by the history before it and by
what every client returns: its text without thoughts and outer white space, and its calls by name and parsed arguments. Ids of calls
are no part of that, because some dialects have none (Ollama) and clients may give their own.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from proxy.core.history.turns import calls_of
from proxy.core.jsontext import JsonObject, dig, dumps, loads_or_none, omit
from proxy.core.piece import Piece
from proxy.core.request import THOUGHT_FIELDS, Message, text_of
from proxy.stream.thinking import behind_thoughts

_STANDARD = frozenset({"role", "content", "tool_calls", "refusal", "audio", "annotations", "function_call", "name"})
"""Fields of an assistant message that clients know (OpenAI API reference, "Create chat completion", 2026)."""


def answer_digest(message: Message) -> str:
    """Digest of what every client returns of an answer, 32 hexadecimal digits."""
    said = behind_thoughts(text_of(message)).strip()
    calls = [[dig(call, "function", "name"), _parsed(dig(call, "function", "arguments"))] for call in calls_of(message)]
    return blake2b(dumps([said, calls]), digest_size=16).hexdigest()


def _parsed(arguments: Any) -> Any:
    value = loads_or_none(arguments) if isinstance(arguments, str) else arguments
    return arguments if value is None else value


def dropped_fields(answer: Piece) -> JsonObject:
    """Return what a client may drop of a whole answer; empty if there is nothing of that kind.

    `fields` are those of the message by name, `calls` those of each of its calls, and `thought` is the reasoning that its text
    begins with, between tags.
    """
    rest = behind_thoughts(answer.text)
    found = {
        "fields": omit(answer.extras, *_STANDARD),
        "calls": [dict(call.extras) for call in answer.calls] if any(call.extras for call in answer.calls) else [],
        "thought": answer.text[: len(answer.text) - len(rest)] if rest.strip() or answer.calls else "",
    }
    return {name: value for name, value in found.items() if value}


def completed(message: Message, dropped: Mapping[str, Any]) -> Message:
    """Return a message with the fields that it lacks; the same object if it lacks none.

    What the client sent wins: another reasoning than the server's, in whichever field, keeps the server's out.
    """
    fields, thought = dict(dropped.get("fields", {})), dropped.get("thought", "")
    own = next(filter(None, map(message.get, THOUGHT_FIELDS)), None)
    if own is not None and str(own).strip() not in [str(fields.get(name)).strip() for name in THOUGHT_FIELDS]:
        fields = omit(fields, *THOUGHT_FIELDS)
    lacking = {name: value for name, value in fields.items() if not message.get(name)}
    text = text_of(message)
    if thought and own is None and behind_thoughts(text) == text and not isinstance(message.get("content"), list):
        lacking["content"] = thought + text
    calls = [{**extras, **call} for call, extras in zip(calls_of(message), dropped.get("calls", ()), strict=False)]
    if any(map(dict.__ne__, calls, calls_of(message))):
        lacking["tool_calls"] = calls
    return {**message, **lacking} if lacking else message
