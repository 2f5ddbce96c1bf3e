import asyncio

import httpx
import pytest

from proxy.backends.base import Flow, Probe, Reply
from proxy.net import flows
from proxy.net.flows import FlowRunner, Traced
from tests.net.fake_server import FakeServer

pytestmark = pytest.mark.anyio


def ask(*paths: str) -> Flow[list[Reply]]:
    replies = []
    for path in paths:
        reply = yield Probe("GET", path)
        replies.append(reply)
    return replies


async def test_a_flow_that_asks_nothing_needs_no_server() -> None:
    server = FakeServer({})
    assert await FlowRunner(server.transport, "http://h").trace(ask()) == Traced([], reached=False, complete=True)
    assert server.requests == []


async def test_requests_carry_headers_and_json() -> None:
    server = FakeServer({"/api/show": {}})

    def show() -> Flow[Reply]:
        return (yield Probe("POST", "/api/show", {"model": "ünï"}))

    runner = FlowRunner(server.transport, "http://h:1/root/", headers=[(b"authorization", b"Bearer k")])
    await runner.run(show())
    request = server.requests[0]
    assert (request.method, str(request.url)) == ("POST", "http://h:1/root/api/show")
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["content-type"] == "application/json"
    assert request.content == '{"model":"ünï"}'.encode()
    assert request.extensions["timeout"]["read"] == 5.0


async def test_no_path_is_read_twice() -> None:
    server, refused = FakeServer({"/a": {"one": 1}, "/b": Reply(400, {"error": "no"})}), Reply(400, {"error": "no"})
    replies = await FlowRunner(server.transport, "http://h").run(ask("/a", "/b", "/a"))
    assert replies == [Reply(200, {"one": 1}), refused, Reply(200, {"one": 1})]
    assert server.asked == ["/a", "/b"]


async def test_an_endless_body_is_given_up_as_one_that_is_not_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "LARGEST_REPLY", 10)
    server = FakeServer({"/a": {"long": "x" * 100}})
    assert await FlowRunner(server.transport, "http://h").run(ask("/a")) == [Reply(200)]


@pytest.mark.parametrize("failure", [httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadTimeout, httpx.ReadError])
async def test_a_dead_server_is_tried_once_per_flow(failure: type[httpx.TransportError]) -> None:
    server = FakeServer({})
    server.failure = failure
    outcome = await FlowRunner(server.transport, "http://h").trace(ask("/a", "/b", "/c"))
    assert outcome == Traced([Reply(0)] * 3, reached=False, complete=False)
    assert server.asked == ["/a"]


async def test_a_silent_server_is_given_up() -> None:
    server = FakeServer({"/a": {}})
    server.gate.clear()
    assert await FlowRunner(server.transport, "http://h", timeout=0.01).run(ask("/a")) == [Reply(0)]


async def test_an_impossible_address_is_a_failed_probe() -> None:
    server = FakeServer({})
    assert await FlowRunner(server.transport, "http://h:port").run(ask("/a")) == [Reply(0)]


@pytest.mark.parametrize(
    ("status", "complete"), [(200, True), (401, True), (404, True), (501, True), (503, False), (429, False)]
)
async def test_a_reply_for_the_moment_makes_the_outcome_incomplete(status: int, *, complete: bool) -> None:
    server = FakeServer({"/a": Reply(status, {})})
    outcome = await FlowRunner(server.transport, "http://h").trace(ask("/a"))
    assert (outcome.reached, outcome.complete) == (True, complete)


async def test_cancelling_is_not_swallowed() -> None:
    server = FakeServer({"/a": {}})
    server.gate.clear()
    runner = FlowRunner(server.transport, "http://h")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await runner.run(ask("/a"))
