"""Heavy work runs in a thread, light work at once; either way its result and its errors come back."""

from __future__ import annotations

import threading

import pytest

from proxy.core.errors import BadRequest
from proxy.net.tasks import offload_if

pytestmark = pytest.mark.anyio


async def test_light_work_is_done_at_once() -> None:
    assert await offload_if(False, threading.get_ident) == threading.get_ident()


async def test_heavy_work_is_done_in_another_thread() -> None:
    assert await offload_if(True, threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("heavy", [False, True])
async def test_errors_come_back(heavy: bool) -> None:
    def fail() -> None:
        raise BadRequest("no")

    with pytest.raises(BadRequest, match="no"):
        await offload_if(heavy, fail)


@pytest.mark.parametrize("heavy", [False, True])
async def test_arguments_arrive(heavy: bool) -> None:
    assert await offload_if(heavy, sorted, [2, 1], reverse=True) == [2, 1]
