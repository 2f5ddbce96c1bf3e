"""No request holds up the others: whatever is sent, the loop comes to something else every 50 ms."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Scope
from typing_extensions import override

from proxy.app import create_app
from proxy.core.settings import BackendSetting, ModelOverrides, Settings
from tests.histories import assistant, call, tool, user
from tests.watchdog import Watchdog, slowness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BUDGET = 0.05
"""Seconds."""
ROOM = 3
"""Times the budget that a test allows: what a collector of garbage or another allocator adds is none of ours."""
WINDOW = 8192
SUMMARY = "Goal: go on with the work. Nothing was decided so far, several things were looked at. " * 4


class Body(httpx.AsyncByteStream):
    """Bytes that are there already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class Backend(httpx.AsyncBaseTransport):
    """Answers at once and says next to nothing; costs nothing itself."""

    def __init__(self) -> None:
        self.asked = 0

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return _json({"object": "list", "data": [{"id": "m", "object": "model"}]})
        assert isinstance(request.stream, httpx.AsyncByteStream)
        sent = b"".join([part async for part in request.stream])
        self.asked += 1
        if b'"stream":true' not in sent[-400:]:
            return _json({"choices": [{"index": 0, "message": assistant("ok"), "finish_reason": "stop"}]})
        said = {"index": 0, "delta": {"role": "assistant", "content": SUMMARY}, "finish_reason": "stop"}
        frame = json.dumps({"id": "x", "created": 1, "model": "m", "choices": [said]}).encode()
        kind = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=kind, stream=Body(b"data: %b\n\ndata: [DONE]\n\n" % frame))


def _json(value: Any) -> httpx.Response:
    kind = {"content-type": "application/json"}
    return httpx.Response(200, headers=kind, stream=Body(json.dumps(value).encode()))


@asynccontextmanager
async def proxy(backend: Backend) -> AsyncIterator[ASGIApp]:
    """The real application, called in this process, so that its CPU time is all there is."""
    chosen: dict[str, Any] = {
        "store": "memory://",
        "models": {"m": ModelOverrides(window=WINDOW)},
        "backends": (BackendSetting(name="b", url="http://127.0.0.1:9"),),
    }
    app = create_app(Settings(**chosen), transport=backend)
    async with app.router.lifespan_context(app):
        gc.collect()
        gc.freeze()  # as the command does: what other tests have left is not to be looked through here
        yield app


