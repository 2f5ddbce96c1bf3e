"""Bodies of Messages requests, read into the neutral form.

Fields: Anthropic API reference, "Create a Message" and "Tool use" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.request import Request, Thinking, effort_in
from proxy.dialects.bodies import (
    dict_in,
    dicts_in,
    is_count,
    model_in,
    object_in,
    pick,
    refuse_fields,
    request_of,
    text_in,
)
from proxy.dialects.messages.context import compaction_in, edits_in, since_compaction, unknown_edits
from proxy.dialects.messages.conversation import ContentBlock, blocks_in, messages_of, system_of

_SAME = ("temperature", "top_p", "top_k")
"""Options that chat completions has by the same name (`top_k`: llama.cpp, vLLM, Ollama, LM Studio, OpenRouter)."""
_UNMET = ("container", "fallbacks", "diagnostics")
"""Options for which there is nothing behind chat completions."""
_ELSEWHERE = {
    "thread": "a conversation that Anthropic's servers keep: send all of it in `messages` with every request",
    "mcp_servers": "servers that Anthropic's servers call: have the client call them, and offer their tools in `tools`",
}
"""Options that need what is not here, with what they ask for."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ADDITION, _REMOVAL = "tool_addition", "tool_removal"


def read(raw: bytes, *, bounded: bool = True) -> Request:
    """Read a request body. `bounded`: it has to bound its answer, as all have that want one.

    Raises:
        BadRequest: it is malformed, or asks for what only Anthropic's servers can do.
    """
    form = object_in(raw)
    if not isinstance(form.get("messages"), list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    refuse_fields(form, _ELSEWHERE)
    body: dict[str, Any] = {"model": model_in(form), **pick(form, _SAME)}
    compaction, messages = since_compaction(form["messages"])
    body["messages"] = [*system_of(form.get("system")), *messages_of(messages)]
    bound = form.get("max_tokens")
    only_read = bound == 0 and not isinstance(bound, bool)
    if bounded and not (is_count(bound) or only_read):
        raise BadRequest(
            "`max_tokens` must be a positive number of tokens, or 0 to have the prompt read alone.", param="max_tokens"
        )
    if stops := form.get("stop_sequences"):
        body["stop"] = stops
    offered = _offered_in(form)
    body |= _tools(form, offered)
    config = dict_in(form, "output_config")
    elsewhere = [text_in(tool, "type") for tool in offered if not _is_function(tool)]
    unmet = [*filter(form.get, _UNMET), *(["task_budget"] if config.get("task_budget") else [])]
    return request_of(
        body,
        stream=form.get("stream") is True,
        # One token is the least that every backend generates.
        bound=1 if only_read else bound,
        structure=_format(form),
        continues=bool(messages) and messages[-1].get("role") == "assistant",
        edits=edits_in(form),
        compaction=compaction_in(form),
        sealed_compaction=compaction,
        thinking=_thinking(form),
        unsupported=tuple(dict.fromkeys((*elsewhere, *unknown_edits(form), *unmet))),
        form=form,
    )


# -- options


def _thinking(form: Mapping[str, Any]) -> Thinking | None:
    """The amount of thinking: `thinking`, and `output_config.effort`, with which an adaptive model decides itself."""
    thinking, effort = dict_in(form, "thinking"), effort_in(dict_in(form, "output_config"), "effort")
    kind = text_in(thinking, "type")
    if kind == "disabled":
        return Thinking(on=False)
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        return Thinking(on=True, effort=effort, budget=budget if is_count(budget) else None)
    return Thinking(effort=effort) if effort else None


def _format(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON schema that the answer has to follow, if any; it moved from `output_format` to `output_config`."""
    for format_ in (dict_in(dict_in(form, "output_config"), "format"), dict_in(form, "output_format")):
        if format_.get("type") == "json_schema":
            named = {"name": "answer", "schema": format_.get("schema") or {}, "strict": True}
            return {"type": "json_schema", "json_schema": named}
    return None


# -- tools, as functions, which is all that models behind chat completions can call


def _tools(form: Mapping[str, Any], offered: Iterable[ContentBlock]) -> dict[str, Any]:
    """The functions to offer, with how they may be called.

    Raises:
        BadRequest: there are only tools that Anthropic's servers run, or whose parameters only its models know.
    """
    listed = list(offered)
    tools = {text_in(tool, "name"): _function(tool) for tool in listed if _is_function(tool)}
    if not tools:
        if listed:
            names = ", ".join(text_in(tool, "name") or text_in(tool, "type") for tool in listed)
            raise BadRequest(
                f"The tools {names} are Anthropic's own, which are not here: offer tools with an `input_schema`.",
                param="tools",
            )
        return {}
    fields: dict[str, Any] = {"tools": list(tools.values())}
    choice = dict_in(form, "tool_choice")
    kind = text_in(choice, "type")
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": text_in(choice, "name")}}
    elif kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


def _is_function(tool: ContentBlock) -> bool:
    """Return whether the client runs a tool and says what its parameters are; Anthropic's own have a type of their own."""
    return text_in(tool, "type") in ("", "custom")


def _function(tool: ContentBlock) -> dict[str, Any]:
    schema, description = tool.get("input_schema"), text_in(tool, "description")
    function: dict[str, Any] = {"name": text_in(tool, "name")}
    if description:
        function["description"] = description
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def _offered_in(form: Mapping[str, Any]) -> list[ContentBlock]:
    """The tools of a request, with those that were added in the middle of the conversation, less those that were removed.

    In the order in which they were first known, so that the beginning of the prompt changes as little as may be.

    Raises:
        BadRequest: `tools` is malformed.
    """
    known = {
        text_in(tool, "name") or str(place): tool for place, tool in enumerate(blocks_in(form.get("tools"), "tools"))
    }
    removed = set[str]()
    for change in _changes(form["messages"]):
        tool = dict_in(change, "tool")
        definition = dict_in(tool, "definition")
        name = text_in(definition or tool, "name")
        if change["type"] == _REMOVAL:
            removed.add(name)
            continue
        removed.discard(name)
        if definition:
            known[name] = definition
    return [tool for name, tool in known.items() if name not in removed]


def _changes(messages: Iterable[Any]) -> Iterator[ContentBlock]:
    """Additions and removals of tools, oldest first."""
    for message in messages:
        for block in dicts_in(message, "content") if isinstance(message, dict) else ():
            if text_in(block, "type") in (_ADDITION, _REMOVAL):
                yield block
