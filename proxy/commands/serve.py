"""`spillway serve`: find backends, start the server, say what to type next."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import AsyncExitStack
from functools import partial

from proxy.app import create_app
from proxy.commands.running import LISTENING
from proxy.errors import SettingError
from proxy.net.discovery import Discovered, discover_all
from proxy.net.transport import open_transport
from proxy.server import Limits, Server, within_files
from proxy.settings import BackendSetting, Settings
from proxy.telemetry.log import FORMAT, OneLine

_NOTHING_FOUND = (
    "no backend is configured and none answers on the usual ports (LM Studio 1234, Ollama 11434, llama.cpp 8080, "
    "vLLM 8000); start one, or name one with --backend URL or SPILLWAY_BACKENDS"
)


def serve(settings: Settings) -> int:
    """Serve until interrupted; the exit status.

    Raises:
        SettingError: no backend and no demo, a store that cannot be opened, an address that is taken.
    """
    log_to_stderr(settings)
    return uvicorn_run(_serve(settings))


def log_to_stderr(settings: Settings) -> None:
    """Have the log of this process written, as it was set."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # The server's own start-up lines say nothing that ours do not.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def uvicorn_run(main: object) -> int:
    """Run a coroutine on uvloop where it exists (not on Windows)."""
    try:
        import uvloop  # noqa: PLC0415 - not installable on Windows
    except ModuleNotFoundError:
        return asyncio.run(main)  # type: ignore[arg-type]  # a coroutine, see serve
    return int(uvloop.run(main))  # type: ignore[arg-type]  # a coroutine, see serve


async def _serve(settings: Settings) -> int:
    async with AsyncExitStack() as stack:
        settings, note = await with_backends(settings, stack)
        if settings.workers > 1:
            from proxy.commands.workers import serve_with_workers  # noqa: PLC0415 - multiprocessing is for these alone

            return await serve_with_workers(
                settings, partial(_ready, settings.host, note=note, watched=False)
            )
        server = Server(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            limits=within_files(limits_of(settings)),
            graceful=settings.graceful_timeout,
            started=partial(_ready, settings.host, note=note),
        )
        await server.serve()
        return 0 if server.started else 1


async def with_backends(settings: Settings, stack: AsyncExitStack) -> tuple[Settings, str]:
    """The settings with backends: the configured ones, else those found locally, else the demo.

    Raises:
        SettingError: there is none, and the demo is switched off.
    """
    if settings.backends:
        return settings, ""
    async with open_transport(connect_timeout=1.0, read_timeout=5.0) as transport:
        found = await discover_all(transport, settings.discover)
    if found:
        note = "Found " + ", ".join(f"{each.kind} at {each.url}" for each in found) + "."
        return settings.model_copy(update={"backends": tuple(map(_backend, found))}), note
    if not settings.demo:
        raise SettingError(_NOTHING_FOUND)
    from proxy.demo import serve_demo  # noqa: PLC0415 - only who has no backend needs it

    url = await stack.enter_async_context(serve_demo())
    note = (
        "No backend answers on the usual ports, so the built-in DEMO model is served (4k window, scripted answers).\n"
        "For real use start LM Studio, Ollama, llama.cpp or vLLM, or give --backend URL, and start again."
    )
    demo = BackendSetting(url=url, name="demo", kind="llamacpp")
    return settings.model_copy(update={"backends": (demo,)}), note


def _backend(found: Discovered) -> BackendSetting:
    return BackendSetting.model_validate({"url": found.url, "name": found.kind, "kind": found.kind})


def limits_of(settings: Settings) -> Limits:
    """What clients may take of the server."""
    return Limits(
        head=settings.max_header,
        timeout=settings.client_timeout,
        keep_alive=settings.keep_alive,
        bodies=settings.max_bodies,
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
    )


def _ready(host: str, port: int, *, note: str, watched: bool = True) -> None:
    """Say where it listens, and what to type next; `watched`: in a browser too."""
    collect()
    _greet(host, port, note=note, watched=watched)


def collect() -> None:
    """Have the collector look for what becomes free from here on: it need not look through what was made at the start."""
    gc.freeze()
    gc.enable()


def _greet(host: str, port: int, *, note: str, watched: bool) -> None:
    host = f"[{host}]" if ":" in host else host
    root = f"http://{host}:{port}"
    base = f"{root}/v1"
    _say(f"{LISTENING}{base}")
    if note:
        _say(note)
    if watched:
        _say(f"Watch it work in a browser: {root}/")
    _say(
        f"Point any OpenAI client at {base}, or try:\n"
        f"  curl {base}/models\n"
        f"  curl -N {base}/chat/completions -H 'content-type: application/json' "
        """-d '{"stream": true, "messages": [{"role": "user", "content": "Count to 3000"}]}'"""
    )


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for the person who started it
