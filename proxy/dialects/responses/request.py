"""Bodies of Responses requests, read into the neutral form.

Fields: OpenAI API reference, "Create a model response" (2026), and PyPI `openai` 3.54.0, `types/responses/`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.dialects.bodies import given, model_in, object_in, request_of, text_in
from proxy.dialects.responses import stored
from proxy.dialects.responses.compaction import (
    Opened,
    is_compaction,
    open_compactions,
    since_compaction,
    wish_in,
    without_trigger,
)
from proxy.dialects.responses.conversation import (
    ADDED,
    Item,
    items_in,
    parts_of,
    tools_added,
    tools_in,
    updated,
)
from proxy.dialects.responses.tools import choice, functions_offered, left_to_openai
from proxy.errors import BadRequest
from proxy.neutral.managing import CompactionWish
from proxy.neutral.remembering import Fetch, Unseal
from proxy.neutral.request import Request, leading_system
from proxy.neutral.thinking import in_openais_word

_SAME = ("temperature", "top_p", "parallel_tool_calls")
"""Options that chat completions has by the same name."""
_UNMET = ("top_logprobs", "moderation", "image")
"""Options for which there is nothing here, and without which clients can do."""
_ELSEWHERE = {
    "conversation": "a conversation that OpenAI's servers keep: send the history in `input`, or use `previous_response_id`",
    "background": "a response that is made in the background: ask for a stream, or wait for the answer",
    "prompt": "a prompt that OpenAI's servers keep: send it in `instructions` and `input`",
}
"""Options that need what is not here, with what they ask for."""


def read(raw: bytes, *, compacts: bool = False) -> Request:
    """Read a request body; `compacts`: whatever it asks for, it is to be compacted and nothing else.

    Raises:
        BadRequest: it is malformed, or asks for what only OpenAI's servers can do.
    """
    asked = object_in(raw)
    if compacts:
        asked |= {"stream": False, "store": False}
    _check(asked)
    model = model_in(asked)
    own, triggered = without_trigger(items_in(asked.get("input")))
    wish = wish_in(asked, now=compacts or triggered)
    asked.pop(ADDED, None)
    if stored.goes_on(asked) or any(map(is_compaction, own)):
        return Request(
            body={"model": model, "messages": []},
            model=model,
            stream=asked.get("stream") is True,
            form=asked,
            reading=partial(_recollected, asked, own, wish),
        )
    return _made(asked, own, own, wish, {})


def _recollected(
    asked: Mapping[str, Any], own: Sequence[Item], wish: CompactionWish | None
) -> Generator[Fetch | Unseal, Any, Request]:
    """The request, once what it names is there."""
    opened: Opened = {}
    own = yield from stored.in_place_of_references(own)
    yield from open_compactions(own, opened)
    before = yield from stored.items_up_to(text_in(asked, "previous_response_id"), opened)
    return _made(asked, [*before, *own], own, wish, opened)


def _made(
    asked: Mapping[str, Any],
    items: Sequence[Item],
    own: Sequence[Item],
    wish: CompactionWish | None,
    opened: Opened,
) -> Request:
    """The request for an answer to these items, of which its `own` are what the client sent with it."""
    messages, under = since_compaction(items, opened)
    if wish is not None:
        said = () if under is None else under.said
        wish = replace(wish, lead=leading_system(messages), said=said)
    body: dict[str, Any] = {"model": model_in(asked), **given(asked, _SAME)}
    instructions = asked.get("instructions")
    lead = (
        [{"role": "system", "content": instructions}]
        if isinstance(instructions, str) and instructions
        else []
    )
    body["messages"] = [*lead, *messages]
    if added := tools_added(items):
        asked = {**asked, ADDED: added}
    body |= _tools(asked)
    reads = is_prewarming(asked)
    return request_of(
        body,
        stream=asked.get("stream") is True,
        # One token is the least that every backend generates.
        bound=1 if reads else asked.get("max_output_tokens"),
        structure=_format(updated(items, "text", asked.get("text"))),
        thinking=in_openais_word(text_in(updated(items, "reasoning", asked.get("reasoning")), "effort")),
        form=asked,
        conversation=text_in(asked, "prompt_cache_key"),
        compaction=wish,
        left_out=(*left_to_openai(tools_in(asked)), *filter(asked.get, _UNMET)),
        keeping=partial(stored.keeping, asked, own) if stored.is_kept(asked) and not reads else None,
    )


def is_prewarming(asked: Mapping[str, Any]) -> bool:
    """Return whether the backend is to read the prompt into its cache, without an answer."""
    options = asked.get("prompt_cache_options")
    return isinstance(options, dict) and options.get("prewarm") is True


def _check(asked: Mapping[str, Any]) -> None:
    for name, what in _ELSEWHERE.items():
        if asked.get(name):
            raise BadRequest(f"`{name}` asks for {what}; this proxy does not have it.", param=name)


# -- options


def _tools(asked: Mapping[str, Any]) -> dict[str, Any]:
    found = functions_offered(tools_in(asked))
    if not found:
        if listed := parts_of(asked.get("tools")):
            kinds = ", ".join(sorted({text_in(tool, "type") for tool in listed}))
            raise BadRequest(
                f"Tools of the type {kinds} run on OpenAI's servers, which are not here: offer functions.",
                param="tools",
            )
        return {}
    made: dict[str, Any] = {"tools": [function for function, _ in found.values()]}
    if (wanted := choice(asked.get("tool_choice"), found)) is not None:
        made["tool_choice"] = wanted
    return made


def _format(wanted: Any) -> dict[str, Any] | None:
    form = wanted.get("format") if isinstance(wanted, dict) else None
    if not isinstance(form, dict) or text_in(form, "type") in ("", "text"):
        return None
    if form["type"] != "json_schema":
        return dict(form)
    named = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
    return {"type": "json_schema", "json_schema": named}
