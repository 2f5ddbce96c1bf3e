"""Detached tasks, and their end with the loop that they run in; heavy work in a thread."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from proxy.core.errors import BadRequest
from proxy.net.tasks import cancel_all, offload_if, running, spawn
from tests.fakes.waiting import PATIENCE


def test_what_another_loop_runs_goes_on_when_one_ends() -> None:
    begun: Future[asyncio.Event] = Future()

    async def waits(asked: asyncio.Event) -> str:
        await asked.wait()
        return "asked"

    async def elsewhere() -> str:
        asked = asyncio.Event()
        task = spawn(waits(asked), name="elsewhere")
        begun.set_result(asked)
        return await task

    async def here() -> bool:
        task = spawn(waits(asyncio.Event()), name="here")
        await cancel_all()
        return task.cancelled()

    ended: Future[str] = Future()
    thread = threading.Thread(target=lambda: ended.set_result(asyncio.run(elsewhere())), daemon=True)
    thread.start()
    asked = begun.result(PATIENCE)
    assert asyncio.run(here())
    (other,) = (task for task in running() if task.get_name() == "elsewhere")
    other.get_loop().call_soon_threadsafe(asked.set)
    assert ended.result(PATIENCE) == "asked"
    thread.join(PATIENCE)


@pytest.mark.anyio
@pytest.mark.parametrize("heavy", [False, True])
async def test_heavy_work_is_done_in_another_thread_and_its_result_and_errors_come_back(heavy: bool) -> None:
    def fail() -> None:
        raise BadRequest("no")

    assert (await offload_if(heavy, threading.get_ident) != threading.get_ident()) is heavy
    assert await offload_if(heavy, sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(BadRequest, match="no"):
        await offload_if(heavy, fail)
