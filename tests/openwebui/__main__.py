"""Play the scenes: `python -m tests.openwebui [SCENE…]`."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.openwebui import scenes, trouble
from tests.openwebui.chat import BROWSERS, find_browser
from tests.openwebui.stage import Stage, say, stage
from tests.openwebui.webui import PROGRAM

SHOTS = Path(__file__).parent / "shots"
SCENES: tuple[Callable[[Stage], None], ...] = (
    *(scenes.model_list, scenes.compaction, scenes.pause, scenes.pauses, scenes.tasks, scenes.own_compaction, scenes.tools),
    *(scenes.real_engine, trouble.stop_answer, trouble.stop_compaction, trouble.stop_pause, trouble.error_in_answer),
    *(trouble.connection_lost, trouble.backend_gone),
)


def main() -> int:
    """Exit status: 0 if every scene went well, 1 if not, 2 if something is not installed."""
    names = [scene.__name__ for scene in SCENES]
    parser = argparse.ArgumentParser(prog="python -m tests.openwebui", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--check", action="store_true", help="only look for a browser")
    options = parser.parse_args()
    wanted = options.scenes or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")
    program = find_browser()
    if program is None:
        say(f"No browser found ({', '.join(BROWSERS)}). On Debian and Ubuntu: apt-get install chromium")
        return 2
    if options.check:
        return 0
    if not PROGRAM.exists():
        say(f"Open WebUI is not installed in {PROGRAM.parents[1]}; the Makefile does that.")
        return 2
    # An end from outside is an ordinary exit, so that every process is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    SHOTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spillway-openwebui-") as folder:
        failed = play(program, Path(folder), [scene for scene in SCENES if scene.__name__ in wanted])
    say(f"\nPictures: {SHOTS}")
    if failed:
        say(f"Failed: {', '.join(failed)}")
    say(f"{len(wanted) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def play(program: str, folder: Path, wanted: list[Callable[[Stage], None]]) -> list[str]:
    """Play scenes one after another, also after a failure; the names of those that failed."""
    failed: list[str] = []
    say("Starting a backend, an engine, Spillway and Open WebUI (a minute, the first time several) …")
    with stage(program, folder, SHOTS) as running:
        for scene in wanted:
            say(f"\n{scene.__name__}: {scene.__doc__}")
            began = time.monotonic()
            logged = len(running.proxy.log)
            try:
                scene(running)
                running.proxy.check(logged)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the other scenes are played
                failed.append(scene.__name__)
                told = "\n    ".join(str(problem).split("\n")[:6])  # a picture of the page in words may follow
                say(f"    FAILED  {type(problem).__name__}: {told}")
                say(f"    Spillway's log:\n{running.proxy.log[logged:]}")
                running.chat.shot(f"failed-{scene.__name__}")
            say(f"    {time.monotonic() - began:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
