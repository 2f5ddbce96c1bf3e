"""Connections are bound by the files that the process may open."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from proxy.server import Limits
from proxy.server.files import fitting
from tests.engine.spillway import spillway_server
from tests.fakes import GenericFake


@pytest.mark.parametrize(("files", "connections"), [(1024, 480), (70, 3), (10, 1), (65536, 1000)])
def test_there_are_no_more_connections_than_files_for_them(files: int, connections: int) -> None:
    """One for the client, one for its backend."""
    assert fitting(Limits(connections=1000), files).connections == connections


@pytest.mark.slow
def test_the_process_takes_what_files_it_is_allowed(tmp_path: Path) -> None:
    with GenericFake() as fake, spillway_server([fake.url], log=tmp_path / "log") as proxy:
        soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        assert soft >= min(hard if hard != resource.RLIM_INFINITY else 65536, 65536)
