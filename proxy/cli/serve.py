"""`spillway serve`: finds backends, starts the server, and prints what to type next."""

import asyncio
import gc
import logging
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from proxy.addons.log import formatter
from proxy.api.models import listed_models
from proxy.app import create_app, open_wire
from proxy.backends import USUAL
from proxy.backends.profile import ModelProfile, value_of
from proxy.cli import say
from proxy.cli.launch import LISTENING
from proxy.config import check_tokenizers, server_options
from proxy.core.errors import SettingError, printable
from proxy.core.settings import LOOPBACK, BackendSetting, Settings
from proxy.net.flows import discover, failure_at, nearby
from proxy.net.tasks import spawn
from proxy.net.transport import HttpTransport
from proxy.net.upstream import Upstream
from proxy.routing import Router, not_listed
from proxy.server import Server

NOTHING_FOUND = (
    f"No backend is configured, and none answers on the usual ports: {USUAL}. Start one, or name one with "
    "--backend http://HOST:PORT or in SPILLWAY_BACKENDS"
)
_DEMO_NOTE = (
    "No backend answers on the usual ports, so the built-in DEMO model is served (4k window, scripted answers).\n"
    f"For real use start a server at its usual port, which is found within seconds: {USUAL}; or give --backend URL."
)
OPEN_FILES = 65536
"""Limit of open files to set, if the system permits as many."""
# Searched again because a backend that started after Spillway was never found, and the demo answered in its name with
# 200.
DISCOVERY_INTERVAL = 2.0
"""Seconds between two searches for backends while the demo is served."""
MOST_SHOWN = 5
"""Most models of one backend that are printed at the start."""
LOOK_AGAIN = 15.0
"""Seconds between two searches for further backends, if none is configured."""


