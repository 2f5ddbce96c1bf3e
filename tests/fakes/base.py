"""The part of a fake that speaks HTTP: routes, records, canned failures, keys, and who is there."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

from tests.fakes.http import Exchange, Recorded
from tests.fakes.model import Brain, FakeModel, Refused
from tests.fakes.server import BackgroundServer, Receive, Scope, Send
from tests.fakes.tokens import FakeTokenizer, Template
from tests.fakes.waiting import Gate

Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]

CHAT = "/v1/chat/completions"


@dataclass(slots=True)
class _Canned:
    status: int
    body: Any
    headers: list[tuple[str, str]] = field(default_factory=list)
    path: str = CHAT


class HttpFake:
    """A server that records everything and answers by its table of routes.

    Options are the public class attributes in lower case; the constructor takes them by name.
    """

    kind: ClassVar[str]
    root: ClassVar[str] = ""
    """Path under which the API lives, without `/v1`."""
    chat_paths: ClassVar[tuple[str, ...]] = (CHAT,)
    """Where chats are taken, below `root`."""

    api_key: str | None = None
    """Refuse requests without this key, with 401 in the kind's own shape."""
    keep: int = 1000
    """Requests kept in `requests`; older ones are forgotten, the counters are not."""
    gzip: bool = False
    """Compress whole responses for clients that accept it."""
    tokens_per_chunk: int | tuple[int, ...] = 1
    """Several numbers take turns."""
    delay: float = 0.0
    """Seconds before each chunk."""
    prompt_delay: float = 0.0
    """Seconds before the first chunk."""
    gate: Gate | None = None
    """Holds every generation; a reply may bring one of its own."""
    letters: int = 4
    """Density of the tokenizer: letters per token."""
    keep_alive: float = 75.0
    """Seconds an idle connection is kept open."""
    place: tuple[str, int] = ("127.0.0.1", 0)
    """Address and port; 0 picks a free one."""

    def __init__(
        self, models: Sequence[FakeModel] | None = None, brain: Brain | None = None, *, window: int = 4096, **options: Any
    ) -> None:
        for name, value in options.items():
            if name.startswith("_") or not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no option {name!r}")
            setattr(self, name, value)
        self.models = list(models) if models is not None else [FakeModel("fake-model", window)]
        self.brain: Brain = brain or self.default_brain()
        self.requests: list[Recorded] = []
        self.served = self.active = self.cancelled = self.overflows = self.cuts = 0
        self.invalid_histories: list[str] = []
        self.history_notes: list[str] = []
        self.crashes: list[Exception] = []
        """What went wrong inside the fake or its brain; raised again at the end of the `with` block."""
        self._canned: deque[_Canned] = deque()
        self._templates: dict[tuple[int, int], Template] = {}
        self.routes: dict[str, Handler] = {}
        self.prefix_routes: dict[str, Handler] = {}
        self.add_routes()
        self.server = BackgroundServer(self._serve, keep_alive=self.keep_alive, place=self.place)

    # What a kind fills in

    def default_brain(self) -> Brain:
        raise NotImplementedError

    def add_routes(self) -> None:
        """Fill the tables: `METHOD /path`, below `root`."""

    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        del type_
        return {"error": {"message": message, "code": status, **extra}}

    def unauthorized(self) -> Refused:
        return Refused(401, self.error(401, "Unauthorized"))

    def malformed(self) -> Refused:
        return Refused(400, self.error(400, "invalid JSON", "invalid_request_error"))

    def common_headers(self) -> list[tuple[str, str]]:
        return []

    def exchange(self, scope: Scope, receive: Receive, send: Send) -> Exchange:
        return Exchange(scope, receive, send)

    async def unknown(self, exchange: Exchange) -> None:
        await exchange.answer(404, self.error(404, "Not Found"))

    def precheck(self, exchange: Exchange) -> None:
        """Raise `Refused` for what is wrong before any route is looked at."""

    # For tests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}{self.root}"

    @property
    def response_bytes(self) -> list[bytes]:
        """Body of each recorded response as it was sent."""
        return [request.response for request in self.requests]

    def chats(self) -> list[Recorded]:
        paths = {self.root + path for path in self.chat_paths}
        return [request for request in self.requests if request.path in paths]

    def fail_next(
        self, status: int, body: Any = b"", headers: Iterable[tuple[str, str]] = (), *, path: str = CHAT, times: int = 1
    ) -> None:
        """Answer the next requests for `path` (`*`: any) with this; status 0 drops the connection."""
        self._canned.extend(_Canned(status, body, list(headers), path) for _ in range(times))

    def template(self, model: FakeModel) -> Template:
        key = (model.letters or self.letters, model.template_overhead)
        if key not in self._templates:
            self._templates[key] = Template(model, FakeTokenizer(key[0]))
        return self._templates[key]

    def start(self) -> Self:
        """Serve; a stopped fake comes back on the same port, with all it remembers."""
        self.server.start()
        return self

    def stop(self) -> None:
        """Drop every connection and stop serving."""
        self.server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None and self.crashes:
            raise self.crashes[0]

    # One request

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self.exchange(scope, receive, send)
        exchange.zip_json = self.gzip
        exchange.headers = self.common_headers()
        task = asyncio.current_task()
        assert task is not None
        self.active += 1
        watch: asyncio.Task[None] | None = None
        try:
            await exchange.read()
            self._record(exchange.request)
            watch = asyncio.get_running_loop().create_task(_watch(exchange, task))
            await self._answer(exchange)
        except asyncio.CancelledError:
            if exchange.request.ended == "running":
                exchange.request.ended = "cut" if self.server.stopping else "cancelled"
                self.cancelled += exchange.request.ended == "cancelled"
            task.uncancel()
        except Exception as crash:
            self.crashes.append(crash)
            raise
        finally:
            self.active -= 1
            if watch is not None:
                watch.cancel()

    def _record(self, request: Recorded) -> None:
        self.served += 1
        self.requests.append(request)
        if len(self.requests) > self.keep:
            del self.requests[: len(self.requests) - self.keep]

    async def _answer(self, exchange: Exchange) -> None:
        try:
            if await self._fail(exchange):
                return
            self._check_key(exchange.request)
            self.precheck(exchange)
            await self._route(exchange.request)(exchange)
        except Refused as refused:
            if refused.body is None:
                refused = self.malformed()
            self.overflows += refused.overflow
            await self.refuse(exchange, refused)

    async def refuse(self, exchange: Exchange, refused: Refused) -> None:
        await exchange.answer(refused.status, refused.body, refused.headers)

    async def _fail(self, exchange: Exchange) -> bool:
        path = exchange.request.path.removeprefix(self.root)
        paths = {path, "*", *((CHAT,) if path in self.chat_paths else ())}
        canned = next((entry for entry in self._canned if entry.path in paths), None)
        if canned is None:
            return False
        self._canned.remove(canned)
        if canned.status == 0:
            await exchange.cut()
        else:
            await exchange.answer(canned.status, canned.body, canned.headers)
        return True

    def _check_key(self, request: Recorded) -> None:
        if self.api_key is None or request.path in self.open_paths():
            return
        given = {request.header("authorization"), f"Bearer {request.header('x-api-key')}"}
        if f"Bearer {self.api_key}" not in given:
            raise self.unauthorized()

    def open_paths(self) -> set[str]:
        return set()

    def _route(self, request: Recorded) -> Handler:
        path = request.path.removeprefix(self.root) if request.path.startswith(self.root) else "?"
        key = f"{request.method} {path}"
        if key in self.routes:
            return self.routes[key]
        fitting = [prefix for prefix in self.prefix_routes if key.startswith(prefix)]
        return self.prefix_routes[max(fitting, key=len)] if fitting else self.unknown


async def _watch(exchange: Exchange, task: asyncio.Task[None]) -> None:
    await exchange.departure()
    exchange.gone = exchange.request.ended == "running"
    if exchange.gone and not exchange.sticky:
        task.cancel()