async def post(app: ASGIApp, body: bytes, *, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    parts = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope: Scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
    await app({**scope, "query_string": b"", "client": ("127.0.0.1", 1)}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def chat(messages: Sequence[dict[str, Any]], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def between(*messages: dict[str, Any]) -> bytes:
    """Messages in the middle of a conversation, which have to be summarised."""
    return chat([user("a"), *messages, assistant("c"), user("d")])


def texts(count: int) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "x"} for _ in range(count)]


def image(size: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'iVBORw0K' * (size // 8)}"}}


def offered(number: int) -> dict[str, Any]:
    fields = {f"p{field}": {"type": "string", "description": "It. That."} for field in range(6)}
    return {"type": "function", "function": {"name": f"t{number}", "parameters": {"type": "object", "properties": fields}}}


MB = 10**6
COMPACT = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM."
ABSURD: dict[str, Callable[[], bytes]] = {
    "20,000 results in reverse": lambda: between(
        assistant(None, tool_calls=[call(n) for n in range(20_000)]), *(tool(n, "r") for n in reversed(range(20_000)))
    ),
    "1.8 MB of results without calls": lambda: between(*(tool(n, "result " * 6) for n in range(18_000))),
    "500,000 parts in one message": lambda: between(assistant("b"), user("") | {"content": texts(500_000)}),
    "25,000 parts in one result": lambda: between(tool(1, "") | {"content": texts(25_000)}),
    "100,000 messages": lambda: chat([user(f"m{n}") for n in range(100_000)]),
    "a million keys": lambda: chat([user("a")], x={str(n): n for n in range(MB)}),
    "lists in lists": lambda: chat([user("a")], x=[[[] for _ in range(100)] for _ in range(5000)]),
    "nesting without end": lambda: b'{"messages":' + b"[" * MB + b"]" * MB + b"}",
    "20 MB of broken JSON": lambda: chat([user("x" * 20 * MB)])[:-1],
}
"""What is refused at once."""
HOSTILE: dict[str, Callable[[], bytes]] = {
    "10 MB of spaces around JSON": lambda: b" " * 5 * MB + chat([user("a")]) + b"\n" * 5 * MB,
    "5 MB of spaces": lambda: between(assistant("b"), user(" " * 5 * MB)),
    "2 MB of newlines": lambda: between(assistant("x" + "\n" * 2 * MB + "y")),
    "results in reverse": lambda: between(
        assistant(None, tool_calls=[call(n) for n in range(4000)]), *(tool(n, "r") for n in reversed(range(4000)))
    ),
    "results without calls": lambda: between(*(tool(n, "result " * 6) for n in range(2000))),
    "10,000 messages": lambda: chat(
        [(user, assistant)[n % 2](f"this is number {n} of them, and it is short") for n in range(9_999)]
    ),
    "19,900 parts of a user": lambda: between(assistant("b"), user("") | {"content": texts(19_900)}),
    "19,900 parts of an assistant": lambda: between(assistant("") | {"content": texts(19_900)}),
    "19,900 parts of a result": lambda: between(
        assistant(None, tool_calls=[call(1)]), tool(1, "") | {"content": texts(19_900)}
    ),
    "1,500 tools": lambda: chat([user("a")], tools=[offered(n) for n in range(1500)]),
    "16 MB in one message": lambda: between(assistant("b"), user("word and word " * (16 * MB // 14))),
    "5 MB without a space": lambda: between(assistant("b"), user("qwxzkjvbpygf" * (5 * MB // 12))),
    "words of 100,000 letters": lambda: between(user(" ".join("ab"[n % 2] * 100_000 for n in range(20)))),
    "3 MB of punctuation": lambda: between(assistant("b"), user("!?.,;:-" * (3 * MB // 7))),
    "3 MB of digits": lambda: between(assistant("b"), user("1234567890" * (3 * MB // 10))),
    "16 MB of images": lambda: between(user("") | {"content": [image(4 * MB) for _ in range(4)]}),
    "100 system messages of 64 kB": lambda: chat(
        [user(f"It is 10:{n % 60:02} on day {n}. " + "1,2 of 3 " * 7000) | {"role": "system"} for n in range(100)] + [user("a")]
    ),
    "marks that open": lambda: chat(
        [
            user("a"), assistant("[TOOL_RESULT]" * 50_000), user("<tool_result tool_name='x'>" * 30_000),
            assistant("<tool_call>{" * 30_000), user("d"),
        ]
    ),
    "blocks of programs that open": lambda: chat(
        [user("<file>\n" * 150_000), assistant("b"), user("  ```\n" * 150_000 + "<file>")]
    ),
    "brackets": lambda: between(assistant("<" * 2 * MB), user("[" * 2 * MB), assistant("`" * 2 * MB)),
    "an agent's 4 MB": lambda: between(
        *(m for n in range(400) for m in (assistant(None, tool_calls=[call(n)]), tool(n, "some word " * 1000)))
    ),
    "an agent's own compaction of 2 MB": lambda: chat(
        [(user, assistant)[n % 2]("some word " * 1000) for n in range(200)] + [user(COMPACT)]
    ),
    "a transcript of 2 MB to be compacted": lambda: chat(
        [user("<conversation>\n" + "user: hello there, it is me\n" * (2 * MB // 28) + f"</conversation>\n{COMPACT}")]
    ),
    "400 orphans in a small body": lambda: between(*(tool(n, "r") for n in range(400))),
}  # fmt: skip
"""What is answered, or refused for its length when it could not be made shorter."""


def too_long(blocked: float) -> bool:
    """Whether a block is too long, on this machine: how slow that is is found out only where it matters."""
    return blocked >= ROOM * BUDGET and blocked >= ROOM * BUDGET * slowness()


async def longest_block(body: bytes) -> tuple[float, int, bytes, int]:
    """CPU seconds for which a request blocked the loop; what it was answered, and what the backend was asked."""
    backend = Backend()
    async with proxy(backend) as app:
        await post(app, chat([user("a")]))
        backend.asked = 0
        with Watchdog() as watchdog:
            status, said = await post(app, body)
    return watchdog.longest, status, said, backend.asked


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.rows(2)
async def test_the_loop_goes_on(name: str) -> None:
    blocked, status, said, asked = await longest_block(HOSTILE[name]())
    assert status == 200 or b"context_length_exceeded" in said, said[:300]
    assert asked <= 25
    assert not too_long(blocked)


@pytest.mark.parametrize("name", ABSURD)
@pytest.mark.rows(3)
async def test_what_is_absurd_is_refused_at_once(name: str) -> None:
    blocked, status, said, asked = await longest_block(ABSURD[name]())
    assert status == 400
    assert json.loads(said)["error"]["message"]
    assert asked == 0
    assert not too_long(blocked)


PASSED: dict[str, Callable[[], bytes]] = {
    "20 MB of texts": lambda: _with_model(b'"input":' + json.dumps(["some words " * 20] * 90_000).encode()),
    "20 MB of objects": lambda: _with_model(b'"input":[' + b'{"a":1},' * (5 * MB // 2) + b"0]"),
    "20 MB of numbers": lambda: _with_model(b'"input":[' + b"0.0123456," * (2 * MB) + b"0]"),
    "10 MB of spaces": lambda: b" \n" * (5 * MB) + _with_model(b'"input":"a"'),
    "10 MB of spaces inside": lambda: _with_model(b'"input":"a",' + b" \n" * (5 * MB)),
    "20 MB of quotation marks": lambda: _with_model(b'"input":"' + b'\\"' * (10 * MB) + b'"'),
}
"""Requests that are passed on, whose model stands behind all else."""


def _with_model(rest: bytes) -> bytes:
    return b"{" + rest + b',"model":"m"}' if not rest.rstrip().endswith(b",") else b"{" + rest + b'"model":"m"}'


@pytest.mark.parametrize("name", PASSED)
async def test_the_loop_goes_on_while_what_is_passed_on_is_looked_through(name: str) -> None:
    body, backend = PASSED[name](), Backend()
    async with proxy(backend) as app:
        await post(app, chat([user("a")]))
        with Watchdog() as watchdog:
            status, _ = await post(app, body, path="/v1/embeddings")
    assert (status, backend.asked) == (200, 2)
    assert not too_long(watchdog.longest)


async def test_others_are_served_meanwhile() -> None:
    backend = Backend()
    async with proxy(backend) as app:
        await post(app, chat([user("a")]))
        heavy = asyncio.ensure_future(post(app, HOSTILE["an agent's 4 MB"]()))
        for number in range(21):
            status, _ = await post(app, chat([user(f"question {number}")]))
            assert status == 200
        assert not heavy.done()
        assert (await heavy)[0] == 200


async def test_what_is_kept_and_gone_on_from_holds_up_nobody() -> None:
    items = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "some word " * 500} for n in range(399)]
    async with proxy(Backend()) as app:
        await post(app, chat([user("a")]))
        with Watchdog() as watchdog:
            asked = json.dumps({"model": "m", "input": items}).encode()
            status, said = await post(app, asked, path="/v1/responses")
            assert status == 200, said[:300]
            on = {"model": "m", "input": "go on", "previous_response_id": json.loads(said)["id"]}
            status, said = await post(app, json.dumps(on).encode(), path="/v1/responses")
            assert status == 200, said[:300]
            status, said = await post(app, asked, path="/v1/responses/compact")
            assert status == 200, said[:300]
    assert not too_long(watchdog.longest)
