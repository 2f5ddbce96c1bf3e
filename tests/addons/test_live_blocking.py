"""Who looks holds up nobody, whatever there is to be looked at."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Scope

from tests.histories import assistant, call, tool, user
from tests.pipeline.test_blocking import BUDGET, ROOM, Backend, between, chat, post, proxy
from tests.watchdog import Watchdog, slowness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOOKED_AT: dict[str, Callable[[], bytes]] = {
    "2,000 messages": lambda: chat([(user, assistant)[n % 2](f"this is number {n} of them, and it is short") for n in range(1_999)]),
    "an agent's 600 kB": lambda: between(*(m for n in range(60) for m in (assistant(None, tool_calls=[call(n)]), tool(n, "some word " * 1000)))),
}  # fmt: skip


async def get(app: ASGIApp, path: str) -> Any:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    scope: Scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
    headers = [(b"host", b"127.0.0.1")]
    await app({**scope, "headers": headers, "query_string": query.encode(), "client": ("127.0.0.1", 1)}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    assert sent[0]["status"] == 200, body[:500]
    return json.loads(body)


@pytest.mark.parametrize("name", LOOKED_AT)
@pytest.mark.rows(1)
async def test_looking_at_a_large_request_holds_up_nobody(name: str) -> None:
    body = LOOKED_AT[name]()
    async with proxy(Backend()) as app:
        await post(app, body)
        with Watchdog() as watchdog:
            (row,) = (await get(app, "/spillway/conversations"))["conversations"]
            await get(app, f"/spillway/conversations/{row['id']}")
            told = await get(app, f"/spillway/requests/{row['request']}/diff?full=true")
        assert row["bar"] is not None
        assert len(told["rows"]) > 1
        assert watchdog.longest < ROOM * BUDGET * slowness()
