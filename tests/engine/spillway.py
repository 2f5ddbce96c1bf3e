"""The real proxy as a process of its own, in front of any backends."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.engine.client import Answer, chat
from tests.engine.process import ServerProcess, running
from tests.engine.server import Engine

READY = "Spillway listening on "
PREFIX = "SPILLWAY_"
TRACEBACK = "Traceback (most recent call last)"
# The echo model can only repeat the newest message, so to Spillway each of its calls is a quotation and not made. Tests of what
# comes after a call do without that rule, which tests/emulation has tests of; everything else is what users run.
_REPEATING = """
import sys
from proxy.cli import main
from proxy.emulation.offer import Offer
Offer.quotes = lambda *_: False
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Spillway:
    """A running proxy. `url` is its root, without `/v1`; `key` the credential its clients use, if any."""

    url: str
    process: ServerProcess = field(repr=False)
    key: str = ""

    @property
    def v1(self) -> str:
        """What a client takes as its base URL."""
        return self.url + "/v1"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.process.text()

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Answer:
        """Ask for a chat completion and read it to its end."""
        return chat(self.url, messages, key=self.key, **fields)

    def check(self, since: int = 0) -> None:
        """Check that nothing went wrong unnoticed in the log, from a position on.

        Raises:
            AssertionError: it has a traceback.
        """
        text = self.log[since:]
        assert TRACEBACK not in text, text


class StartSpillway(Protocol):
    """Starts a proxy in front of backends at these URLs; it lives as long as the test."""

    def __call__(self, urls: Sequence[str], /, **settings: Any) -> Spillway: ...


class SharedSpillway(Protocol):
    """A proxy in front of an engine, which other tests use too: each has a key, and so a history, of its own."""

    def __call__(self, engine: Engine, *, repeating: bool = False) -> Spillway: ...


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    inherited = dict(os.environ)  # noqa: TID251 - handed to a child process, not read
    env = {name: value for name, value in inherited.items() if not name.startswith(PREFIX)}
    # What is done in the background would make a difference from run to run.
    settings = {"store": "memory://", "ahead": "off", **settings}
    for name, value in settings.items():
        env[PREFIX + name.upper()] = value if isinstance(value, str) else json.dumps(value)
    return env


@contextmanager
def spillway_server(urls: Sequence[str], /, *, log: Path, repeating: bool = False, **settings: Any) -> Iterator[Spillway]:
    """Run `python -m proxy serve` on a free port in front of the backends at these URLs.

    Settings go by their names in `proxy.core.settings`. Checkpoints are kept in memory unless `store` says otherwise.
    `repeating`: a call that stands in the newest message counts all the same, for a model that can only repeat it.

    Raises:
        RuntimeError: it did not start; the text has its log.
        AssertionError: it printed a traceback while it ran.
    """
    program = ["-c", _REPEATING] if repeating else ["-m", "proxy"]
    arguments = [*program, "serve", "--port", "0"]
    for url in urls:
        arguments += ["--backend", url]
    with running(arguments, ready=READY, log=log, env=_environment(settings)) as (process, url):
        proxy = Spillway(url=url.removesuffix("/v1"), process=process)
        yield proxy
    proxy.check()
