"""OpenAI's compaction: what a request wishes, and how a compaction that the client sends back is read.

Fields: OpenAI's guide "Compaction" and API reference, "Compact a response" (2026), and PyPI `openai` 3.54.0,
`types/responses/response_compact_params.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.managing import COMPACTION, CompactionRequest, SealedHistory, fingerprint
from proxy.core.request import SYSTEM_ROLES, Message, Unseal
from proxy.dialects.bodies import is_count, text_in
from proxy.dialects.responses.conversation import Item, messages_of

Opened: TypeAlias = dict[str, SealedHistory]
"""What is under the seals of compactions, as far as they are Spillway's own, for this client."""

_TRIGGER = "compaction_trigger"
_UNREAD = "[Earlier messages were compacted by another server, and can't be read here.]"


def without_trigger(items: Sequence[Item]) -> tuple[Sequence[Item], bool]:
    """The items less the one that asks for a compaction, and whether there is one.

    Raises:
        BadRequest: it is not the last one.
    """
    places = [index for index, item in enumerate(items) if text_in(item, "type") == _TRIGGER]
    if not places:
        return items, False
    if places != [len(items) - 1]:
        raise BadRequest(f"`{_TRIGGER}` must be the last item of `input`.", param="input")
    return items[:-1], True


def compaction_in(form: Mapping[str, Any], *, now: bool) -> CompactionRequest | None:
    """The compaction that the client wants of its history; None: it does not ask. `now`: it asks for nothing else.

    Raises:
        BadRequest: `context_management` is malformed.
    """
    wanted = form.get("context_management")
    if wanted is None and not now:
        return None
    listed, trigger = wanted or [], None
    for entry in listed if isinstance(listed, list) else [None]:
        threshold = entry.get("compact_threshold") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or entry.get("type") != COMPACTION or not _may_be(threshold):
            raise BadRequest(
                '`context_management` must be a list of {"type": "compaction", "compact_threshold": TOKENS}.',
                param="context_management",
            )
        trigger = threshold
    return CompactionRequest(trigger=trigger, now=now, worded=False)


def _may_be(threshold: Any) -> bool:
    return threshold is None or is_count(threshold)


def is_compaction(item: Item) -> bool:
    """Return whether it is one, be it Spillway's own or another's."""
    return text_in(item, "type") in (COMPACTION, "compaction_summary")


def open_compactions(items: Sequence[Item], opened: Opened) -> Generator[Unseal, Any, None]:
    """Open the compactions among these items."""
    for item in items:
        seal = text_in(item, "encrypted_content")
        if is_compaction(item) and seal not in opened:
            under = SealedHistory.read((yield Unseal(COMPACTION, seal)))
            if under is not None:
                opened[seal] = under


def since_compaction(items: Sequence[Item], opened: Opened) -> tuple[list[Message], SealedHistory | None]:
    """The messages that items come to, and the compaction that stands for those before it.

    Clients may leave out what a compaction stands for, or send it all the same; what it does not stand for stays.

    Raises:
        BadRequest: one of them is malformed, or of a kind that is not known.
    """
    places = [at for at, item in enumerate(items) if text_in(item, "encrypted_content") in opened]
    if not places:
        return messages_of(list(map(_readable, items))), None
    under = opened[text_in(items[places[-1]], "encrypted_content")]
    before = messages_of([item for item in items[: places[-1]] if not is_compaction(item)])
    system = [message for message in before if message["role"] in SYSTEM_ROLES]
    rest = [
        message for message in before if message["role"] == "user" and fingerprint(message) not in under.fingerprints
    ]
    after = messages_of(list(map(_readable, items[places[-1] + 1 :])))
    return [*(system or under.lead), *under.messages, *rest, *after], under


def _readable(item: Item) -> Item:
    return {"role": "user", "content": _UNREAD} if is_compaction(item) else item
