from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.engine.process import ServerProcess, running
from tests.fakes.waiting import wait_until

SLOW = "import time; print('ready at noon'); print('more', flush=True); time.sleep(60)"


def test_the_rest_of_the_ready_line_is_given(tmp_path: Path) -> None:
    with running(["-c", SLOW], ready="ready ", log=tmp_path / "log") as (process, line):
        assert line == "at noon"
        assert process.pid > 0


def test_everything_printed_is_in_the_log(tmp_path: Path) -> None:
    code = "import sys; print('warming up'); print('ready'); sys.stderr.write('late words')"
    with running(["-c", code], ready="ready", log=tmp_path / "log") as (process, _):
        wait_until(lambda: process.text().endswith("late words"))
        assert process.text() == "warming up\nready\nlate words"


def test_a_server_that_ends_too_early_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="ended with 3:\nno model here"),
        running(["-c", "print('no model here'); exit(3)"], ready="ready", log=tmp_path / "log"),
    ):
        pytest.fail("it never was ready")


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    process = ServerProcess(["-c", "import time; time.sleep(60)"], "ready", tmp_path / "log", None)
    with pytest.raises(RuntimeError, match="not ready after"):
        process.wait_ready(0.2)
    assert process.stop() != 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal that can be ignored")
def test_a_server_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    with running(["-c", code], ready="ready", log=tmp_path / "log") as (process, _):
        began = time.monotonic()
        assert process.stop(seconds=0.2) == -9
        assert time.monotonic() - began < 5
