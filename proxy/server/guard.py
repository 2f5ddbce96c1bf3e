"""What all connections share: how many there are and from where, and the clock that ends those which hold things up."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from proxy.errors import ClientError, Overloaded, TooManyConnections
from proxy.exchange import Intake
from proxy.memory import give_back
from proxy.server.limits import GIVE_BACK, PASSED, TURNED_AWAY, Limits

_log = logging.getLogger("spillway.server")


class Watched(Protocol):
    """A connection, as far as it is watched."""

    def check(self, now: float) -> None:
        """End what took too long; `now` in seconds of the loop's clock."""
        ...

    @property
    def arriving(self) -> float:
        """When the body began to arrive that still does, in seconds of the loop's clock; `inf`: there is none."""
        ...

    def give_up(self) -> None:
        """End a request whose body is still arriving, and tell why."""
        ...


class Guard:
    """Admits connections, and looks at each of them once in a while: no timer is set for any request."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.intake = Intake(limits.bodies)
        self._watched: set[Watched] = set()
        self._admitted: dict[Watched, str] = {}
        self._from: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._gave_back = 0.0
        self._pause = min(1.0, limits.timeout / 4)

    def admit(self, connection: Watched, address: str) -> ClientError | None:
        """Count a new connection; why it is turned away, if it is."""
        self._watched.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._sweep)
        limits, place = self.limits, _place(address)
        if limits.per_address and place and self._from[place] >= limits.per_address:
            return TooManyConnections(
                f"There are {limits.per_address} connections from this address already: reuse them, or close some. "
                "For a proxy in front of Spillway raise SPILLWAY_MAX_CONNECTIONS_PER_ADDRESS."
            )
        if len(self._admitted) >= limits.connections:
            return Overloaded(
                f"There are {limits.connections} connections already, which is all that are served at a time: "
                "try again later. Whoever runs this can raise SPILLWAY_MAX_CONNECTIONS."
            )
        self._admitted[connection] = place
        if place:
            self._from[place] += 1
        return None

    @property
    def tells(self) -> bool:
        """Whether one more that is turned away can be told so."""
        return len(self._watched) - len(self._admitted) <= TURNED_AWAY

    def gone(self, connection: Watched) -> None:
        """Forget a connection that is closed."""
        self._watched.discard(connection)
        place = self._admitted.pop(connection, "")
        if place:
            self._from[place] -= 1
            if not self._from[place]:
                del self._from[place]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._watched):
            try:
                connection.check(now)
            except Exception:  # noqa: BLE001 - whatever is wrong with one, the others are watched
                _log.exception("a connection could not be checked")
        if self.intake.short:
            self._make_room(now)
        if self.intake.passed > PASSED and now - self._gave_back > GIVE_BACK:
            self._gave_back, self.intake.passed = now, 0
            give_back()
        going_on = self._watched or self.intake.passed > PASSED
        self._timer = loop.call_later(self._pause, self._sweep) if going_on else None

    def _make_room(self, now: float) -> None:
        """Others found no room for their bodies: the one that has been arriving for longest has had its time."""
        self.intake.short = False
        longest = min(self._watched, key=lambda each: each.arriving, default=None)
        if longest is not None and now - longest.arriving > self.limits.timeout:
            longest.give_up()


def _place(address: str) -> str:
    """Whom an address is counted for; empty for this machine, where proxies in front stand.

    Whoever has one IPv6 address has all those of its /64.
    """
    if address.startswith("127."):
        return ""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return _place(str(parsed.ipv4_mapped))
        return "" if parsed.is_loopback else parsed.exploded[:19]
    return address
