"""Pins: texts at the end of a conversation's system prompt, word for word, whatever becomes of its history.

A pin that a message set is read from the history, where the client sends that message again on each turn: so a history that was
edited has the pins that it shows, without a store. All pins are also stored under the newest messages of their conversation. From
there come those set on the page and, where a client has dropped its oldest messages, those set in them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from textwrap import shorten
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from typing_extensions import override

from proxy.addon import AddOn, Command
from proxy.addons.commands import commands_in
from proxy.addons.history import Conversation
from proxy.backends.profile import ModelKey
from proxy.core.errors import BadRequest, Conflict, plural
from proxy.core.history.marks import defanged
from proxy.core.jsontext import HEAVY
from proxy.core.request import Message, text_of
from proxy.emulation.prompt import extended
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.outcome import Outcome
from proxy.store import Store
from proxy.tokens.meter import Meter

HEADING = "Pinned by the user, word for word. It holds for every answer:"
SHARE = 8
"""Tokens of the window for each that pins may take."""
_NEAR, _LATEST = 256, 3
"""Newest messages under which stored pins are looked for, and names under which they are stored."""
_SET, _REMOVED, _LISTED, _FAILED = (
    "Pinned,",
    "Unpinned:",
    "Pins of this conversation:",
    "Nothing was pinned or unpinned:",
)
"""Marks of answers to these commands."""
_SHOWN = 80
"""Characters of a pin in an answer that is about another one."""


class Pin(NamedTuple):
    """A pinned text, and whether a message set it, rather than the page."""

    text: str
    said: bool


@dataclass(slots=True, eq=False)
class _Pins:
    """Pins of a request's conversation, those that its history shows first."""

    shown: list[str] = field(default_factory=list)
    newest: str = ""
    """What the user said last, which `/pin` alone pins."""
    names: Sequence[str] = ()
    """Names under which they are stored; empty while no answer tells the conversation from others that begin alike."""
    all: list[Pin] = field(default_factory=list)


