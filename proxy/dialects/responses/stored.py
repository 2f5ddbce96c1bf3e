"""Stored responses, and requests that go on from them.

A node holds the input items of one response, its output and its object (`response`); it names the node before it.
Fields: OpenAI API reference, "Conversation state" (2026), and PyPI `openai` 3.54.0.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.history.sealed import SealedHistory
from proxy.core.jsontext import dumps
from proxy.core.request import COMPACTION, Fetch, Unseal
from proxy.dialects.bodies import text_in
from proxy.dialects.responses.items import Item

Opened: TypeAlias = dict[str, SealedHistory]
"""What is under the seals of compactions, as far as they are Spillway's own, for this client."""

_PLACED = re.compile(r"[a-z]+_(.+)_i?\d+")
"""Ids of items that were made here: they hold the one of the response that they belong to."""
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", COMPACTION: "cmp"}


# -- going on from what is stored


def referred(item: Item) -> str:
    """The id of the item that this one stands for; empty: it is one itself.

    Vercel's AI SDK (5) names every item of earlier answers where it takes them to be stored, which is what it does by default.
    """
    kind = text_in(item, "type")
    return text_in(item, "id") if kind == "item_reference" or (not kind and "role" not in item) else ""


def is_stored(form: Mapping[str, Any]) -> bool:
    """Return whether the response is to be stored; it is unless the client says otherwise."""
    return form.get("store") is not False


def is_compaction(item: Item) -> bool:
    """Return whether it is one, be it Spillway's own or another's."""
    return text_in(item, "type") in (COMPACTION, "compaction_summary")


def open_compactions(items: Sequence[Item], opened: Opened) -> Generator[Unseal, Any, None]:
    """Open the compactions among these items."""
    for item in items:
        seal = text_in(item, "encrypted_content")
        if is_compaction(item) and seal not in opened:
            under = SealedHistory.read((yield Unseal(seal)))
            if under is not None:
                opened[seal] = under


def items_up_to(head: str, opened: Opened) -> Generator[Fetch | Unseal, Any, list[Item]]:
    """The items up to and with those of a node, oldest first, from the newest compaction on, which is opened.

    Raises:
        BadRequest: a part of them is gone.
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
        what = f"What {head!r} goes on from is not stored any more: {name!r} was deleted, or has expired."
    return BadRequest(
        f"{what} Send the whole conversation in `input`.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def in_place_of_references(items: Sequence[Item]) -> Generator[Fetch, Any, list[Item]]:
    """The items, with those that are only named put in their places; reasoning that is not kept is left out.

    Raises:
        BadRequest: something else is not kept; to leave that out would tear a hole into the conversation.
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


# -- keeping


def keeping(form: Mapping[str, Any], sent: Sequence[Item], response: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the node of a response as it was at its end; `sent` are the items that it was sent."""
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
    """An item under an id that tells where it lies, if it has none of its own."""
    kind = text_in(item, "type") or "message"
    item_id = text_in(item, "id") or f"{_PREFIXES.get(kind, 'item')}_{unique}_i{number}"
    return {"type": kind, **item, "id": item_id}
