"""What is kept of responses and conversations, and how a request goes on from it.

A node holds what one response was asked, and what it answered; it names the node before it. A conversation names its last one.
Fields: OpenAI API reference, "Conversation state" and "Conversations" (2026), and PyPI `openai` 3.54.0, `types/conversations/`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from proxy.dialects.bodies import text_in
from proxy.dialects.responses.compaction import Opened, open_compactions
from proxy.dialects.responses.conversation import Item, items_in
from proxy.errors import BadRequest, NotFound
from proxy.neutral.remembering import Alone, Fetch, Keep, Keeping, Unseal
from proxy.wire.jsontext import dumps

T = TypeVar("T")
Node: TypeAlias = dict[str, Any]
Fetching: TypeAlias = Generator[Fetch, Any, T]
Asking: TypeAlias = Generator[Fetch | Unseal, Any, T]

_PLACED = re.compile(r"[a-z]+_(.+)_i?\d+")
"""Ids of items that were made here: they hold the one of the response that they belong to."""
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "compaction": "cmp"}


# -- what a request names


def conversation_in(asked: Mapping[str, Any]) -> str:
    """The id of the conversation that a request belongs to; empty: none.

    Raises:
        BadRequest: it is malformed, or goes on from a response as well.
    """
    said = asked.get("conversation")
    if said is None:
        return ""
    name = text_in(said, "id") if isinstance(said, dict) else said
    if not isinstance(name, str) or not name:
        raise BadRequest(
            "`conversation` must be the id of one, or an object with that.", param="conversation"
        )
    if asked.get("previous_response_id"):
        raise BadRequest(
            "`previous_response_id` and `conversation` can't be used together: send one of them.",
            param="previous_response_id",
        )
    return name


def referred(item: Item) -> str:
    """The id of the item that this one stands for; empty: it is one itself.

    Vercel's AI SDK (5) names every item of earlier answers where it takes them to be stored, which is what it does by default.
    """
    kind = text_in(item, "type")
    return text_in(item, "id") if kind == "item_reference" or (not kind and "role" not in item) else ""


def goes_on(asked: Mapping[str, Any]) -> bool:
    """Whether a request goes on from what is kept.

    Raises:
        BadRequest: what names that is malformed.
    """
    named = bool(conversation_in(asked)) or bool(text_in(asked, "previous_response_id"))
    return named or any(map(referred, items_in(asked.get("input"))))


def is_kept(asked: Mapping[str, Any]) -> bool:
    """Whether the response may be asked for again; it may unless the client says otherwise."""
    return asked.get("store") is not False


# -- going on from it


def before(asked: Mapping[str, Any], opened: Opened) -> Asking[list[Item]]:
    """The items that come before those of a request, with what is under the seals of compactions among them.

    Raises:
        BadRequest, NotFound: there is nothing of that name, or not any more.
    """
    if name := conversation_in(asked):
        kept = yield from conversation(name)
        return (yield from items_up_to(kept["head"], opened))
    return (yield from items_up_to(text_in(asked, "previous_response_id"), opened))


def conversation(name: str) -> Fetching[dict[str, Any]]:
    """What is kept of a conversation.

    Raises:
        NotFound: nothing.
    """
    kept = yield Fetch(name)
    if kept is None or "head" not in kept:
        raise NotFound(f"Conversation with id {name!r} not found.", param="conversation")
    found: dict[str, Any] = kept
    return found


def items_up_to(head: str, opened: Opened | None = None) -> Asking[list[Item]]:
    """The items up to and with those of a node, oldest first: all, or with `opened` from the newest compaction on.

    Raises:
        BadRequest: a part of them is gone.
    """
    parts: list[list[Item]] = []
    name = head
    while name:
        node = yield Fetch(name)
        if node is None or "input" not in node:  # a conversation has none
            raise _gone(head, name)
        parts.append([*node["input"], *node["output"]])
        name = node["previous"]
        if opened is not None:
            yield from open_compactions(parts[-1], opened)
            if any(text_in(item, "encrypted_content") in opened for item in parts[-1]):
                break
    return [item for part in reversed(parts) for item in part]


def _gone(head: str, name: str) -> BadRequest:
    known = "it was not stored (`store: false`), is another key's, or has expired"
    what = f"Previous response with id {head!r} not found: {known}."
    if name != head:
        what = f"What {head!r} goes on from is not stored any more: {name!r} was deleted, or has expired."
    return BadRequest(
        f"{what} Send the whole conversation in `input`.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def in_place_of_references(items: Sequence[Item]) -> Fetching[list[Item]]:
    """The items, with those that are only named put in their places; reasoning that is not kept is left out.

    Raises:
        BadRequest: something else is not kept; to leave that out would tear a hole into the conversation.
    """
    fetched: dict[str, Node | None] = {}
    found: list[Item] = []
    for index, item in enumerate(items):
        name = referred(item)
        if not name:
            found.append(item)
            continue
        made = _PLACED.fullmatch(name)
        owner = f"resp_{made[1]}" if made is not None else ""
        if owner and owner not in fetched:
            fetched[owner] = yield Fetch(owner)
        node = fetched.get(owner) or {"input": [], "output": []}
        kept = [each for each in (*node["input"], *node["output"]) if each.get("id") == name]
        if not kept and not name.startswith("rs_"):
            raise BadRequest(
                f"`input[{index}]` refers to the item {name!r}, which is not stored here, or not any more: send the items "
                "themselves (Vercel's AI SDK does so with `providerOptions: {openai: {store: false}}`).",
                param=f"input[{index}]",
            )
        found += kept
    return found


# -- keeping


def keeping(asked: Mapping[str, Any], own: Sequence[Item], response: dict[str, Any]) -> Keeping:
    """Keep a response as it was at its end; `own` are the items that it was sent."""
    name, into = response["id"], conversation_in(asked)
    previous = text_in(asked, "previous_response_id")
    node = node_of(name, own, previous=previous, output=response["output"])
    if is_kept(asked):
        node["response"] = response
    return (yield from append(into, name, node) if into else kept_as(name, node))


def append(into: str, name: str, node: Node) -> Keeping:
    """Keep a node at the end of a conversation, if that is still there; one that is not taken leaves it as it was."""
    yield Alone(into)
    kept = yield Fetch(into)
    if kept is None or not (yield Keep(name, {**node, "previous": kept["head"]})):
        return False
    return (yield from kept_as(into, {**kept, "head": name}))


def kept_as(name: str, document: dict[str, Any]) -> Keeping:
    """Keep it, and nothing else."""
    taken: bool = yield Keep(name, document)
    return taken


def node_of(name: str, items: Sequence[Item], *, previous: str = "", output: Sequence[Item] = ()) -> Node:
    """A node with these items, each under an id of its own that tells where it lies; `size` in bytes."""
    unique = name.partition("_")[2]
    own = [identified(item, unique, number) for number, item in enumerate(items)]
    size = len(dumps([own, list(output)]))
    return {"previous": previous, "input": own, "output": list(output), "response": None, "size": size}


def identified(item: Item, unique: str, number: int) -> Item:
    """An item under an id that tells where it lies, if it has none of its own."""
    kind = text_in(item, "type") or "message"
    made = {"id": f"{_PREFIXES.get(kind, 'item')}_{unique}_i{number}", "type": kind}
    return {
        **made,
        **{name: value for name, value in item.items() if name != "id"},
        "id": text_in(item, "id") or made["id"],
    }


# -- lists of items


def as_told(item: Item) -> dict[str, Any]:
    """An item with what clients expect on those that are listed."""
    told = dict(item)
    if told.get("type") == "message":
        told = {"status": "completed", **told}
        if isinstance(content := told.get("content"), str):
            kind = "output_text" if told.get("role") == "assistant" else "input_text"
            part: dict[str, Any] = {"type": kind, "text": content}
            told["content"] = [part | {"annotations": []} if kind == "output_text" else part]
    return told


def page_of_items(items: Sequence[Item], *, after: str, limit: int, newest_first: bool) -> dict[str, Any]:
    """A list of at most `limit` items behind the one whose id is `after`.

    Raises:
        BadRequest: there is no such item.
    """
    ordered = list(reversed(items)) if newest_first else list(items)
    ids = [text_in(item, "id") for item in ordered]
    if after and after not in ids:
        raise BadRequest(f"`after` names no item of this list: {after!r}.", param="after")
    start = ids.index(after) + 1 if after else 0
    shown = [as_told(item) for item in ordered[start : start + limit]]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + limit < len(ordered),
    }
