"""Metrics of several workers as one: each writes its own into files of one folder, and whoever is asked adds them up.

That is the multiprocess mode of prometheus_client. A worker that is started anew goes on where the one before it ended, so
that no counter ever falls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
    multiprocess,
    values,
)

EVERY = 1.0
"""Seconds between two times that a worker writes what it has counted."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker stands among the others: the folder that they share, and its number, from 1 on."""

    folder: Path
    number: int


FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable in which prometheus_client has to find the folder."""


def write_into(place: WorkerPlace) -> None:
    """Have all metrics that are made in this process from now on be kept in files of the folder that `FOLDER` names."""
    values.ValueClass = values.MultiProcessValue(lambda: place.number)  # type: ignore[no-untyped-call]  # the library's


def render_all(place: WorkerPlace) -> bytes:
    """What all workers have written, in Prometheus' text format."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(place.folder))  # type: ignore[no-untyped-call]  # the library's
    return generate_latest(registry)


class Looked:
    """What is asked for and not counted, so that a worker has to look at it before it writes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._looks: list[Callable[[], None]] = []
        of_process = ProcessCollector(registry=None)
        for family in of_process.collect():
            index = len(self._looks)
            value = partial(_value, of_process, index)
            self.add(family.name, family.documentation, value, counts=family.type == "counter")

    def add(self, name: str, text: str, value: Callable[[], float], *, counts: bool) -> None:
        """Write this value, too; all workers' are added up, but for what is so only if it is for all of them."""
        if counts:
            self._looks.append(partial(_rise, Counter(name, text, registry=self._registry), value, [0.0]))
            return
        least = name.endswith(("_healthy", "_start_time_seconds"))
        mode: Literal["min", "sum"] = "min" if least else "sum"
        gauge = Gauge(name, text, registry=self._registry, multiprocess_mode=mode)
        self._looks.append(lambda: gauge.set(value()))

    def write(self) -> None:
        """Write them all as they are now."""
        for look in self._looks:
            look()


def _value(of_process: ProcessCollector, index: int) -> float:
    value: float = list(of_process.collect())[index].samples[0].value
    return value


def _rise(counter: Counter, value: Callable[[], float], last: list[float]) -> None:
    now = value()
    counter.inc(max(0.0, now - last[0]))
    last[0] = now
