"""Bodies of Responses requests, read into the neutral form.

Fields: OpenAI API reference, "Create a model response" and "Compact a response", its guide "Compaction" (2026), and PyPI
`openai` 3.54.0, `types/responses/`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.history.sealed import fingerprint
from proxy.core.jsontext import omit
from proxy.core.request import (
    COMPACTION,
    SYSTEM_ROLES,
    CompactionRequest,
    Fetch,
    Request,
    Unseal,
    in_openais_word,
    leading_system,
)
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
from proxy.dialects.responses import stored
from proxy.dialects.responses.items import Item, function_for, items_in, messages_of, tool_choice, tools_offered
from proxy.dialects.responses.stored import Opened, is_compaction

_SAME = ("temperature", "top_p", "parallel_tool_calls")
"""Options that chat completions has by the same name."""
_ELSEWHERE = {
    "conversation": "a conversation that OpenAI's servers keep: send the history in `input`, or use `previous_response_id`",
    "background": "a response that is made in the background: ask for a stream, or wait for the answer",
    "prompt": "a prompt that OpenAI's servers keep: send it in `instructions` and `input`",
}
"""Options that need what is not here, with what they ask for."""
_TRIGGER = "compaction_trigger"
_UNREAD = {"role": "user", "content": "[Earlier messages were compacted by another server, and can't be read here.]"}


def read(raw: bytes, *, compacts: bool = False) -> Request:
    """Read a request body; `compacts`: whatever it asks for, it is to be compacted and nothing else.

    Raises:
        BadRequest: it is malformed, or asks for what only OpenAI's servers can do.
    """
    form = object_in(raw)
    if compacts:
        form |= {"stream": False, "store": False}
    refuse_fields(form, _ELSEWHERE)
    model, sent = model_in(form), items_in(form.get("input"))
    if triggered := bool(sent) and text_in(sent[-1], "type") == _TRIGGER:
        sent = sent[:-1]
    compaction = _compaction_in(form, now=compacts or triggered)
    refers = text_in(form, "previous_response_id") or any(map(stored.referred, sent))
    if refers or any(map(is_compaction, sent)):
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
    yield from stored.open_compactions(sent, opened)
    before = yield from stored.items_up_to(text_in(form, "previous_response_id"), opened)
    return _request(form, [*before, *sent], sent, compaction, opened)


def _request(
    form: Mapping[str, Any],
    items: Sequence[Item],
    sent: Sequence[Item],
    wanted: CompactionRequest | None,
    opened: Opened,
) -> Request:
    """The request for an answer to these items, of which its `sent` are what the client sent with it.

    Clients may leave out what a compaction stands for, or send it all the same; what it does not stand for stays.

    Raises:
        BadRequest: one of them is malformed, or of a kind that is not known.
    """
    seals = [text_in(item, "encrypted_content") for item in items]
    at = max((at for at, seal in enumerate(seals) if seal in opened), default=-1)
    under = opened[seals[at]] if at >= 0 else None
    messages = messages_of([_UNREAD if is_compaction(item) else item for item in items[at + 1 :]])
    if under is not None:
        before = messages_of([item for item in items[:at] if not is_compaction(item)])
        lead = [message for message in before if message["role"] in SYSTEM_ROLES] or under.lead
        users = [message for message in before if message["role"] == "user"]
        rest = [message for message in users if fingerprint(message) not in under.fingerprints]
        messages = [*lead, *rest, *messages]
    compaction = None
    if wanted is not None:
        stands_for = () if under is None else under.fingerprints
        compaction = replace(wanted, lead=leading_system(messages), fingerprints=stands_for)
    instructions = text_in(form, "instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    return request_of(
        {"model": model_in(form), **pick(form, _SAME), "messages": [*system, *messages], **_tools(form)},
        stream=form.get("stream") is True,
        bound=form.get("max_output_tokens"),
        structure=_format(dict_in(dict_in(form, "text"), "format")),
        thinking=in_openais_word(text_in(dict_in(form, "reasoning"), "effort")),
        form=form,
        conversation=text_in(form, "prompt_cache_key"),
        compaction=compaction,
        restored=() if under is None else under.messages,
        keeping=partial(stored.keeping, form, sent) if stored.is_stored(form) else None,
    )


# -- options


def _tools(form: Mapping[str, Any]) -> dict[str, Any]:
    """The functions to offer, with how they may be called; tools that OpenAI's servers run are left out."""
    listed = dicts_in(form, "tools")
    offered = tools_offered(listed)
    if not offered:
        if listed:
            kinds = ", ".join(dict.fromkeys(text_in(tool, "type") for tool in listed))
            raise BadRequest(
                f"Tools of the type {kinds} run on OpenAI's servers, which are not here: offer functions.",
                param="tools",
            )
        return {}
    fields: dict[str, Any] = {"tools": [function_for(name, tool) for name, (tool, _) in offered.items()]}
    if (wanted := tool_choice(form.get("tool_choice"), offered)) is not None:
        fields["tool_choice"] = wanted
    return fields


def _format(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = text_in(wanted, "type")
    if kind != "json_schema":
        return None if kind in ("", "text") else dict(wanted)
    return {"type": kind, "json_schema": omit(wanted, "type")}


def _compaction_in(form: Mapping[str, Any], *, now: bool) -> CompactionRequest | None:
    """The compaction that the client wants of its history; None: it does not ask. `now`: it asks for nothing else.

    Raises:
        BadRequest: `context_management` is malformed.
    """
    wanted = form.get("context_management")
    if wanted is None and not now:
        return None
    listed, trigger = wanted or [], None
    for entry in listed if isinstance(listed, list) else [None]:
        fields = entry if isinstance(entry, dict) else {}
        trigger = fields.get("compact_threshold")
        if fields.get("type") != COMPACTION or not (trigger is None or is_count(trigger)):
            raise BadRequest(
                '`context_management` must be a list of {"type": "compaction", "compact_threshold": TOKENS}.',
                param="context_management",
            )
    return CompactionRequest(trigger=trigger, now=now, worded=False)
