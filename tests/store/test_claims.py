from __future__ import annotations

import asyncio

import pytest

from proxy.store.claims import LocalClaims
from tests.store.support import HandClock

pytestmark = pytest.mark.anyio


async def test_a_claim_holds_until_it_expires(clock: HandClock) -> None:
    claims = LocalClaims(clock)
    assert await claims.claim("key", 10)
    clock.advance(9.9)
    assert not await claims.claim("key", 10)
    clock.advance(0.2)
    assert not claims.held("key")
    assert await claims.claim("key", 10)


async def test_a_claim_that_is_renewed_holds_on(clock: HandClock) -> None:
    claims = LocalClaims(clock)
    await claims.renew("key", 10)
    assert not claims.held("key"), "what nobody has got can't be renewed"
    assert await claims.claim("key", 10)
    for _ in range(5):
        clock.advance(9)
        await claims.renew("key", 10)
    assert not await claims.claim("key", 10)
    clock.advance(11)
    assert await claims.claim("key", 10)


async def test_claims_that_nobody_released_do_not_pile_up(clock: HandClock) -> None:
    claims = LocalClaims(clock)
    for number in range(5000):
        await claims.claim(f"key {number}", 1)
        clock.advance(0.1)
    assert len(claims._held) <= 300


async def test_who_waits_is_woken_when_the_claim_expires(clock: HandClock) -> None:
    claims = LocalClaims(clock)
    await claims.claim("key", 5)
    waiting = asyncio.ensure_future(claims.wait("key", 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(6)
    await asyncio.wait_for(waiting, 10)
