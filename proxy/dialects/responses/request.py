"""Bodies of Responses requests, read into the neutral form, and stored responses that requests continue.

A stored node holds the input items of one response, its output and its object (`response`), and the name of the previous node.

Fields: OpenAI API reference, "Create a model response", "Compact a response" and "Conversation state", its guide
"Compaction" (2026), and PyPI `openai` 3.54.0, `types/responses/`.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.history.sealed import SealedHistory, fingerprint
from proxy.core.jsontext import dumps, omit
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
from proxy.dialects.responses.items import Item, function_for, items_in, messages_of, tool_choice, tools_offered

Opened: TypeAlias = dict[str, SealedHistory]
"""Histories in compactions by their seals; only compactions that Spillway made for this client can be opened."""

_PLACED = re.compile(r"[a-z]+_(.+)_i?\d+")
"""Ids made by Spillway for items; the group is the unique part of the response's id."""
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", COMPACTION: "cmp"}

_SAME = ("temperature", "top_p", "parallel_tool_calls")
"""Options that chat completions has by the same name."""
_ELSEWHERE = {
    "conversation": "a conversation that OpenAI's servers keep: send the history in `input`, or use `previous_response_id`",
    "background": "a response that is made in the background: ask for a stream, or wait for the answer",
    "prompt": "a prompt that OpenAI's servers keep: send it in `instructions` and `input`",
}
"""Options that only OpenAI's servers can honour, with what they ask for."""
_TRIGGER = "compaction_trigger"
_UNREAD = {"role": "user", "content": "[Earlier messages were compacted by another server, and can't be read here.]"}


def read(raw: bytes, *, compacts: bool = False) -> Request:
    """Read a request body; `compacts`: only compact the history, whatever else the body asks for.

    Raises:
        BadRequest: the body is malformed, or asks for something that only OpenAI's servers can do.
    """
    form = object_in(raw)
    if compacts:
        form |= {"stream": False, "store": False}
    refuse_fields(form, _ELSEWHERE)
    model, sent = model_in(form), items_in(form.get("input"))
    if triggered := bool(sent) and text_in(sent[-1], "type") == _TRIGGER:
        sent = sent[:-1]
    compaction = _compaction_in(form, now=compacts or triggered)
    refers = text_in(form, "previous_response_id") or any(map(referred, sent))
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
    """Build a request after fetching and opening what it refers to: items, compactions and the previous response."""
    opened: Opened = {}
    sent = yield from in_place_of_references(sent)
    yield from open_compactions(sent, opened)
    before = yield from items_up_to(text_in(form, "previous_response_id"), opened)
    return _request(form, [*before, *sent], sent, compaction, opened)


