"""Fields of an answer besides its text and calls: stored when it ends, and put back if a client left them out.

Reasoning models need the reasoning of a tool loop back unchanged, and some servers refuse a history without it (DeepSeek,
Moonshot, Gemini: docs/agents.md). Most clients send back text and calls only. An answer is recognised by the history before it
and by the part that every client sends back: its text without reasoning and outer white space, and its calls by name and parsed
arguments. Ids of calls do not count, because some dialects have none (Ollama) and clients may set their own.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from operator import is_not
from typing import Any

from proxy.backends.profile import TEMPLATE_RULES, RepairRules, TemplateRule
from proxy.core.history.turns import calls_of
from proxy.core.jsontext import JsonObject, dig, dumps, loads_or_none, omit
from proxy.core.piece import Piece
from proxy.core.request import REASONING, THOUGHT_FIELDS, Message, text_of
from proxy.stream.thinking import behind_thoughts

_SIGNATURE = ("extra_content", "google", "thought_signature")
_UNSIGNED = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
_STANDARD = frozenset({"role", "content", "tool_calls", "refusal", "audio", "annotations", "function_call", "name"})
"""Fields of an assistant message that clients know (OpenAI API reference, "Create chat completion", 2026)."""


def answer_digest(message: Message) -> str:
    """Compute the digest of the part of an answer that every client sends back, 32 hexadecimal digits."""
    text = behind_thoughts(text_of(message)).strip()
    calls = [[dig(call, "function", "name"), _parsed(dig(call, "function", "arguments"))] for call in calls_of(message)]
    return blake2b(dumps([text, calls]), digest_size=16).hexdigest()


def _parsed(arguments: Any) -> Any:
    value = loads_or_none(arguments) if isinstance(arguments, str) else arguments
    return arguments if value is None else value


def dropped_fields(answer: Piece) -> JsonObject:
    """Return the parts of a complete answer that a client may drop; empty if there are none.

    `fields` are the message's by name, `calls` are those of each of its calls, and `thought` is tagged reasoning at the
    beginning of its text.
    """
    rest = behind_thoughts(answer.text)
    found = {
        "fields": omit(answer.extras, *_STANDARD),
        "calls": [dict(call.extras) for call in answer.calls] if any(call.extras for call in answer.calls) else [],
        "thought": answer.text[: len(answer.text) - len(rest)] if rest.strip() or answer.calls else "",
    }
    return {name: value for name, value in found.items() if value}


def _is_blank(value: Any) -> bool:
    """Return whether a value is empty or blank: some clients send a space in place of missing reasoning."""
    return not (value.strip() if isinstance(value, str) else value)


def completed(message: Message, dropped: Mapping[str, Any]) -> Message:
    """Return a message with the fields that it lacks; the same object if it lacks none.

    The client's values win: if it sent a different reasoning, in either field, the server's is not put back.
    """
    fields, thought = dict(dropped.get("fields", {})), dropped.get("thought", "")
    own = next((value for name in THOUGHT_FIELDS if not _is_blank(value := message.get(name))), None)
    if own is not None and str(own).strip() not in [str(fields.get(name)).strip() for name in THOUGHT_FIELDS]:
        fields = omit(fields, *THOUGHT_FIELDS)
    lacking = {name: value for name, value in fields.items() if _is_blank(message.get(name))}
    text = text_of(message)
    if thought and own is None and behind_thoughts(text) == text and not isinstance(message.get("content"), list):
        lacking["content"] = thought + text
    calls = [{**extras, **call} for call, extras in zip(calls_of(message), dropped.get("calls", ()), strict=False)]
    if any(map(dict.__ne__, calls, calls_of(message))):
        lacking["tool_calls"] = calls
    return {**message, **lacking} if lacking else message


# -- what servers demand all the same


def meeting(messages: list[Message], rules: RepairRules) -> list[Message]:
    """Return the messages with placeholders for unknown fields that a server demands, and without fields that it refuses.

    DeepSeek and Moonshot accept an empty reasoning with any answer, under their own field name only; Gemini accepts the signature
    that its documentation gives for other models' calls ("Thought signatures", 2026). The same object if nothing changes.
    """
    done = [_with_demanded(message, rules) if message.get("role") == "assistant" else message for message in messages]
    return done if any(map(is_not, done, messages)) else messages


def lacking(messages: list[Message], rules: RepairRules) -> list[TemplateRule]:
    """Return the demands, other than those of `rules`, that messages meeting `rules` do not meet."""
    unmet = [each for each in TEMPLATE_RULES if not getattr(rules, each)]
    return [each for each in unmet if meeting(messages, replace(rules, **{each: True})) is not messages]


def _with_demanded(message: Message, rules: RepairRules) -> Message:
    calls = calls_of(message)
    if rules.no_extras and not message.keys().isdisjoint(REASONING):
        message = omit(message, *REASONING)
    elif rules.thoughts and not isinstance(message.get(THOUGHT_FIELDS[0]), str):
        message = {**message, THOUGHT_FIELDS[0]: next(filter(None, map(message.get, THOUGHT_FIELDS)), "")}
    if rules.signatures and calls and dig(calls[0], *_SIGNATURE) is None:
        message = {**message, "tool_calls": [{**calls[0], **_UNSIGNED}, *calls[1:]]}
    return message
