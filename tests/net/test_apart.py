"""Heavy work runs in a thread, light work at once; either way its result and its errors come back."""

from __future__ import annotations

import threading

import pytest

from proxy.errors import BadRequest
from proxy.net.apart import apart

pytestmark = pytest.mark.anyio


async def test_light_work_is_done_at_once() -> None:
    assert await apart(False, threading.get_ident) == threading.get_ident()


async def test_heavy_work_is_done_in_another_thread() -> None:
    assert await apart(True, threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("heavy", [False, True])
async def test_errors_come_back(heavy: bool) -> None:
    def fail() -> None:
        raise BadRequest("no")

    with pytest.raises(BadRequest, match="no"):
        await apart(heavy, fail)


@pytest.mark.parametrize("heavy", [False, True])
async def test_arguments_arrive(heavy: bool) -> None:
    assert await apart(heavy, sorted, [2, 1], reverse=True) == [2, 1]