def run(settings: Settings, _: object) -> int:
    """Serve until interrupted.

    Raises:
        SettingError: there is neither a backend nor the demo, the store cannot be opened, or the address is taken.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.log_format))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # Uvicorn's start-up lines only repeat ours.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.root.level))
    try:  # not on Windows
        import resource  # noqa: PLC0415 - see above

        import uvloop  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        return asyncio.run(_serve(settings))
    # A client takes two open files, and the usual limit is 1,024 (macOS: 256).
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return uvloop.run(_serve(settings))


async def _serve(configured: Settings) -> int:
    # Handle SIGTERM as asyncio's runner handles SIGINT: it cancels this task. An exception raised at any point may be swallowed.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    options = server_options()
    if "uds" not in options:
        await _check_address(configured)
    check_tokenizers(configured)
    async with AsyncExitStack() as stack:
        settings, note = await with_backends(configured, stack)
        # If other machines can reach the server and there are no keys, a token printed at the start opens the page.
        keyless = settings.host not in LOOPBACK and not (settings.api_keys or settings.admin_keys)
        token = secrets.token_urlsafe(18) if keyless else ""
        first = current = create_app(settings, page_token=token)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await (first if scope["type"] == "lifespan" else current)(scope, receive, send)

        async def replace_demo() -> None:
            """Look for backends until one answers, replace the demo by those found, then look for more until cancelled."""
            nonlocal current
            while not (found := await discovered(configured)):  # noqa: ASYNC110 - a program that starts sets no event
                await asyncio.sleep(DISCOVERY_INTERVAL)
            real = create_app(configured.model_copy(update={"backends": found}), page_token=token)
            async with real.router.lifespan_context(real):
                current = real
                await _describe(configured, real.state.services.relay.router)
                say("The demo is off.")
                await look_for_more()

        async def look_for_more() -> None:
            """Look for backends that are started later, and add them, until cancelled."""
            while True:
                await asyncio.sleep(LOOK_AGAIN)
                if new := current.state.add_found(await discovered(configured)):
                    await _describe(configured, current.state.services.relay.router, new)

        server = Server(
            app,
            host=settings.host,
            port=settings.port,
            graceful=settings.graceful_timeout,
            max_connections=settings.max_connections,
            on_started=partial(_ready, settings, options, note=note, token=token, app=first),
            **options,
        )
        if not configured.backends:
            spawn(replace_demo() if note else look_for_more(), name="discovery")
        await server.serve()
        return 0 if server.started else 1


async def _check_address(settings: Settings) -> None:
    """Check that the server can listen at its address, since uvicorn would end the process, and that no backend is there.

    Raises:
        SettingError: the port is taken, the address is not this machine's, or a backend's: a longer way back is found by a header.
    """
    host, port = settings.host, settings.port
    for backend in settings.backends:
        if _is_own(backend.url, settings):
            raise SettingError(f"backend {backend.url} is Spillway itself: name the models' server, or another --port")
    try:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        raise SettingError(
            f"can't listen at {host}:{port}: {os.strerror(error.errno) if error.errno else error}. "
            "If another program, or another Spillway, is there, choose a free port: --port 0"
        ) from None
    server.close()


async def _describe(settings: Settings, router: Router, new: Sequence[Upstream] = ()) -> None:
    """Print the models of each backend (or the `new` ones) with their windows, and what would enlarge a small one; or why there are none.

    A model that a setting names and no backend lists is named too.
    """
    async with open_wire(settings.backends, connect_timeout=5.0, read_timeout=5.0) as wire:
        for upstream in new or router.upstreams:
            failure = await failure_at(upstream.url, wire)
            models = {} if failure else await listed_models(upstream)
            kind = await upstream.backend()
            if models:
                windows = [f"{name} ({_window_of(each.profile)})" for name, each in islice(models.items(), MOST_SHOWN)]
                more = f" and {len(models) - MOST_SHOWN} more" if len(models) > MOST_SHOWN else ""
                title = "a server" if kind.kind == "generic" else kind.title
                say(f"Found {title} at {upstream.url}: {printable(', '.join(windows))}{more}.")
                small = (each for each in models.values() if kind.wider and each.profile.has_small_window)
                for each in islice(small, 1):
                    trained = value_of(each.profile.trained_window)
                    say(f"  {printable(each.id)} was made for {trained:,} tokens: {kind.wider}.")
            elif upstream.wants_clients_keys:
                say(f"The backend at {upstream.url} wants a key, which is not set: clients have to send it.")
            else:
                url = await nearby(upstream.url, wire)
                cure = f"A backend answers at {url}: name that" if url else "`spillway check` says what to do"
                trouble = f"does not answer: {failure}" if failure else "lists no models"
                say(f"Backend {upstream.url} {trouble}. {cure}.")
    if (listed := await router.table()) and not any(each.wants_clients_keys for each in router.upstreams):
        for text in not_listed(settings.helpers, listed):
            say(f"{printable(text)}.")


def _window_of(profile: ModelProfile) -> str:
    if profile.window is None:
        return "not loaded" if profile.provisional else "window unknown"
    return f"{profile.window.value:,} tokens{', not loaded' * profile.provisional}"


async def with_backends(settings: Settings, stack: AsyncExitStack) -> tuple[Settings, str]:
    """Return the settings with backends, and a note for the user: configured backends, else those found, else the demo.

    Raises:
        SettingError: no backend was found, and the demo is switched off.
    """
    if settings.backends:
        return settings, ""
    if found := await discovered(settings):
        return settings.model_copy(update={"backends": found}), ""
    if not settings.demo:
        raise SettingError(NOTHING_FOUND)
    from proxy.demo import create_demo, serve_on_loopback  # noqa: PLC0415 - only who has no backend needs it

    url = await stack.enter_async_context(serve_on_loopback(create_demo()))
    demo = BackendSetting(url=url, name="demo", kind="llamacpp")
    return settings.model_copy(update={"backends": (demo,)}), _DEMO_NOTE


async def discovered(settings: Settings) -> tuple[BackendSetting, ...]:
    """Find backends on the usual ports."""
    async with HttpTransport(connect_timeout=1.0, read_timeout=5.0) as transport:
        return tuple(each for each in await discover(transport, settings.discover) if not _is_own(each.url, settings))


# On a usual port, such as 8080 or Ollama's, Spillway once found itself and added itself as a backend.
def _is_own(url: str, settings: Settings) -> bool:
    """Return whether a URL is where the server listens, or is about to, on this machine."""
    place, here = urlsplit(url), {*LOOPBACK, "0.0.0.0", "::"}  # noqa: S104 - compared, not listened at
    hosts = {place.hostname, settings.host}
    return place.port == settings.port and (len(hosts) == 1 or hosts <= here)


def _ready(settings: Settings, options: Mapping[str, Any], port: int, *, note: str, token: str, app: FastAPI) -> None:
    """Print where the server listens, and what to type next."""
    gc.freeze()  # spare the collector the many objects made at the start
    scheme, host = "https" if "ssl_certfile" in options else "http", settings.host
    root = options.get("uds") or f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{options['root_path']}"
    say(f"{LISTENING}{root}{'' if 'uds' in options else '/v1'}")
    if note:
        say(note)
    # The wildcard address is only for listening; browsers and clients need a real one.
    root = root.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    if "uds" not in options:
        # What is printed elsewhere than in a terminal ends up in a log, where no key of the user's belongs.
        clients, viewers = settings.api_keys, (*settings.admin_keys, *settings.api_keys)
        key, opens = (keys[0] if sys.stdout.isatty() else "KEY" for keys in (clients or ("",), viewers or ("",)))
        header = f" -H {shlex.quote(f'authorization: Bearer {key}')}" if clients else ""
        opens = token or (quote(opens, safe="") if viewers else "")
        say(
            f"Watch it work in a browser: {root}/{opens and f'#key={opens}'}\n"
            f"Point any OpenAI client at {root}/v1, or try:\n"
            f"  curl {root}/v1/models{header}\n"
            f"  curl -N {root}/v1/chat/completions{header} -H 'content-type: application/json' "
            """-d '{"stream": true, "messages": [{"role": "user", "content": "Count to 3000"}]}'"""
        )
    if not note:
        spawn(_describe(settings, app.state.services.relay.router), name="greeting")