class Pins(AddOn):
    """Puts pins into prompts, and changes them by commands and for viewers."""

    def __init__(self, store: Store, meter: Meter) -> None:
        self._store, self._meter = store, meter
        self._pins: WeakKeyDictionary[Outcome, _Pins] = WeakKeyDictionary()
        """Pins by the outcome of a request that is still remembered."""
        self.commands = {
            "/pin": Command(self._pin, (_SET, _FAILED), takes_text=True),
            "/pins": Command(self._list, (_LISTED,)),
            "/unpin": Command(self._unpin, (_REMOVED, _FAILED)),
        }

    @override
    async def complete(self, job: Job) -> None:
        """Add the conversation's pins, and those set for the model, to the system prompt."""
        if job.background:
            return
        prompt, pins = job.prompt, _shown(job.received.messages, self.commands)
        self._pins[job.outcome] = pins
        # Many conversations begin with the same message, so only those from the first answer on lead to pins. And a cache key
        # may be shared by all conversations of a client, so it names none.
        roles, named = [message.get("role") for message in prompt.sent], not job.request.conversation
        links = prompt.links[roles.index("assistant") :] if "assistant" in roles else ()
        names = [job.outcome.conversation] if job.outcome.conversation and named else []
        names += [link.hex() for link in links[: -_NEAR - 1 : -1]]
        stored = await self._store.document(owner_of(job.exchange.tenant), *names) if names else None
        others = [Pin(*each) for each in (stored or {}).get("pins", ())]
        shown = [Pin(text, said=True) for text in pins.shown]
        pins.all = [
            *shown,
            *(each for each in others if each.text not in pins.shown and (prompt.misses_messages or not each.said)),
        ]
        pins.names = names[:_LATEST]
        if pins.all:  # a conversation that goes on finds them under its newest messages, whatever its client drops
            await self._store_pins(job.exchange.tenant, pins)
        overrides = job.settings.matching(job.route.model) if job.settings.models else ()
        texts = [*(text for each in overrides for text in each.pins), *(pin.text for pin in pins.all)]
        costs = await self._costs(job.key, texts) if texts else []
        if texts := [text for text, used in zip(texts, accumulate(costs), strict=True) if used <= _most(job.window)]:
            job.outcome.add("pinned", pins=len(texts))
            last = dict(prompt.system[-1]) if prompt.system else {"role": "system"}
            last["content"] = extended(last.get("content"), "\n\n", "\n- ".join((HEADING, *map(defanged, texts))))
            job.prompt = replace(prompt, system=[*prompt.system[:-1], last], as_received=False)

    async def _store_pins(self, tenant: str, pins: _Pins) -> None:
        for name in pins.names:
            await self._store.put_document(owner_of(tenant), name, {"pins": pins.all})

    async def _costs(self, key: ModelKey, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text, in a thread if that may take long."""
        heavy = sum(map(len, texts)) > HEAVY
        return await offload_if(heavy, lambda: [self._meter.count_text(key, text) for text in texts])

    # -- commands

    async def _pin(self, job: Job, text: str, *_: object) -> str:
        pins, most = self._pins[job.outcome], _most(job.window)
        texts = [*(pin.text for pin in pins.all), text or pins.newest]
        tokens = sum(await self._costs(job.key, texts))
        if not texts[-1]:
            return f"⚠️ {_FAILED} write `/pin TEXT`; `/pin` alone pins your last message."
        if tokens > most:
            return f"⚠️ {_FAILED} {plural(len(texts), 'pin')} of {tokens:,} tokens; an eighth of the window is {most:,}."
        pins.all.append(Pin(texts[-1], said=True))
        await self._store_pins(job.exchange.tenant, pins)
        bound = f" of at most {most:,}" if job.window else ""
        return f"📌 {_SET} {plural(tokens, 'token', form=',')}{bound}. `/pins` lists, `/unpin {len(texts)}` removes."

    async def _list(self, job: Job, *_: object) -> str:
        lines = "".join(f"\n{number}. {pin.text}" for number, pin in enumerate(self._pins[job.outcome].all, 1))
        return f"📌 {_LISTED}{lines or ' none. `/pin TEXT` sets one, `/pin` alone pins your last message.'}"

    async def _unpin(self, job: Job, number: str, *_: object) -> str:
        pins, at = self._pins[job.outcome], _index(number)
        if not 0 <= at < len(pins.all):
            return f"⚠️ {_FAILED} write the number of a pin, as in `/unpin 1`; `/pins` lists them."
        removed = pins.all.pop(at).text
        await self._store_pins(job.exchange.tenant, pins)
        return f"📌 {_REMOVED} {shorten(removed, _SHOWN, placeholder='…')}"

    # -- for viewers

    async def read(self, conversation: Conversation) -> dict[str, Any]:
        """Describe the pins of a conversation."""
        outcome = conversation.newest.outcome
        pins, window = self._pins.get(outcome) or _Pins(), outcome.sent.window
        tokens = sum(await self._costs(outcome.key, [pin.text for pin in pins.all]))
        return {"pins": [pin._asdict() for pin in pins.all], "tokens": tokens, "most": window and window // SHARE}

    async def change(self, conversation: Conversation, texts: Sequence[str]) -> dict[str, Any]:
        """Replace the pins that viewers set in a conversation, and describe all of its pins.

        Raises:
            Conflict: no answer tells the conversation yet from others that begin alike.
            BadRequest: they are too long.
        """
        outcome = conversation.newest.outcome
        pins = self._pins.get(outcome) or _Pins()
        if not pins.names:
            raise Conflict("Pins can be set here from the second turn of a conversation on.", code="too_short")
        said = [pin for pin in pins.all if pin.said]
        changed = [*said, *(Pin(text, said=False) for text in texts if text not in (pin.text for pin in said))]
        if sum(await self._costs(outcome.key, [pin.text for pin in changed])) > _most(outcome.sent.window):
            raise BadRequest("Pins may take an eighth of the window: pin less.", param="pins")
        pins.all = changed
        await self._store_pins(conversation.tenant, pins)
        return await self.read(conversation)


def _shown(messages: Sequence[Message], table: Mapping[str, Command]) -> _Pins:
    """Read the pins in a history: of its commands, those that were carried out, as their answers show."""
    pins, found = _Pins(), commands_in(messages, table)
    for at, message in enumerate(messages if found else ()):
        (name, argument), text = found.get(at, ("", "")), text_of(message).strip()
        following = text_of(messages[at + 1]) if at + 1 < len(messages) else ""
        if message.get("role") == "user" and not text.startswith("/"):
            pins.newest = text
        elif name == "/pin" and _SET in following:
            pins.shown.append(argument or pins.newest)
        elif name == "/unpin" and _REMOVED in following:
            pins.shown = [each for place, each in enumerate(pins.shown) if place != _index(argument)]
    return pins


def owner_of(tenant: str) -> str:
    """Return the owner of a tenant's stored pins, each under a conversation's name or the digest of a history in hexadecimal digits."""
    return f"{tenant}|pins"


def _most(window: int | None) -> float:
    """Return the most tokens that pins may take; unlimited while the window is unknown, since nothing is compacted then."""
    return math.inf if window is None else window // SHARE


def _index(number: str) -> int:
    """Return the index of the pin with this number; -1 for anything else."""
    return int(number) - 1 if number.isdecimal() else -1
