"""Bodies of Messages requests, read into the neutral form.

Fields: Anthropic API reference, "Create a Message" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.request import Request, Thinking, effort_in
from proxy.dialects.bodies import is_count, model_in, object_in, pick, request_of, text_in
from proxy.dialects.messages.conversation import ContentBlock, messages_of, system_of
from proxy.dialects.messages.managing import compaction_in, edits_in, since_compaction, unknown_edits
from proxy.dialects.messages.tools import is_answered, offered_in, tools_in

_SAME = ("temperature", "top_p", "top_k")
"""Options that chat completions has by the same name (`top_k`: llama.cpp, vLLM, Ollama, LM Studio, OpenRouter)."""
_UNMET = ("container", "fallbacks", "diagnostics")
"""Options for which there is nothing behind chat completions."""


def read(raw: bytes, *, bounded: bool = True) -> Request:
    """Read a request body. `bounded`: it has to bound its answer, as all have that want one.

    Raises:
        BadRequest: it is malformed, or asks for what only Anthropic's servers can do.
    """
    form = object_in(raw)
    if not isinstance(form.get("messages"), list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    if form.get("thread") is not None:
        raise BadRequest(
            "`thread` asks for a conversation that Anthropic's servers keep; this proxy keeps none: send all of it in "
            "`messages` with every request, without `thread`.",
            param="thread",
        )
    body: dict[str, Any] = {"model": model_in(form), **pick(form, _SAME)}
    compaction, messages = since_compaction(form["messages"])
    body["messages"] = [*system_of(form.get("system")), *messages_of(messages)]
    bound = form.get("max_tokens")
    if bounded and not (is_count(bound) or _is_nothing(bound)):
        raise BadRequest(
            "`max_tokens` must be a positive number of tokens, or 0 to have the prompt read alone.", param="max_tokens"
        )
    if stops := form.get("stop_sequences"):
        body["stop"] = stops
    tools = offered_in(form)
    body |= tools_in(form, tools)
    return request_of(
        body,
        stream=form.get("stream") is True,
        # One token is the least that every backend generates.
        bound=1 if _is_nothing(bound) else bound,
        structure=_format(form),
        continues=bool(messages) and messages[-1].get("role") == "assistant",
        edits=edits_in(form),
        compaction=compaction_in(form),
        sealed_compaction=compaction,
        thinking=_thinking(form),
        unsupported=_unsupported(form, tools),
        form=form,
    )


def _is_nothing(bound: Any) -> bool:
    return bound == 0 and not isinstance(bound, bool)


# -- options


def _unsupported(form: Mapping[str, Any], tools: Sequence[ContentBlock]) -> tuple[str, ...]:
    """Names of features that nobody here has, and that the client can do without."""
    kinds = [text_in(tool, "type") for tool in tools if is_answered(tool)]
    config = form.get("output_config")
    budget = ["task_budget"] if isinstance(config, dict) and config.get("task_budget") else []
    return tuple(dict.fromkeys((*kinds, *unknown_edits(form), *filter(form.get, _UNMET), *budget)))


def _thinking(form: Mapping[str, Any]) -> Thinking | None:
    """The amount of thinking: `thinking`, and `output_config.effort`, with which an adaptive model decides itself."""
    thinking, config = (
        value if isinstance(value, dict) else {} for value in (form.get("thinking"), form.get("output_config"))
    )
    effort = _effort_of_turn(form) or effort_in(config, "effort")
    kind = text_in(thinking, "type")
    if kind == "disabled":
        return Thinking(on=False)
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        return Thinking(on=True, effort=effort, budget=budget if is_count(budget) else None)
    return Thinking(effort=effort) if effort else None


def _effort_of_turn(form: Mapping[str, Any]) -> str:
    """The effort that system messages at the end say for this turn; empty: they do not."""
    for message in reversed(form["messages"]):
        if message.get("role") != "system":
            break
        config = message.get("output_config")
        if isinstance(config, dict) and (effort := effort_in(config, "effort")):
            return effort
    return ""


def _format(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON schema that the answer has to follow, if any; it moved from `output_format` to `output_config`."""
    config = form.get("output_config")
    places: Iterable[Any] = (config.get("format") if isinstance(config, dict) else None, form.get("output_format"))
    for format_ in places:
        if isinstance(format_, dict) and format_.get("type") == "json_schema":
            named = {"name": "answer", "schema": format_.get("schema") or {}, "strict": True}
            return {"type": "json_schema", "json_schema": named}
    return None
