"""A client that leaves at any point: its backend is left too, nothing remains, and the next request works."""

import socket
from contextlib import suppress

import httpx
import orjson
import pytest

from tests.fakes import wait_until
from tests.faults.stage import LONG, SHORT, Stage, body, on_stage, planned
from tests.faults.table import Fault, Point


def request_bytes(stage: Stage, point: Point, *, stream: bool) -> bytes:
    content = orjson.dumps(body(point, stream=stream, last=LONG if point is Point.RESUMING else SHORT))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer a\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@pytest.mark.parametrize("point", Point, ids=lambda point: point.value)
def test_a_client_leaves_while_the_backend_is_silent(point: Point, stream: bool) -> None:
    """The backend falls silent at the point, for longer than anyone would wait; then the client goes."""
    with on_stage(silence=60.0) as stage:
        if point is not Point.PROBING:
            assert stage.ask(Point.BEFORE, stream=stream).kind == "whole"
        stage.fake.plans = planned(point, Fault.STALLED)
        url = httpx.URL(stage.proxy.url)
        with socket.create_connection((url.host, url.port or 80)) as client:
            client.sendall(request_bytes(stage, point, stream=stream))
            wait_until(lambda: stage.fake.struck)
        if point is Point.PROBING:
            # What is asked of the backend itself serves whoever comes next, and ends by its own bound.
            stage.fake.heal()
            stage.fake.server.call(stage.fake.server.drop)
        assert stage.settled() == []
        stage.fake.heal()
        assert stage.ask(Point.BEFORE, stream=stream).kind == "whole"
        assert stage.settled() == []
        assert stage.fake.doubled == []


@pytest.mark.parametrize("size", [0.2, 0.9], ids=["in the head", "in the body"])
def test_a_client_leaves_while_it_asks(size: float) -> None:
    with on_stage() as stage:
        url = httpx.URL(stage.proxy.url)
        said = request_bytes(stage, Point.BEFORE, stream=True)
        with socket.create_connection((url.host, url.port or 80)) as client:
            client.sendall(said[: int(len(said) * size)])
        assert stage.settled() == []
        assert stage.ask(Point.BEFORE, stream=True).kind == "whole"
        assert len(stage.fake.chats()) == 1


def test_a_client_leaves_again_and_again_in_mid_stream() -> None:
    with on_stage() as stage:
        stage.fake.delay = 0.01
        for _ in range(10):
            with (
                suppress(httpx.ReadError),
                stage.proxy.client.stream(
                    "POST", "/v1/chat/completions", json=body(Point.BEFORE, stream=True, last=1000)
                ) as response,
            ):
                next(response.iter_bytes())
        assert stage.settled() == []
        assert stage.fake.doubled == []
