"""Running a program through Spillway."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any

from proxy.commands.launch.programs import PROGRAMS, Place, Program, Start
from proxy.commands.launch.serving import NoServer, models_of, spillway
from proxy.config import environment
from proxy.core.settings import Settings

NOT_INSTALLED = 127
"""As shells have it."""
_SIGNALLED = 128
"""The same: the number of the signal that ended a program is added."""

_NO_CHAT = re.compile(r"embed|rerank|whisper|tts|ocr|guard|bge-|moderation", re.IGNORECASE)
"""Names of models that do not chat."""


def launch(
    settings: Settings, name: str, *, model: str | None, serving: Sequence[str], arguments: Sequence[str]
) -> int:
    """Run a program with the user's `arguments`, and return its exit status.

    Args:
        settings: where Spillway is, and its keys.
        name: of the program, one of `PROGRAMS`.
        model: id of the model that it is given; None: the one that suits it best.
        serving: arguments of `spillway serve`, for one that has to be started.
        arguments: the program's own.
    """
    program = PROGRAMS[name]
    path = shutil.which(program.name)
    if path is None:
        _say(f"{program.name} is not installed; this brings it: {program.install}")
        return NOT_INSTALLED
    key = settings.api_keys[0] if settings.api_keys else None
    try:
        with spillway(settings, serving) as url, tempfile.TemporaryDirectory(prefix="spillway-launch-") as folder:
            place = _place(url, key, model, Path(folder))
            start = program.start(place)
            _say(_banner(program, place))
            return _run([path, *start.arguments, *arguments], start)
    except (NoServer, LookupError) as error:
        _say(str(error.args[0]))
        return 1


def choose_model(models: Sequence[Mapping[str, Any]], wanted: str | None) -> Mapping[str, Any]:
    """Return the model that is `wanted`, else the one that suits an agent best: managed, with tools of its own, a large window.

    Of those that are alike the first.

    Raises:
        LookupError: there is no such model, or none at all; its text says what to do.
    """
    if wanted is not None:
        found = next((model for model in models if model["id"] in (wanted, f"{wanted}:latest")), None)
        if found is None:
            ids = [model["id"] for model in models]
            near = get_close_matches(wanted, ids, n=3, cutoff=0.3) or ids[:3]
            raise LookupError(f"no backend lists the model {wanted!r}; there are {', '.join(near) or 'none'}")
        return found
    if not models:
        raise LookupError("no backend lists a model: load one, and see `spillway check`")
    return max(models, key=_suits)


def _suits(model: Mapping[str, Any]) -> tuple[bool, bool, bool, int]:
    known = model["spillway"]
    chats = _NO_CHAT.search(model["id"]) is None
    return chats, bool(known["managed"]), model.get("supports_tools") is True, known["window"] or 0


def _place(url: str, key: str | None, model: str | None, folder: Path) -> Place:
    """Find the model to use.

    Raises:
        NoServer: the models are not to be had.
        LookupError: there is no such model.
    """
    listed = models_of(url, key)
    chosen = choose_model(listed["data"], model)
    return Place(
        url=url,
        key=key,
        model=chosen["id"],
        window=chosen["spillway"]["window"],
        virtual_window=chosen["spillway"]["virtual_window"],
        catalog={"models": listed["models"]},
        folder=folder,
    )


def _run(command: Sequence[str], start: Start) -> int:
    """Run to its end whatever the keyboard says, which says it to the program too; one who stops us stops it."""
    inherited = {name: value for name, value in environment().items() if name not in start.without}
    with subprocess.Popen(command, env={**inherited, **start.environment}) as process:  # noqa: S603 - the user's own program

        def pass_on(number: int, _: FrameType | None) -> None:
            process.send_signal(number)

        before = signal.signal(signal.SIGTERM, pass_on)
        try:
            while True:
                try:
                    status = process.wait()
                    break
                except KeyboardInterrupt:
                    continue
        finally:
            signal.signal(signal.SIGTERM, before)
    return status if status >= 0 else _SIGNALLED - status


def _banner(program: Program, place: Place) -> str:
    window = "unknown" if place.window is None else f"{place.window:,} tokens"
    return f"{program.name} works with {place.model} (window: {window}) through {place.url}"


def _say(text: str) -> None:
    print(f"spillway: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a command line tool prints
