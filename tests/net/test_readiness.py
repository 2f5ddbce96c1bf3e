import asyncio
import logging
from collections.abc import Callable

import httpx
import pytest
from typing_extensions import override

from proxy.net.flows import FlowRunner
from proxy.net.headers import ProxyKeys
from proxy.net.prober import Prober
from proxy.net.upstream import BELIEVED, MakeProber, ReadinessProbe, Upstream
from tests.net.fake_server import Clock, FakeServer
from tests.net.probing import lmstudio, vllm

pytestmark = pytest.mark.anyio


MODELS = {"object": "list", "data": [{"id": "m"}]}


class Server(httpx.AsyncBaseTransport):
    """A backend that answers everything with one status, and its list if it has one; 0 refuses, -1 is silent."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked = 0

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += request.method == "HEAD"
        if self.status == 0:
            raise httpx.ConnectError("refused")
        if self.status < 0:
            await asyncio.Event().wait()
        listing = request.method == "GET" and self.status not in (401, 404)
        return httpx.Response(200 if listing else self.status, json=MODELS if listing else {}, request=request)


def prober_of(server: Server) -> MakeProber:
    return lambda _: Prober(FlowRunner(server, "http://127.0.0.1:9"), kind="vllm")


def readiness(*servers: Server, clock: Callable[[], float] | None = None, patience: float = 5.0) -> ReadinessProbe:
    upstreams = [
        Upstream(
            name=f"b{number}", url="http://127.0.0.1:9", authorization=None, proxy_keys=ProxyKeys(), transport=server,
            prober=prober_of(server),
        )
        for number, server in enumerate(servers, start=1)
    ]  # fmt: skip
    return ReadinessProbe(upstreams, clock=clock or Clock(), patience=patience)


@pytest.mark.parametrize(
    ("status", "answers"),
    [*((status, True) for status in (200, 401, 405, 429, 500)), *((status, False) for status in (404, 502, 503, 504, 0))],
)
async def test_any_answer_of_a_server_that_has_models_counts(status: int, answers: bool) -> None:
    assert await readiness(Server(status)).kinds() == {"b1": "vllm" if answers else None}


async def test_silence_is_no_answer() -> None:
    assert await readiness(Server(-1), Server(200), patience=0.01).kinds() == {"b1": None, "b2": "vllm"}


async def test_an_answer_is_believed_for_a_while_and_shared() -> None:
    server, clock = Server(), Clock()
    ready = readiness(server, clock=clock)
    assert await asyncio.gather(*(ready.kinds() for _ in range(5))) == [{"b1": "vllm"}] * 5
    clock.now += BELIEVED / 2
    await ready.kinds()
    assert server.asked == 1
    server.status = 0
    clock.now += BELIEVED / 2
    assert await ready.kinds() == {"b1": None}


async def test_a_backend_is_named_by_its_kind_once_that_is_known_and_keeps_the_name() -> None:
    server, clock = FakeServer(vllm(4096)), Clock()
    upstream = Upstream(
        name="b",
        url="http://127.0.0.1:9",
        authorization=None,
        proxy_keys=ProxyKeys(),
        transport=server.transport,
        prober=lambda _: Prober(FlowRunner(server.transport, "http://127.0.0.1:9"), clock=clock),
    )
    upstream.by_kind, seen = True, list[dict[str, str | None]]()
    ready, away = ReadinessProbe([upstream], clock=clock), httpx.ConnectError
    for failure, replies in ((away, {}), (None, vllm(4096)), (away, {}), (None, lmstudio(4096))):
        server.failure, server.replies = failure, replies
        clock.now += 400
        seen.append(await ready.kinds())
    assert seen == [{"b": None}, {"vllm-9": "vllm"}, {"vllm-9": None}, {"vllm-9": "lmstudio"}]


async def test_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    server, clock = Server(), Clock()
    ready = readiness(server, clock=clock)
    caplog.set_level(logging.INFO, logger="spillway")
    for status in (0, 200, 200, 0, 503, 200, 200, 0):
        server.status = status
        clock.now += BELIEVED
        await ready.kinds()
    told = [record.getMessage().removeprefix("backend b1 ") for record in caplog.records]
    silent = "does not answer, or lists no model; `spillway check` says why"
    assert told == [silent, "answers again"] * 2 + [silent]
