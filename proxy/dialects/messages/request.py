"""Bodies of Messages requests, read into the neutral form.

Fields: Anthropic API reference, "Create a Message", "Tool use", "Context editing" and "Compaction" (2026), and PyPI
`anthropic` 2.12.0, `types/beta/`. Beta fields work without their `anthropic-beta` header, which is not checked.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.history.embedded import without_calls
from proxy.core.history.marks import CLOSE, OPEN, defanged
from proxy.core.history.sealed import SealedHistory
from proxy.core.jsontext import JsonObject
from proxy.core.request import (
    COMPACTION,
    ClearResults,
    ClearThoughts,
    CompactionRequest,
    Edit,
    Message,
    Request,
    Thinking,
    Unseal,
    effort_in,
)
from proxy.dialects.bodies import (
    dict_in,
    dicts_in,
    function_of,
    is_count,
    model_in,
    object_in,
    pick,
    refuse_fields,
    request_of,
    text_in,
)
from proxy.dialects.messages.conversation import blocks_in, messages_of, system_of

CLEAR_RESULTS, CLEAR_THOUGHTS, _COMPACT = "clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"
EDITS = (CLEAR_RESULTS, CLEAR_THOUGHTS, _COMPACT)
"""Kinds of edits that are supported."""
_DEFAULT_CLEARING, _DEFAULT_KEEP = 100_000, 3
_DEFAULT_COMPACTING = 150_000
_SAME = ("temperature", "top_p", "top_k")
"""Options that chat completions has by the same name (`top_k`: llama.cpp, vLLM, Ollama, LM Studio, OpenRouter)."""
_ELSEWHERE = {
    "thread": "a conversation that Anthropic's servers keep: send all of it in `messages` with every request",
    "mcp_servers": "servers that Anthropic's servers call: have the client call them, and offer their tools in `tools`",
}
"""Options that only Anthropic's servers can honour, with what they ask for."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_LONGEST_FOREIGN = 400_000
"""Most characters used of a summary made by another server."""


