"""The window that the user wants a model to be loaded with: requested once, when the model is first needed."""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from proxy.backends.base import Backend, Memory
from proxy.backends.profile import Fact, ModelProfile, Trust, merge_profiles, value_of
from proxy.net.flows import FlowRunner

_log = logging.getLogger("spillway")

LEAST = 4096
"""Tokens of the smallest window that `auto` asks for; below it the backend chooses."""
_MEMINFO = Path("/proc/meminfo")
_UNIFIED = 0.6
"""Share of memory assumed free for a model if the machine does not report free memory (Metal's limit is two thirds)."""


async def memory_here() -> Memory | None:
    """Read this machine's memory for models: its GPUs' if NVIDIA's tool reports it, else main memory."""
    try:
        tool = await asyncio.create_subprocess_exec(
            *("nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        lines = [line.split(b",") for line in (await tool.communicate())[0].split(b"\n") if line]
        if lines:
            free, total = (sum(map(int, column)) * 2**20 for column in zip(*lines, strict=True))
            return Memory(free, total)
    except (OSError, ValueError):
        pass  # no NVIDIA GPU, or one that does not report its memory (unified memory: `[N/A]`)
    return await asyncio.to_thread(_main_memory)


def _main_memory() -> Memory | None:
    try:
        if _MEMINFO.exists():
            kib = dict(line.split(":", 1) for line in _MEMINFO.read_text().split("\n") if line)
            free, total = (int(kib[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
            return Memory(free, total)
        usable = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _UNIFIED)
        return Memory(usable, usable)
    except (AttributeError, KeyError, OSError, ValueError):
        return None


class WindowRequest:
    """The window requested for one model, and the window granted by its backend, which then applies to every request.

    Args:
        setting: tokens, `auto`, or None if the user set nothing.
        model: its id.
        backend: the name of its backend, for the log.
        here: whether the backend runs on this machine, whose memory can be read.
    """

    def __init__(
        self, setting: int | Literal["auto"] | None, model: str, *, backend: str = "", here: bool = False
    ) -> None:
        self.setting = setting
        self.granted: int | None = None
        """Window in tokens with which the model is loaded; None if not requested yet, or if the backend chooses."""
        self._model, self._name, self._here = model, f"{backend}/{model}", here
        self.became: Literal["", "granted", "smaller", "unknown"] = ""
        """Outcome of the request: granted, `smaller` than requested, or `unknown` if no size could be chosen; empty before it."""
        self._requested: list[int] = []

    def is_pending(self, backend: Backend, reported: ModelProfile) -> bool:
        """Return whether the model still has to be loaded with the window."""
        return not self.became and self._applies(backend, reported)

    @property
    def governs(self) -> bool:
        """Return whether every request has the user's window, whatever its client asks for."""
        return self.setting is not None and (not self.became or self.granted is not None)

    def _applies(self, backend: Backend, reported: ModelProfile) -> bool:
        window = reported.window
        in_cloud = window is not None and window.trust is Trust.LISTED
        return self.setting is not None and backend.sets_windows and not in_cloud

    def merged(
        self, backend: Backend, reported: ModelProfile, learned: ModelProfile, promised: ModelProfile
    ) -> ModelProfile:
        """Merge reported and learned facts with the user's; the granted window replaces the requested one."""
        if self.became and self._applies(backend, reported):
            promised = replace(promised, window=self._granted_of(backend, reported.window))
        merged = merge_profiles(reported, learned, promised)
        return replace(merged, provisional=True) if self.is_pending(backend, reported) else merged

    def _granted_of(self, backend: Backend, loaded: Fact[int] | None) -> Fact[int] | None:
        """Return the granted window, or a smaller one if someone else has reloaded the model and no request can change that."""
        if self.granted is None:
            return None
        holds = loaded is not None and loaded.trust is Trust.LOADED and not backend.reloads
        window = min(self.granted, loaded.value) if loaded is not None and holds else self.granted
        return Fact(window, f"setting ({self.setting}), loaded so", Trust.USER)

    async def load(
        self, backend: Backend, reported: ModelProfile, runner: FlowRunner, body: Mapping[str, Any]
    ) -> int | None:
        """Load the model; return the window that its backend granted, or None if the backend chose one."""
        self._requested = await self._candidates(backend, reported, runner)
        granted = None
        if self._requested:
            granted = await runner.run(backend.load_window(self._model, body, self._requested))
        if granted is None:
            await runner.run(backend.load(self._model, body))
        return granted

    async def _candidates(self, backend: Backend, reported: ModelProfile, runner: FlowRunner) -> list[int]:
        """List the windows to request, largest first."""
        if not self._applies(backend, reported):
            return []
        if self.became:
            return [] if self.granted is None else [self.granted]
        if isinstance(self.setting, int):
            return [self.setting]
        most = value_of(reported.trained_window)
        if not backend.guards_memory:
            most = await runner.run(backend.fitting_window(self._model, await memory_here() if self._here else None))
        return [window for window in ((most or 0) >> step for step in range(8)) if window >= LEAST]

    def settle(self, granted: int | None, backend: Backend, reported: ModelProfile) -> None:
        """Record the outcome of the request and log it once; the granted window is no larger than the loaded model reports."""
        loaded, requested = reported.loaded_window, self._requested
        if not self.is_pending(backend, reported) or (granted is None and loaded is None):
            return  # nothing was requested, or it can't be reached
        self.granted = min(filter(None, (granted, loaded))) if requested else None
        if not requested:
            self.became = "unknown"
            text = "%s: window = auto, but it is not known from here how much fits into its memory: the backend chooses; set a number"
            _log.warning(text, self._name)
        elif granted is None or (self.granted or 0) < requested[-1]:
            self.became = "smaller"
            text = "%s: a window of %d tokens was requested and %d are what it was loaded with: it does not fit into memory, or the model was made for less"
            _log.warning(text, self._name, requested[0], self.granted)
        else:
            self.became = "granted"
            _log.info(
                "%s is loaded with a window of %d tokens, as requested (%s)", self._name, self.granted, self.setting
            )
