"""Counters for `/metrics` and log lines: figures and names, never prompts or keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

_log = logging.getLogger("spillway")

Key = tuple[str, str]
"""Backend name and model id."""

_FILLS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.97, 1.0, 1.5, 2.0, 5.0)
_NAMES = ("backend", "model")


class Telemetry:
    """Counts what the stages report. Each application has its own registry, so two can live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Chat requests by what was done to them.", "action")
        self._saved = self._counter("saved_tokens", "Prompt tokens taken out of histories.")
        self._compactions = self._counter("compactions", "Histories shortened, by kind of reduction.", "kind")
        self._summaries = self._counter("summaries", "Summaries asked for.", "ok")
        self._pauses = self._counter("pauses", "Answers paused, by reason.", "reason")
        self._resumes = self._counter("resumes", "Answers resumed, by way of continuation.", "continuation")
        self._repairs = self._counter(
            "repairs", "Histories mended that a backend would have refused.", "kind"
        )
        self._calls = self._counter(
            "emulated_tool_calls", "Tool calls read from text, by form and outcome.", "form", "outcome"
        )
        self._overflows = self._counter("overflows", "Prompts refused by the backend for their size.")
        self._cuts = self._counter("silent_cuts", "Prompts that the backend shortened without a word.")
        self._failures = self._counter(
            "upstream_failures", "Backends that could not be reached or broke off."
        )
        self._fill = Histogram(
            "spillway_fill", "Prompt tokens as a fraction of the window.", _NAMES, buckets=_FILLS,
            registry=self._registry,
        )  # fmt: skip
        self._children: dict[tuple[str, ...], Counter] = {}
        self._fills: dict[Key, Histogram] = {}
        self._warned: set[Key] = set()
        self._mended: set[tuple[Key, str]] = set()

    def request(self, key: Key, action: str, fill: float | None) -> None:
        """A chat request was answered."""
        self._inc(self._requests, key, action)
        if fill is not None:
            child = self._fills.get(key)
            if child is None:
                child = self._fills[key] = self._fill.labels(*key)
            child.observe(fill)

    def compacted(self, key: Key, kind: str, before: float, after: float) -> None:
        """A history was shortened, or could not be (`before` equals `after`)."""
        if after >= before:
            _log.info("%s/%s: nothing to compact in %d tokens", *key, before)
            return
        self._inc(self._compactions, key, kind)
        self._saved.labels(*key).inc(before - after)
        _log.info("%s/%s: history %s, %d to %d tokens", *key, kind, before, after)

    def summarised(self, key: Key, *, ok: bool) -> None:
        """A summary was asked for."""
        self._inc(self._summaries, key, str(ok).lower())

    def paused(self, key: Key, reason: str) -> None:
        """An answer was paused."""
        self._inc(self._pauses, key, reason)

    def resumed(self, key: Key, continuation: str) -> None:
        """An answer goes on."""
        self._inc(self._resumes, key, continuation)

    def repaired(self, key: Key, kinds: Sequence[str]) -> None:
        """A history was mended; each kind is logged once for a model."""
        for kind in kinds:
            self._inc(self._repairs, key, kind)
            if (key, kind) not in self._mended:
                self._mended.add((key, kind))
                _log.warning("%s/%s: a client sends histories that need repair: %s", *key, kind)

    def called(self, key: Key, form: str, outcome: str, number: int) -> None:
        """Tool calls were read from the text of a model that has none: what became of them."""
        self._inc(self._calls, key, form, outcome, by=number)

    def tools_refused(self, key: Key, origin: str) -> None:
        """The backend refused tools for a model; `origin` says in whose words."""
        _log.warning("%s/%s takes no tools (%s): they are emulated from now on", *key, origin)

    def overflowed(self, key: Key, window: int | None) -> None:
        """The backend refused a prompt for its size; `window` in tokens, if it named it."""
        self._inc(self._overflows, key)
        _log.warning("%s/%s refused a prompt as too long; its window is %s", *key, window or "not told")

    def cut(self, key: Key, expected: int, reported: int) -> None:
        """The backend reported far fewer prompt tokens than were sent."""
        self._inc(self._cuts, key)
        _log.warning("%s/%s cut a prompt of about %d tokens to %d without a word", *key, expected, reported)

    def failed(self, key: Key) -> None:
        """A backend could not be reached, or broke off."""
        self._inc(self._failures, key)

    def window_unknown(self, key: Key) -> None:
        """Nobody tells the window: said once for each model."""
        if key in self._warned:
            return
        self._warned.add(key)
        _log.error(
            "the context window of model %s on backend %s is not known, so its requests are forwarded as they are; "
            'set SPILLWAY_MODELS=\'{"%s": {"window": TOKENS}}\'',
            key[1], key[0], key[1],
        )  # fmt: skip

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"spillway_{name}", text, (*_NAMES, *labels), registry=self._registry)

    def _inc(self, counter: Counter, *labels: object, by: float = 1) -> None:
        flat = tuple(
            str(part) for label in labels for part in (label if isinstance(label, tuple) else (label,))
        )
        key = (str(id(counter)), *flat)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(*flat)
        child.inc(by)
