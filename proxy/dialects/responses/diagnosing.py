"""Why the backend's cache of a prompt can't have helped: `prompt_cache_diagnostics`, by comparing with an earlier response.

Fields: OpenAI API reference, "Create a model response", and PyPI `openai` 3.54.0, `types/responses/response.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.dialects.bodies import text_in
from proxy.neutral.managing import fingerprint, in_common, short_digest
from proxy.neutral.request import Message
from proxy.wire.jsontext import dumps

DIAGNOSIS = "prompt_cache_diagnostics"
_REASONS = {
    "model_changed": ("model",),
    "prompt_cache_key_changed": ("prompt_cache_key",),
    "tools_changed": ("tools",),
    "text_format_changed": ("text", "format"),
    "reasoning_effort_changed": ("reasoning", "effort"),
    "verbosity_changed": ("text", "verbosity"),
    "service_tier_changed": ("service_tier",),
}
"""By the field of the request that differs, in the order in which they are looked at."""


def compared_with(asked: Mapping[str, Any]) -> str:
    """The id of the response that the client wants a request compared with; empty: of none."""
    options = asked.get("prompt_cache_options")
    return text_in(options, "comparison_response_id") if isinstance(options, dict) else ""


def is_prewarming(asked: Mapping[str, Any]) -> bool:
    """Whether the client wants its prompt to be read, and no answer."""
    options = asked.get("prompt_cache_options")
    return isinstance(options, dict) and options.get("prewarm") is True


def print_of(asked: Mapping[str, Any], messages: Sequence[Message], *, compacted: bool) -> dict[str, Any]:
    """What a request is known by later: digests of its options and messages, and whether these begin with a compaction."""
    options = {reason: short_digest(_at(asked, path)) for reason, path in _REASONS.items()}
    return {"options": options, "messages": list(map(fingerprint, messages)), "compacted": compacted}


def diagnosis(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], messages: Sequence[Message]
) -> dict[str, Any]:
    """Why a prompt does not go on from the one before; `share` is how much of it is new to a cache of that."""
    if before is None:
        return {"type": "comparison_response_not_found"}
    options, links = before["options"], before["messages"]
    common = in_common(links, now["messages"])
    changed = next((reason for reason in _REASONS if options.get(reason) != now["options"][reason]), None)
    if changed is None and common == len(links):
        return {"type": "cache_hit"}
    if changed is None:
        changed = "context_compacted" if now["compacted"] and not before["compacted"] else "input_changed"
    sizes = [len(dumps(message)) for message in messages]
    reusable = 0 if changed in ("model_changed", "tools_changed") else sum(sizes[:common])
    return {"type": "cache_miss", "reason": changed, "share": 1 - reusable / max(1, sum(sizes))}


def told(found: Mapping[str, Any], prompt_tokens: int) -> dict[str, Any]:
    """A diagnosis as the client gets it, with the tokens of a prompt of so many."""
    if "share" not in found:
        return dict(found)
    missed = round(found["share"] * prompt_tokens)
    counted = {"cache_missed_tokens": missed, "comparison_reusable_tokens": prompt_tokens - missed}
    return {"type": found["type"], "reason": found["reason"], **counted}


def _at(asked: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = asked
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
