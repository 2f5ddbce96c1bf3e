"""Who is counted for which connection, and who is turned away."""

from __future__ import annotations

import asyncio
from math import inf

import pytest
from typing_extensions import override

from proxy.errors import Overloaded, TooManyConnections
from proxy.server import Guard, Limits

pytestmark = pytest.mark.anyio


class Idle:
    """A connection on which nothing happens."""

    arriving = inf

    def check(self, now: float) -> None:
        pass

    def give_up(self) -> None:
        pass


def admitted(guard: Guard, *addresses: str) -> list[str]:
    refused = [guard.admit(Idle(), address) for address in addresses]
    return ["in" if each is None else type(each).__name__ for each in refused]


async def test_one_address_gets_its_share_and_no_more() -> None:
    guard = Guard(Limits(connections=10, per_address=2))
    assert admitted(guard, *["203.0.113.5"] * 3, "203.0.113.6") == ["in", "in", "TooManyConnections", "in"]


async def test_all_together_get_what_there_is() -> None:
    guard = Guard(Limits(connections=2, per_address=0))
    assert admitted(guard, "203.0.113.5", "203.0.113.6", "203.0.113.7") == ["in", "in", "Overloaded"]


async def test_what_is_closed_makes_room() -> None:
    guard = Guard(Limits(connections=10, per_address=1))
    first, second = Idle(), Idle()
    assert guard.admit(first, "203.0.113.5") is None
    assert guard.admit(second, "203.0.113.5") is not None
    guard.gone(second)  # it was never counted
    assert admitted(guard, "203.0.113.5") == ["TooManyConnections"]
    guard.gone(first)
    assert admitted(guard, "203.0.113.5") == ["in"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1", ""])
async def test_this_machine_has_no_bound_of_its_own(address: str) -> None:
    """A proxy in front of Spillway has all clients' connections."""
    assert admitted(Guard(Limits(per_address=1)), address, address) == ["in", "in"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:203.0.113.5", "203.0.113.5", True),
        ("::ffff:203.0.113.5", "::ffff:203.0.113.6", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
async def test_who_has_one_address_of_version_6_has_many(one: str, other: str, *, same: bool) -> None:
    told = admitted(Guard(Limits(per_address=1)), one, other)
    assert told == ["in", "TooManyConnections" if same else "in"]


async def test_the_refusals_say_what_to_do() -> None:
    guard = Guard(Limits(connections=1, per_address=1))
    assert guard.admit(Idle(), "203.0.113.5") is None
    of_one, of_all = guard.admit(Idle(), "203.0.113.5"), guard.admit(Idle(), "203.0.113.6")
    assert isinstance(of_one, TooManyConnections)
    assert isinstance(of_all, Overloaded)
    assert (of_one.status, of_all.status) == (429, 503)
    assert "SPILLWAY_MAX_CONNECTIONS_PER_ADDRESS" in of_one.message
    assert "SPILLWAY_MAX_CONNECTIONS" in of_all.message


class Broken(Idle):
    """A connection that can't be checked."""

    @override
    def check(self, now: float) -> None:
        raise OSError("its socket is gone")


class Counting(Idle):
    """One that counts how often it is."""

    def __init__(self) -> None:
        self.checks = 0
        self.often = asyncio.Event()

    @override
    def check(self, now: float) -> None:
        self.checks += 1
        if self.checks == 3:
            self.often.set()


async def test_one_that_cannot_be_checked_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    guard, others = Guard(Limits(timeout=0.01)), [Counting(), Counting()]
    for watched in (others[0], Broken(), others[1]):
        guard.admit(watched, "127.0.0.1")
    async with asyncio.timeout(20):
        for each in others:
            await each.often.wait()
    assert "could not be checked" in caplog.text
