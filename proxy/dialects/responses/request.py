"""Bodies of Responses requests, read into the neutral form.

Fields: OpenAI API reference, "Create a model response" (2026), and PyPI `openai` 3.54.0, `types/responses/`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.managing import CompactionRequest
from proxy.core.request import Fetch, Request, Unseal, in_openais_word, leading_system
from proxy.dialects.bodies import model_in, object_in, pick, request_of, text_in
from proxy.dialects.responses import stored
from proxy.dialects.responses.compaction import (
    Opened,
    compaction_in,
    is_compaction,
    open_compactions,
    since_compaction,
    without_trigger,
)
from proxy.dialects.responses.conversation import ADDED, Item, items_in, parts_of, tools_added, tools_in, updated
from proxy.dialects.responses.tools import choice, functions_offered, run_by_openai

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
    form = object_in(raw)
    if compacts:
        form |= {"stream": False, "store": False}
    _check(form)
    model = model_in(form)
    sent, triggered = without_trigger(items_in(form.get("input")))
    compaction = compaction_in(form, now=compacts or triggered)
    form.pop(ADDED, None)
    if stored.continues_stored(form) or any(map(is_compaction, sent)):
        return Request(
            body={"model": model, "messages": []},
            model=model,
            stream=form.get("stream") is True,
            form=form,
            reading=partial(_recollected, form, sent, compaction),
        )
    return _request(form, sent, sent, compaction, {})


def _recollected(
    form: Mapping[str, Any], sent: Sequence[Item], compaction: CompactionRequest | None
) -> Generator[Fetch | Unseal, Any, Request]:
    """The request, once what it names is there."""
    opened: Opened = {}
    sent = yield from stored.in_place_of_references(sent)
    yield from open_compactions(sent, opened)
    before = yield from stored.items_up_to(text_in(form, "previous_response_id"), opened)
    return _request(form, [*before, *sent], sent, compaction, opened)


def _request(
    form: Mapping[str, Any],
    items: Sequence[Item],
    sent: Sequence[Item],
    compaction: CompactionRequest | None,
    opened: Opened,
) -> Request:
    """The request for an answer to these items, of which its `sent` are what the client sent with it."""
    messages, under = since_compaction(items, opened)
    if compaction is not None:
        stands_for = () if under is None else under.fingerprints
        compaction = replace(compaction, lead=leading_system(messages), fingerprints=stands_for)
    body: dict[str, Any] = {"model": model_in(form), **pick(form, _SAME)}
    instructions = form.get("instructions")
    lead = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    body["messages"] = [*lead, *messages]
    if added := tools_added(items):
        form = {**form, ADDED: added}
    body |= _tools(form)
    reads = is_prewarming(form)
    return request_of(
        body,
        stream=form.get("stream") is True,
        # One token is the least that every backend generates.
        bound=1 if reads else form.get("max_output_tokens"),
        structure=_format(updated(items, "text", form.get("text"))),
        thinking=in_openais_word(text_in(updated(items, "reasoning", form.get("reasoning")), "effort")),
        form=form,
        conversation=text_in(form, "prompt_cache_key"),
        compaction=compaction,
        unsupported=(*run_by_openai(tools_in(form)), *filter(form.get, _UNMET)),
        keeping=partial(stored.keeping, form, sent) if stored.is_stored(form) and not reads else None,
    )


def is_prewarming(form: Mapping[str, Any]) -> bool:
    """Return whether the backend is to read the prompt into its cache, without an answer."""
    options = form.get("prompt_cache_options")
    return isinstance(options, dict) and options.get("prewarm") is True


def _check(form: Mapping[str, Any]) -> None:
    for name, what in _ELSEWHERE.items():
        if form.get(name):
            raise BadRequest(f"`{name}` asks for {what}; this proxy does not have it.", param=name)


# -- options


def _tools(form: Mapping[str, Any]) -> dict[str, Any]:
    found = functions_offered(tools_in(form))
    if not found:
        if listed := parts_of(form.get("tools")):
            kinds = ", ".join(sorted({text_in(tool, "type") for tool in listed}))
            raise BadRequest(
                f"Tools of the type {kinds} run on OpenAI's servers, which are not here: offer functions.",
                param="tools",
            )
        return {}
    fields: dict[str, Any] = {"tools": [function for function, _ in found.values()]}
    if (wanted := choice(form.get("tool_choice"), found)) is not None:
        fields["tool_choice"] = wanted
    return fields


def _format(wanted: Any) -> dict[str, Any] | None:
    format_ = wanted.get("format") if isinstance(wanted, dict) else None
    if not isinstance(format_, dict) or text_in(format_, "type") in ("", "text"):
        return None
    if format_["type"] != "json_schema":
        return dict(format_)
    named = {name: format_[name] for name in ("name", "description", "schema", "strict") if name in format_}
    return {"type": "json_schema", "json_schema": named}