def _request(
    form: Mapping[str, Any],
    items: Sequence[Item],
    sent: Sequence[Item],
    wanted: CompactionRequest | None,
    opened: Opened,
) -> Request:
    """Build the request for an answer to `items`, of which the client sent `sent` with this request.

    Clients may leave out the messages that a compaction covers, or send them anyway: then they are dropped. Of the messages
    before it, system messages and user messages that it does not cover stay.

    Raises:
        BadRequest: an item is malformed, or of an unknown kind.
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
        # Codex sets it to the id of its session.
        conversation=text_in(form, "prompt_cache_key"),
        compaction=compaction,
        restored=() if under is None else under.messages,
        keeping=partial(keeping, form, sent) if is_stored(form) else None,
    )


# -- options


def _tools(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions to offer and the `tool_choice`, as fields of the neutral body.

    Tools that OpenAI's servers run are left out.

    Raises:
        BadRequest: all tools are run by OpenAI's servers, or a required tool is not offered.
    """
    listed = dicts_in(form, "tools")
    offered = tools_offered(listed)
    if not offered:
        if listed:
            kinds = ", ".join(dict.fromkeys(text_in(tool, "type") for tool in listed))
            raise BadRequest(f"Tools of the type {kinds} run on OpenAI's servers: offer functions.", param="tools")
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
    """Return the compaction that the client asks for, or None; `now`: the request is for a compaction only.

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


# -- continuing stored responses


def referred(item: Item) -> str:
    """Return the id that an item refers to; empty if it is not a reference.

    Vercel's AI SDK (5) sends references for all items of earlier answers if it assumes that they are stored, as by default.
    """
    kind = text_in(item, "type")
    return text_in(item, "id") if kind == "item_reference" or (not kind and "role" not in item) else ""


def is_stored(form: Mapping[str, Any]) -> bool:
    """Return whether to store the response, which is the default."""
    return form.get("store") is not False


def is_compaction(item: Item) -> bool:
    """Return whether an item is a compaction, made by Spillway or another server."""
    return text_in(item, "type") in (COMPACTION, "compaction_summary")


def open_compactions(items: Sequence[Item], opened: Opened) -> Generator[Unseal, Any, None]:
    """Open the compactions among these items and add their histories to `opened`; those of other servers are skipped."""
    for item in items:
        seal = text_in(item, "encrypted_content")
        if is_compaction(item) and seal not in opened:
            under = SealedHistory.read((yield Unseal(seal)))
            if under is not None:
                opened[seal] = under


def items_up_to(head: str, opened: Opened) -> Generator[Fetch | Unseal, Any, list[Item]]:
    """Return the items of stored nodes up to `head`, oldest first, starting at the node with the newest compaction opened here.

    Raises:
        BadRequest: one of the nodes is not stored.
    """
    parts: list[list[Item]] = []
    name = head
    while name:
        node = yield Fetch(name)
        if node is None:
            raise _gone(head, name)
        parts.append([*node["input"], *node["output"]])
        name = node["previous"]
        yield from open_compactions(parts[-1], opened)
        if any(text_in(item, "encrypted_content") in opened for item in parts[-1]):
            break
    return [item for part in reversed(parts) for item in part]


def _gone(head: str, name: str) -> BadRequest:
    known = "it was not stored (`store: false`), is another key's, or has expired"
    what = f"Previous response with id {head!r} not found: {known}."
    if name != head:
        what = f"The response that {head!r} continues is not stored any more: {name!r} was deleted, or has expired."
    return BadRequest(
        f"{what} Send the whole conversation in `input`.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def in_place_of_references(items: Sequence[Item]) -> Generator[Fetch, Any, list[Item]]:
    """Return the items with references replaced by the stored items; a reference to unknown reasoning is left out.

    Raises:
        BadRequest: another referenced item is not stored; the conversation would have a gap without it.
    """
    fetched: dict[str, list[Item]] = {}
    found: list[Item] = []
    for index, item in enumerate(items):
        name = referred(item)
        if not name:
            found.append(item)
            continue
        match = _PLACED.fullmatch(name)
        owner = f"resp_{match[1]}" if match is not None else ""
        if owner and owner not in fetched:
            node = (yield Fetch(owner)) or {"input": [], "output": []}
            fetched[owner] = [*node["input"], *node["output"]]
        named = [each for each in fetched.get(owner, ()) if each.get("id") == name]
        if not named and not name.startswith("rs_"):
            raise BadRequest(
                f"`input[{index}]` refers to the item {name!r}, which is not stored here, or not any more: send the items "
                "themselves (Vercel's AI SDK does so with `providerOptions: {openai: {store: false}}`).",
                param=f"input[{index}]",
            )
        found += named
    return found


# -- storing


def keeping(form: Mapping[str, Any], sent: Sequence[Item], response: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the node to store for a finished response; `sent` are the input items of its request."""
    name, output = response["id"], response["output"]
    unique = name.partition("_")[2]
    items = [identified(item, unique, number) for number, item in enumerate(sent)]
    return name, {
        "previous": text_in(form, "previous_response_id"),
        "input": items,
        "output": output,
        "response": response,
        "size": len(dumps([items, output])),
    }


def identified(item: Item, unique: str, number: int) -> Item:
    """Return an item with an id; one made here contains the response's, so that the item can be found by it."""
    kind = text_in(item, "type") or "message"
    item_id = text_in(item, "id") or f"{_PREFIXES.get(kind, 'item')}_{unique}_i{number}"
    return {"type": kind, **item, "id": item_id}
