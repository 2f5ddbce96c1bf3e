"""Chunks under another identity, and chunks of a later attempt as part of the first one's answer."""

from __future__ import annotations

from typing import Any

from proxy.answer.answer import REASONING_FIELDS, Identity, first_choice
from proxy.answer.privileged import unprivileged

_TEXT_FIELDS = ("content", *REASONING_FIELDS)
_THOUGHT_FIELDS = (*REASONING_FIELDS, "reasoning_details")


def renamed(chunk: dict[str, Any], identity: Identity, *, role_said: bool) -> dict[str, Any]:
    """The chunk under an identity; the first choice's role is left out where it was said already."""
    if "choices" not in chunk:
        return chunk
    if role_said and isinstance(chunk["choices"], list):
        chunk = {**chunk, "choices": list(map(_without_role, chunk["choices"]))}
    return identity.stamp(chunk)


def _without_role(choice: Any) -> Any:
    if not isinstance(choice, dict) or choice.get("index") or not isinstance(choice.get("delta"), dict):
        return choice
    return {**choice, "delta": {name: value for name, value in choice["delta"].items() if name != "role"}}


def part_of(chunk: dict[str, Any], identity: Identity, *, role_said: bool) -> dict[str, Any] | None:
    """What the first choice of a chunk says, without finish reason and usage; None if it says nothing."""
    choice = first_choice(chunk)
    said = _said(choice)
    if role_said:
        said.pop("role", None)
    if choice is None or not said:
        return None
    part = {**unprivileged(chunk), "choices": [{**choice, "delta": said, "finish_reason": None}]}
    for count in ("usage", "timings"):
        part.pop(count, None)
    return identity.stamp(part)


def text_alone(chunk: dict[str, Any], *, role_said: bool) -> tuple[str, str] | None:
    """Field and text of a chunk that says one piece of text and nothing new beside it; None for others."""
    choices = chunk.get("choices")
    choice = first_choice(chunk)
    if choice is None or len(choices or ()) != 1 or choice.get("finish_reason") or chunk.get("usage"):
        return None
    said = _said(choice)
    if role_said:
        said.pop("role", None)
    if len(said) != 1:
        return None
    name, text = next(iter(said.items()))
    return (name, text) if name in _TEXT_FIELDS and isinstance(text, str) else None


def with_content(chunk: dict[str, Any], content: str) -> dict[str, Any]:
    """The chunk with another text in its first choice, which must have one."""
    first, *others = chunk["choices"]
    return {**chunk, "choices": [{**first, "delta": {**first["delta"], "content": content}}, *others]}


def with_thought(chunk: dict[str, Any], thought: str | None) -> dict[str, Any]:
    """The chunk with another reasoning in its first choice, which must have some; None: without any."""
    first, *others = chunk["choices"]
    kept = {name: value for name, value in first["delta"].items() if name not in _THOUGHT_FIELDS}
    said = {name: thought for name in REASONING_FIELDS if name in first["delta"]}
    delta = kept if thought is None else {**kept, **said}
    return {**chunk, "choices": [{**first, "delta": delta}, *others]}


def content_of(chunk: dict[str, Any]) -> str:
    """The text of the first choice; empty if it has none."""
    return _text(chunk, "content")


def thought_of(chunk: dict[str, Any]) -> str:
    """The reasoning of the first choice; empty if it has none."""
    return next((text for name in REASONING_FIELDS if (text := _text(chunk, name))), "")


def calls_of(chunk: dict[str, Any]) -> bool:
    """Whether the first choice has something of a tool call."""
    delta = _delta(chunk)
    return bool(delta.get("tool_calls") or delta.get("function_call"))


def _text(chunk: dict[str, Any], name: str) -> str:
    value = _delta(chunk).get(name)
    return value if isinstance(value, str) else ""


def _delta(chunk: dict[str, Any]) -> dict[str, Any]:
    choice = first_choice(chunk)
    delta = choice.get("delta") if choice is not None else None
    return delta if isinstance(delta, dict) else {}


def _said(choice: dict[str, Any] | None) -> dict[str, Any]:
    delta = choice.get("delta") if choice is not None else None
    if not isinstance(delta, dict):
        return {}
    return {name: value for name, value in delta.items() if value not in (None, "", [])}
