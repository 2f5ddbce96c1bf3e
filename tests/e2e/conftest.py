"""The real proxy and the real engine, for tests of the two together."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.clients.staging import stages
from tests.engine.fixtures import StartEngine, echo_engine, engine, instruct_engine, walk_engine
from tests.engine.server import Engine
from tests.engine.spillway import SharedSpillway, Spillway, StartSpillway, spillway_server
from tests.engine.tap import Tap, tapped

__all__ = ["echo_engine", "engine", "instruct_engine", "proxy_of", "shared_proxies", "spillway", "stages", "walk_engine"]


@pytest.fixture
def echo_tap(echo_engine: Engine) -> Iterator[Tap]:
    with tapped(echo_engine.url) as running:
        yield running


@pytest.fixture
def instruct_tap(instruct_engine: Engine) -> Iterator[Tap]:
    with tapped(instruct_engine.url) as running:
        yield running


@pytest.fixture
def spillway(tmp_path: Path) -> Iterator[StartSpillway]:
    """Factory of proxies. A test fails if one of them printed a traceback, and a failure shows their logs."""
    numbers = itertools.count()
    started: list[Spillway] = []
    with ExitStack() as stack:

        def start(urls: Sequence[str], /, **settings: Any) -> Spillway:
            log = tmp_path / f"spillway-{next(numbers)}.log"
            started.append(stack.enter_context(spillway_server(urls, log=log, **settings)))
            return started[-1]

        yield start
        for proxy in started:
            sys.stdout.write(proxy.log)


@pytest.fixture(scope="session")
def shared_proxies(engine: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpillway]:
    """One proxy for each engine and kind, started when it is first wanted and ended before the engines are."""
    started: dict[tuple[str, bool], Spillway] = {}
    with ExitStack() as stack:

        def of(engine: Engine, *, repeating: bool = False) -> Spillway:
            wanted = engine.url, repeating
            if wanted not in started:
                log = tmp_path_factory.mktemp("proxy") / f"spillway-{engine.model}.log"
                started[wanted] = stack.enter_context(spillway_server([engine.url], log=log, repeating=repeating))
            return started[wanted]

        yield of


@pytest.fixture
def proxy_of(shared_proxies: SharedSpillway) -> Iterator[SharedSpillway]:
    """The shared proxy in front of an engine, under a key of this test's own.

    A test fails if the proxy printed a traceback meanwhile, and a failure shows what it logged.
    """
    used: list[tuple[Spillway, int]] = []

    def of(engine: Engine, *, repeating: bool = False) -> Spillway:
        proxy = shared_proxies(engine, repeating=repeating)
        used.append((proxy, len(proxy.log)))
        return replace(proxy, key=uuid4().hex)

    yield of
    for proxy, since in used:
        sys.stdout.write(proxy.log[since:])
        proxy.check(since)
