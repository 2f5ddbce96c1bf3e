"""llama-swap: one name for each of several servers, of which one runs at a time.

From its README, `docs/configuration.md`, `config.example.yaml` and `internal/{server,router,process,swaputil}` as of
2026-08 (MIT licence): the shapes of its lists and errors, what loads a model and what does not, and that a stream which
was opened to tell of the loading gets the server's answer behind that, whatever its status was.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson
from typing_extensions import override

from tests.fakes.base import CHAT, HttpFake
from tests.fakes.chat import CREATED
from tests.fakes.forwarding import Forwarding
from tests.fakes.http import EVENT_STREAM, Exchange
from tests.fakes.model import Refused

_CODES = {404: ("invalid_request_error", "not_found"), 409: ("invalid_request_error", "conflict")}


@dataclass
class Entry:
    """One of its models: the server that it starts, and what its configuration says."""

    server: HttpFake
    context: int = 0
    """`capabilities.context`; 0: not set."""
    command: str = "llama-server --port ${PORT} -m model.gguf"
    starts: bool = True
    """Whether the command brings a server up."""
    running: bool = field(default=False, init=False)
    serving: int = field(default=0, init=False)


class LlamaSwapFake(Forwarding):
    """`entries` by name. A name that is pinned means another one (`profiles`)."""

    kind: ClassVar[str] = "llamaswap"

    send_loading_state: bool = False

    def __init__(self, entries: Mapping[str, Entry], **options: Any) -> None:
        self.entries = dict(entries)
        self.pins: dict[str, str] = {}
        self.loads: list[str] = []
        """Which models were loaded, in order."""
        super().__init__([], **options)

    @override
    def add_routes(self) -> None:
        # They find their event loop when they are first waited for.
        self._swapping, self._served = asyncio.Lock(), asyncio.Event()
        for path in ("/v1/models", "/models"):
            self.routes[f"GET {path}"] = self.model_list
        for path in (CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"):
            self.routes[f"POST {path}"] = self.dispatch
        self.routes |= {
            "GET /api/version": self.version, "GET /running": self.list_running, "POST /api/models/unload": self.unload_all,
            "GET /props": self.props,
        }  # fmt: skip
        for method in ("GET", "POST"):
            self.prefix_routes[f"{method} /upstream/"] = self.upstream

    @override
    def error(self, status: int, message: str, type_: str = "", **extra: Any) -> Any:
        kind, code = _CODES.get(status, ("server_error", "internal_error"))
        return {"src": "llama-swap", "error": {"message": message, "type": kind, "param": None, "code": code}}

    @override
    def stop(self) -> None:
        super().stop()
        for entry in self.entries.values():
            if entry.running:
                entry.server.stop()

    # Telling of itself

    async def version(self, exchange: Exchange) -> None:
        """`GET /api/version`, where Ollama has one too."""
        await exchange.answer(200, {"version": "238", "commit": "0bdb372", "build_date": "2026-08-22"})

    async def model_list(self, exchange: Exchange) -> None:
        """`GET /v1/models`: all that are configured."""
        data = [self._listed(name, entry) for name, entry in sorted(self.entries.items())]
        pins = [self._listed(name, None) for name in self.pins if name not in self.entries]
        await exchange.answer(200, {"object": "list", "data": [*data, *pins]})

    def _listed(self, name: str, entry: Entry | None) -> dict[str, Any]:
        status = "loaded" if entry is not None and entry.running else "unloaded"
        meta: dict[str, Any] = {"llamaswap": {"type": "profile" if entry is None else "model"}}
        told = {"id": name, "object": "model", "created": CREATED, "owned_by": "llama-swap", "meta": meta}
        if entry is not None and entry.context:
            meta["n_ctx"] = told["context_length"] = entry.context
        return {**told, "status": {"value": status}}

    async def list_running(self, exchange: Exchange) -> None:
        """`GET /running`: what is not stopped, with its command."""
        data = [
            {
                "model": name, "state": "ready", "cmd": entry.command, "proxy": entry.server.url, "ttl": 0, "name": "",
                "description": "",
            }
            for name, entry in sorted(self.entries.items())
            if entry.running
        ]  # fmt: skip
        await exchange.answer(200, {"running": data})

    # Unloading, which waits for nobody

    async def unload_all(self, exchange: Exchange) -> None:
        await self._unload(self.entries)
        await exchange.answer(200, {"msg": "ok"})

    async def _unload(self, names: Any) -> None:
        for name in names:
            entry = self.entries[name]
            if entry.running:
                entry.running = False
                await asyncio.to_thread(entry.server.stop)

    # Serving

    async def dispatch(self, exchange: Exchange) -> None:
        """To the server of the model that the body names, which is loaded for it."""
        body = exchange.json_object()
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise Refused(404, self.error(404, "no model id could be identified"))
        pinned = self.pins.get(name)
        if pinned is not None:
            body["model"] = pinned
        content = exchange.request.body if pinned is None else orjson.dumps(body)
        await self._serve_by(pinned or name, exchange, exchange.request.path, content, body)

    async def props(self, exchange: Exchange) -> None:
        """`GET /props?model=…`: loads the model, whatever `autoload` says."""
        name = exchange.request.params.get("model")
        if not name:
            raise Refused(404, self.error(404, "no model id could be identified"))
        await self._serve_by(self.pins.get(name, name), exchange, "/props", b"", {})

    async def upstream(self, exchange: Exchange) -> None:
        """`/upstream/{model}/…`: the server's own path; loads the model too."""
        rest = exchange.request.path.removeprefix("/upstream/")
        names = [name for name in self.entries if rest == name or rest.startswith(name + "/")]
        if not names:
            raise Refused(404, self.error(404, "model not found"))
        name = max(names, key=len)
        await self._serve_by(name, exchange, rest.removeprefix(name) or "/", exchange.request.body, {})

    async def _serve_by(self, name: str, exchange: Exchange, path: str, content: bytes, body: dict[str, Any]) -> None:
        entry = self.entries.get(name)
        if entry is None:
            raise Refused(404, self.error(404, "no router for requested model"))
        loading = self.send_loading_state and body.get("stream") is True and not entry.running
        if loading:
            await self._tell_of_loading(exchange, name)
        if not await self._load(name):
            error = self.error(500, "unspecific error: upstream command exited prematurely")
            await self._send_whole(exchange, 500, orjson.dumps(error), [])
            return
        entry.serving += 1
        try:
            query = f"?{exchange.request.query}" if exchange.request.query else ""
            await self.hand_on(exchange, entry.server.url + path + query, content)
        finally:
            entry.serving -= 1
            self._served.set()

    async def _tell_of_loading(self, exchange: Exchange, name: str) -> None:
        await exchange.open(200, EVENT_STREAM, [("cache-control", "no-cache")])
        for text in ("━━━━━", "\n", f"llama-swap loading model: {name}", "\n", ".", "Done! (0.10s)", "\n", "━━━━━", "\n"):
            frame = {"choices": [{"delta": {"reasoning_content": text}}]}
            await exchange.write(b"data: " + orjson.dumps(frame) + b"\n\n")

    async def _load(self, name: str) -> bool:
        """Load a model; those that run are stopped when they have served what they are at."""
        async with self._swapping:
            entry = self.entries[name]
            if entry.running:
                return True
            while any(other.running and other.serving for other in self.entries.values()):
                self._served.clear()
                await self._served.wait()
            await self._unload([other for other in self.entries if self.entries[other].running])
            if not entry.starts:
                return False
            await asyncio.to_thread(entry.server.start)
            entry.running = True
            self.loads.append(name)
            return True
