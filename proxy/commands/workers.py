"""`spillway serve` with several workers: processes that serve one port, and the one that keeps them.

uvicorn's own supervisor does not fit: its workers are `uvicorn.Server`, not ours, and it stops them with a signal, which in
a terminal, or under systemd, each has had already and would take for the second one, that ends all answers at once.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from typing_extensions import override

from proxy.app import create_app
from proxy.commands.serve import collect, limits_of, log_to_stderr, uvicorn_run
from proxy.errors import SettingError
from proxy.server import Server, within_files
from proxy.settings import Settings, hand_on
from proxy.telemetry.summed import FOLDER, WorkerPlace

BACKLOG = 2048
"""Connections that wait to be accepted; as uvicorn."""
PAUSE = 1.0
"""Seconds before a worker is started anew that has ended by itself."""
FORCED = 5.0
"""Seconds that a worker gets to end once it is told to do so at once; then it is killed."""

_STOP, _NOW = b"stop", b"now"
_SERVES = ""
"""What a worker says when it serves; anything else is why it can't."""

_log = logging.getLogger("spillway.workers")
_spawning = multiprocessing.get_context("spawn")


# -- the process that keeps them ---------------------------------------------------------------------


async def serve_with_workers(settings: Settings, started: Callable[[int], None]) -> int:
    """Serve with `settings.workers` processes until a signal comes; the exit status.

    Args:
        settings: with the backends.
        started: is called with the port, once it is served.

    Raises:
        SettingError: the address is taken, or the workers refuse a setting.
    """
    if sys.platform == "win32":
        raise SettingError("SPILLWAY_WORKERS: on Windows there can be one only")
    # Of a class that can be handed to another process: `load_settings` has one of its own.
    settings = Settings.model_construct(**dict(settings))
    sockets = _listen(settings.host, settings.port)
    try:
        with tempfile.TemporaryDirectory(prefix="spillway-") as folder:
            supervisor = _Supervisor(settings, sockets, Path(folder))
            return await supervisor.run(lambda: started(sockets[0].getsockname()[1]))
    finally:
        for each in sockets:
            each.close()


def _listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host.

    Raises:
        SettingError: it has none, or one is taken.
    """
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            place = (str(address[0]), int(address[1]))
            sockets.append(socket.create_server(place, family=family, backlog=BACKLOG))
    except OSError as error:
        for each in sockets:
            each.close()
        raise SettingError(f"can't listen on {host}, port {port}: {error.strerror or error}") from None
    return sockets


class _Worker:
    """One process, from its start to its end."""

    def __init__(
        self, settings: Settings, sockets: Sequence[socket.socket], folder: Path, number: int
    ) -> None:
        self._wire, theirs = multiprocessing.Pipe()
        self.process = _spawning.Process(
            target=_work, args=(settings, list(sockets), WorkerPlace(folder, number), theirs)
        )
        self.process.start()
        theirs.close()

    async def said(self) -> str | None:
        """What it says first; None: it has ended without a word."""
        await _readable(self._wire.fileno())
        try:
            word: str = self._wire.recv()
        except (EOFError, OSError):
            return None
        return word

    async def ended(self) -> int | None:
        """Its exit status, once it has one: below zero for a signal."""
        await _readable(self.process.sentinel)
        self.process.join()
        self._wire.close()
        return self.process.exitcode

    def tell(self, word: bytes) -> None:
        """Tell it to stop; the second time, at once."""
        with suppress(OSError):
            self._wire.send_bytes(word)
        if word == _NOW:
            asyncio.get_running_loop().call_later(FORCED, self.process.kill)


class _Supervisor:
    """Starts the workers, starts them anew when they end, and stops them."""

    def __init__(self, settings: Settings, sockets: Sequence[socket.socket], folder: Path) -> None:
        self._settings = settings
        self._sockets = sockets
        self._folder = folder
        self._running: dict[int, _Worker] = {}
        self._stopping = asyncio.Event()

    async def run(self, serving: Callable[[], None]) -> int:
        """Keep them until a signal comes; the exit status. `serving` is called when the first one does.

        That one is waited for: what is wrong with a setting is told once, and no two make the store's file.
        """
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop)
        first = self._start(1)
        try:
            if (said := await first.said()) != _SERVES:
                await first.ended()
                if said is not None:
                    raise SettingError(said)
                return 0 if self._stopping.is_set() else 1
            serving()
            others = range(2, self._settings.workers + 1)
            await asyncio.gather(self._keep(1), *map(self._keep, others))
        finally:
            for worker in self._running.values():
                worker.process.kill()
        return 0

    def _start(self, number: int) -> _Worker:
        worker = self._running[number] = _Worker(self._settings, self._sockets, self._folder, number)
        return worker

    async def _keep(self, number: int) -> None:
        """Have a worker run until all are stopped."""
        while True:
            if number not in self._running:
                worker = self._start(number)
                if said := await worker.said():
                    _log.error("worker %d can't serve: %s", number, said)
            status = await self._running[number].ended()
            del self._running[number]
            if self._stopping.is_set():
                return
            _log.warning("worker %d ended with status %s, and is started anew", number, status)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await self._stopping.wait()
                    return

    def _stop(self) -> None:
        word = _NOW if self._stopping.is_set() else _STOP
        self._stopping.set()
        for worker in self._running.values():
            worker.tell(word)


async def _readable(file: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)


# -- a worker ----------------------------------------------------------------------------------------


class _Server(Server):
    """Stops when it is told to by who started it; a signal, however often it comes, is no more than that."""

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGINT:  # of a terminal, which sends it to all: it is told what follows from that
            self.should_exit = True


def _work(settings: Settings, sockets: list[socket.socket], place: WorkerPlace, told: Connection) -> None:
    """Serve until told to stop, or until who started this is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_to_stderr(settings)
    hand_on(FOLDER, str(place.folder))
    try:
        server = _Server(
            create_app(settings, place=place),
            host=settings.host,
            port=settings.port,
            limits=within_files(limits_of(settings)),
            graceful=settings.graceful_timeout,
            started=lambda _: _begun(told),
        )
    except SettingError as error:
        told.send(str(error))
        sys.exit(2)
    threading.Thread(target=_obey, args=(told, server), daemon=True).start()
    sys.exit(uvicorn_run(_served(server, sockets)))


def _begun(told: Connection) -> None:
    collect()
    told.send(_SERVES)


async def _served(server: Server, sockets: list[socket.socket]) -> int:
    await server.serve(sockets)
    return 0 if server.started else 1


def _obey(told: Connection, server: Server) -> None:
    """Stop the server when that is said, or nobody is left to say it."""
    while True:
        try:
            word = told.recv_bytes()
        except (EOFError, OSError):
            server.should_exit = True
            return
        if word == _NOW:
            server.force_exit = True
        server.should_exit = True
