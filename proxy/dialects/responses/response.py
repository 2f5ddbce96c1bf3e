"""The response object, with every field that the SDKs of OpenAI, Vercel and others ask for.

Fields: OpenAI API reference, "The response object" (2026), and PyPI `openai` 3.54.0, `types/responses/response.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.core.piece import whole_number
from proxy.dialects.responses.stored import is_stored

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, with what it says where that said nothing."""

_FUNCTION = dict.fromkeys(("description", "parameters", "strict"))


def response_of(form: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """The object: what `fields` says of it, by its own names, and what it repeats of the request's body."""
    echoed = {name: default if form.get(name) is None else form[name] for name, default in _ECHOED.items()}
    if isinstance(echoed["tools"], list):
        echoed["tools"] = list(map(_tool, echoed["tools"]))
    return {
        "object": "response",
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "output": [],
        **echoed,
        "service_tier": "default",
        "store": is_stored(form),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "usage": None,
        **fields,
    }


def _tool(tool: Any) -> Any:
    """A tool as it is told again: a function with all its fields."""
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return {**_FUNCTION, **tool} if is_function else tool


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Usage by the names that it has here."""
    prompt, completion = (whole_number(usage.get("prompt_tokens")), whole_number(usage.get("completion_tokens")))
    counts: dict[str, Any] = {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": _detail(usage, "prompt_tokens_details", "cached_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": _detail(usage, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": prompt + completion,
    }
    return {**counts, "spillway": usage["spillway"]} if "spillway" in usage else counts


def _detail(usage: Mapping[str, Any], of: str, name: str) -> int:
    details = usage.get(of)
    return whole_number(details.get(name)) if isinstance(details, dict) else 0