def read(raw: bytes) -> Request:
    """Read a request body.

    Raises:
        BadRequest: the body is malformed, or asks for something that only Anthropic's servers can do.
    """
    form = object_in(raw)
    if not isinstance(form.get("messages"), list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    refuse_fields(form, _ELSEWHERE)
    bound, config = form.get("max_tokens"), dict_in(form, "output_config")
    if bound is not None and not is_count(bound):
        raise BadRequest("`max_tokens` must be a positive number of tokens.", param="max_tokens")
    compaction, messages = _since_compaction(form["messages"])
    request = request_of(
        {
            "model": model_in(form),
            **pick(form, _SAME),
            "messages": [*system_of(form.get("system")), *messages_of(messages)],
            **({"stop": form["stop_sequences"]} if form.get("stop_sequences") else {}),
            **_tools(form),
        },
        stream=form.get("stream") is True,
        bound=bound,
        structure=_format(dict_in(config, "format") or dict_in(form, "output_format")),
        continues=bool(messages) and messages[-1].get("role") == "assistant",
        edits=_edits(form),
        compaction=_compaction(form),
        thinking=_thinking(form),
        form=form,
    )
    return request if compaction is None else replace(request, reading=partial(_restored, request, compaction))


# -- options


def _thinking(form: Mapping[str, Any]) -> Thinking | None:
    """Read how much to think: `thinking`, and `output_config.effort`, by which an adaptive model decides itself."""
    thinking, effort = dict_in(form, "thinking"), effort_in(dict_in(form, "output_config"), "effort")
    kind = text_in(thinking, "type")
    if kind == "disabled":
        return Thinking(on=False)
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        return Thinking(on=True, effort=effort, budget=budget if is_count(budget) else None)
    return Thinking(effort=effort) if effort else None


def _format(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON schema that the answer has to follow, if any, as a `response_format`."""
    if wanted.get("type") != "json_schema":
        return None
    schema = {"name": "answer", "schema": wanted.get("schema") or {}, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


# -- context management


def _listed(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    return dicts_in(dict_in(form, "context_management"), "edits")


def _edits(form: Mapping[str, Any]) -> list[Edit]:
    """Read the edits that leave something out of the history."""
    edits: list[Edit] = []
    for edit in _listed(form):
        kind, keep = edit.get("type"), edit.get("keep")
        if kind == CLEAR_RESULTS:
            edits.append(_clear_results(edit))
        # Claude Code (2.1) asks for this edit with `all` in every request: then nothing is left out.
        elif kind == CLEAR_THOUGHTS and keep != "all" and dict_in(edit, "keep").get("type") != "all":
            edits.append(ClearThoughts(_figure(edit, "keep", "thinking_turns") or 1))
    return edits


def _clear_results(edit: Mapping[str, Any]) -> ClearResults:
    over_tokens, over_results = _figure(edit, "trigger", "input_tokens"), _figure(edit, "trigger", "tool_uses")
    if over_tokens is None and over_results is None:
        over_tokens = _DEFAULT_CLEARING
    keep, inputs = _figure(edit, "keep", "tool_uses"), edit.get("clear_tool_inputs")
    return ClearResults(
        over_tokens=over_tokens,
        over_results=over_results,
        keep=_DEFAULT_KEEP if keep is None else keep,
        at_least=_figure(edit, "clear_at_least", "input_tokens") or 0,
        spared=_names(edit.get("exclude_tools")),
        arguments=_names(inputs) if isinstance(inputs, list) else inputs is True,
    )


def _figure(edit: Mapping[str, Any], name: str, kind: str) -> int | None:
    """Return the figure in a field of the form `{"type": kind, "value": figure}`, or None if it is missing or malformed."""
    field = dict_in(edit, name)
    value = field.get("value")
    return value if field.get("type") == kind and type(value) is int and value >= 0 else None


def _names(listed: Any) -> frozenset[str]:
    return frozenset(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else frozenset()


def _compaction(form: Mapping[str, Any]) -> CompactionRequest | None:
    """Return the compaction that the client asks for, or None.

    Raises:
        BadRequest: the kind is unknown, or `compaction` is combined with `context_management`.
    """
    wanted = form.get("compaction")
    if wanted is not None:
        if form.get("context_management"):
            raise BadRequest("`compaction` cannot be combined with `context_management`.", param="compaction")
        if not isinstance(wanted, dict) or wanted.get("type") != "summarize":
            raise BadRequest('`compaction` must be {"type": "summarize"}.', param="compaction")
        return CompactionRequest(now=True, instructions=text_in(wanted, "instructions").strip())
    edit = next((edit for edit in _listed(form) if edit.get("type") == _COMPACT), None)
    if edit is None:
        return None
    return CompactionRequest(
        trigger=_figure(edit, "trigger", "input_tokens") or _DEFAULT_COMPACTING,
        instructions=text_in(edit, "instructions").strip(),
        pauses=edit.get("pause_after_compaction") is True,
    )


def _since_compaction(messages: Sequence[Any]) -> tuple[JsonObject | None, Sequence[Any]]:
    """Return the newest compaction block and the messages after it, or None and all messages if there is none.

    A block without content is from a failed compaction, and ignored.
    """
    for index in reversed(range(len(messages))):
        message = messages[index] if isinstance(messages[index], dict) else {}
        blocks = dicts_in(message, "content")
        for at in reversed(range(len(blocks))):
            if blocks[at].get("type") == COMPACTION and text_in(blocks[at], "content"):
                rest = [{**message, "content": blocks[at + 1 :]}] if blocks[at + 1 :] else []
                return blocks[at], [*rest, *messages[index + 1 :]]
    return None, messages


def _restored(request: Request, compaction: JsonObject) -> Generator[Unseal, Any, Request]:
    """Return the request with the messages that its compaction covers.

    A compaction from another server cannot be opened. Its text becomes a summary block, defanged so that it can set no rules.
    """
    under = SealedHistory.read((yield Unseal(text_in(compaction, "encrypted_content"))))
    if under is not None:
        return replace(request, restored=under.messages, reading=None)
    words = defanged(without_calls(text_in(compaction, "content")[:_LONGEST_FOREIGN])).strip()
    background: Message = {"role": "user", "content": f"{OPEN}\n{words}\n{CLOSE}"}
    return replace(request, restored=[background], reading=None)


# -- tools, as functions: chat completions has no other kind


def _tools(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions to offer and the `tool_choice`, as fields of the neutral body.

    Raises:
        BadRequest: all tools are run by Anthropic's servers, or have parameters that only its models know.
    """
    offered = _offered_in(form)
    tools = {
        text_in(tool, "name"): function_of(text_in(tool, "name"), tool, tool.get("input_schema"))
        for tool in offered
        if text_in(tool, "type") in ("", "custom")  # tools that Anthropic's servers run have types of their own
    }
    if not tools:
        if offered:
            names = ", ".join(text_in(tool, "name") or text_in(tool, "type") for tool in offered)
            raise BadRequest(
                f"The tools {names} run on Anthropic's servers: offer tools with an `input_schema`.", param="tools"
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


def _offered_in(form: Mapping[str, Any]) -> list[JsonObject]:
    """List the tools of a request, including tools added during the conversation, without removed ones.

    They keep the order in which they were first added, so that the beginning of the prompt changes as little as possible.

    Raises:
        BadRequest: `tools` is malformed.
    """
    tools = blocks_in(form.get("tools"), "tools")
    known = {text_in(tool, "name") or str(place): tool for place, tool in enumerate(tools)}
    removed = set[str]()
    messages = (message for message in form["messages"] if isinstance(message, dict))
    for block in (block for message in messages for block in dicts_in(message, "content")):
        tool = dict_in(block, "tool")
        definition = dict_in(tool, "definition")
        name = text_in(definition or tool, "name")
        if block.get("type") == "tool_removal":
            removed.add(name)
        elif block.get("type") == "tool_addition":
            removed.discard(name)
            known |= {name: definition} if definition else {}
    return [tool for name, tool in known.items() if name not in removed]
