"""For every test: the event loop, hypothesis profiles, no network but loopback."""

import gc
import io
import itertools
import logging
import os
import signal
import socket
import ssl
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from operator import itemgetter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from proxy.addons.log import formatter
from proxy.tokens.families import VOCABULARIES

# The ordinary runs draw the same examples every time, so that they fail for everyone or for no one; `make test-all` draws
# more of them, and new ones are looked for with HYPOTHESIS_PROFILE=deep.
for name, examples in (("fast", 15), ("wide", 100)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
settings.register_profile("deep", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))  # noqa: TID251 - of the tests, not of the proxy

FUZZ_UNTIL = time.monotonic() + 60 * float(os.environ.get("FUZZ_MINUTES", "inf"))  # noqa: TID251 - as above
"""What has not begun by then is left out: `make fuzz` takes the tests in another order each time."""

# A shell starts what runs in the background without it, and the programs that tests start would not hear of it either.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing of the user's is read or written.
for folder in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
    os.environ[folder] = tempfile.gettempdir() + f"/spillway-tests-{os.getpid()}"  # noqa: TID251 - as above

LOOPBACK = ("127.", "::1", "localhost")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage only in what the tests make: going through what is imported took a third of the time to collect them."""
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the real engine and what was given more time than is usual: in the end no worker is alone with the longest."""
    _mark_heavy(items)
    usual = float(config.getini("timeout"))
    items.sort(key=lambda item: (item.get_closest_marker("engine") is None, _seconds(item) <= usual))
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item.module, "running_proxy"):
            item.add_marker(pytest.mark.http)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have one worker run all tests of the real engine: it starts each model once."""
    if item.get_closest_marker("engine"):
        item.add_marker(pytest.mark.xdist_group("engine"))


def _mark_heavy(items: list[pytest.Item]) -> None:
    """Mark as heavy what `rows` leaves to `make test-all`: all rows of a function but so many."""
    functions: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("rows"):
            functions[item.nodeid.partition("[")[0]].append(item)
    for function, rows in functions.items():
        marker = rows[0].get_closest_marker("rows")
        assert marker is not None
        for row in _unlike(rows, marker.args[0], Random(function)):
            rows.remove(row)
        for row in rows:
            row.add_marker(pytest.mark.heavy)


def _unlike(rows: list[pytest.Function], count: int, random: Random) -> list[pytest.Function]:
    """Return the same `count` rows every time: each next one has the most values that no row before it has."""
    rest = {row: set(_values(row)) for row in sorted(rows, key=lambda row: row.nodeid)}
    chosen: list[pytest.Function] = []
    while rest and len(chosen) < count:
        row = max(rest, key=lambda row: (len(rest[row]), random.random()))
        chosen.append(row)
        seen = rest.pop(row)
        rest = {other: values - seen for other, values in rest.items()}
    return chosen


def _values(row: pytest.Function) -> Iterator[tuple[str, object]]:
    """Yield what rows may have in common: values, or their indices where they have no hash."""
    for name, value in row.callspec.params.items():
        try:
            hash(value)
        except TypeError:
            yield name, (row.callspec.indices[name],)
        else:
            yield name, value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Beside the slowest tests, print the seconds of each area: a folder of tests, or a file beside them."""
    if config.getoption("durations") is None:
        return
    areas: dict[str, float] = defaultdict(float)
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            areas["/".join(report.nodeid.partition("::")[0].split("/")[:2])] += report.duration
    terminalreporter.section("seconds by area")
    for area, seconds in sorted(areas.items(), key=itemgetter(1), reverse=True):
        terminalreporter.write_line(f"{seconds:7.1f}  {area}")


def _seconds(item: pytest.Item) -> float:
    """What a test was given on its own account."""
    marker = item.get_closest_marker("timeout")
    return 0.0 if marker is None else float(marker.args[0])


def pytest_runtest_setup() -> None:
    gc.enable()  # which `spillway serve` does when it listens: where a test had it refused, nothing was freed from there on
    if time.monotonic() > FUZZ_UNTIL:
        pytest.skip("FUZZ_MINUTES were over")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Have what asks for it run with a streamed answer, and with a whole one."""
    return bool(request.param)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a running Spillway would write at `debug`."""
    out, log = io.StringIO(), logging.getLogger("spillway")
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter("text"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield out
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True, scope="session")
def _load_once() -> Iterator[None]:
    """Load certificates and vocabularies once per process, not once per proxy: they took five sixths of its start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        for name, load in VOCABULARIES.items():
            patch.setitem(VOCABULARIES, name, cache(load))
        yield


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Refuse connections that leave this machine, and look-ups of names."""
    patch = pytest.MonkeyPatch()
    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
    patch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo))
    yield
    patch.undo()


def _refuse(host: object) -> None:
    if host and not str(host).startswith(LOOPBACK):
        pytest.fail(f"a test wants to reach {host}: only loopback is allowed", pytrace=True)


def _guarded(connect: Any) -> Any:
    def guarded(sock: socket.socket, address: Any) -> Any:
        if sock.family in {socket.AF_INET, socket.AF_INET6}:
            _refuse(address[0])
        return connect(sock, address)

    return guarded


def _guarded_lookup(lookup: Any) -> Any:
    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(host.decode() if isinstance(host, bytes) else host)
        return lookup(host, *args, **kwargs)

    return guarded
