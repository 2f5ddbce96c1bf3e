"""What is done to each target, and which numbers come of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from typing_extensions import override

from benchmarks.process import python
from benchmarks.targets import Target


@dataclass(frozen=True)
class Aim:
    """What Spillway's number is to be at most: so many times that of the target `of`, or just so much."""

    most: float
    of: str = ""

    def met(self, number: float, base: float | None) -> bool | None:
        """Whether a number reaches it; None if there is nothing to compare with."""
        if not self.of:
            return number <= self.most
        return number <= self.most * base if base is not None else None

    @override
    def __str__(self) -> str:
        return f"<= {self.most:g} x {self.of}" if self.of else f"<= {self.most:g}"


@dataclass(frozen=True)
class Metric:
    """A number of a scenario, and what is aimed at, if anything is."""

    name: str
    key: str
    """Field of the load's result, or `p50`…`p99` of its `times_ms`, pooled over the rounds."""
    aim: Aim | None = None
    digits: int = 1
    of_proxy: bool = True
    """Whether it is a number of the proxy process, which a direct connection has not."""
    largest: bool = False
    """Take the largest of the rounds: memory once claimed is used again and does not show in later ones."""
    added: bool = False
    """Show how much more it is than without a proxy, too."""


@dataclass(frozen=True)
class Scenario:
    """A load, its size, and its size when only a quick look is wanted."""

    name: str
    load: str
    arguments: dict[str, int]
    quick: dict[str, int]
    metrics: tuple[Metric, ...] = field(default=())
    seeded: bool = False
    """Whether the load wants another seed each round, so that no round finds the last one's conversation."""
    resumes: bool = False
    """Whether the load has to know if the target goes on with answers."""
    own: bool = False
    """Whether only Spillway can be asked so."""


def _streamed(name: str, *, aim: Aim | None = None) -> tuple[Metric, ...]:
    return (
        Metric(f"{name}: CPU us per chunk", "cpu_us", aim=aim, digits=2),
        Metric(f"{name}: reads per chunk", "reads_per_chunk", digits=2, of_proxy=False),
        Metric(f"{name}: bad streams", "bad", digits=0, of_proxy=False, largest=True, aim=Aim(0)),
    )


SCENARIOS = (
    Scenario(
        "idle",
        "idle",
        {"streams": 200},
        {"streams": 8},
        (
            Metric("idle stream, kB", "kb_per_stream", largest=True, aim=Aim(100)),
            Metric("idle streams, CPU %", "cpu_percent"),
        ),
    ),
    Scenario(
        "short",
        "short",
        {"count": 1600, "concurrency": 16},
        {"count": 32, "concurrency": 4},
        (Metric("short request, CPU us", "cpu_us", aim=Aim(0.15, "naive")),),
    ),
    Scenario(
        "fresh",
        "short",
        {"count": 1600, "concurrency": 16, "size": 1000},
        {"count": 32, "concurrency": 4, "size": 1000},
        (Metric("short request of a new kB, CPU us", "cpu_us"),),
        seeded=True,
    ),
    Scenario(
        "stream",
        "stream",
        {"streams": 8, "chunks": 2000, "pause_us": 0},
        {"streams": 2, "chunks": 20, "pause_us": 0},
        _streamed("8 streams at full speed", aim=Aim(1.5, "bare")),
    ),
    Scenario(
        "trickle",
        "stream",
        {"streams": 8, "chunks": 500, "pause_us": 2000},
        {"streams": 2, "chunks": 20, "pause_us": 1000},
        _streamed("8 streams, a chunk every 2 ms", aim=Aim(1.5, "bare")),
    ),
    Scenario(
        "resumed",
        "resumed",
        {"streams": 8, "chunks": 3000, "pause_us": 0},
        {"streams": 2, "chunks": 20, "pause_us": 0},
        _streamed("later attempt at full speed"),
        resumes=True,
    ),
    Scenario(
        "resumed-trickle",
        "resumed",
        {"streams": 8, "chunks": 500, "pause_us": 2000},
        {"streams": 2, "chunks": 20, "pause_us": 1000},
        _streamed("later attempt, a chunk every 2 ms"),
        resumes=True,
    ),
    Scenario(
        "dialects",
        "dialects",
        {"streams": 8, "chunks": 2000},
        {"streams": 2, "chunks": 20},
        (
            Metric("chat completions: CPU us per chunk", "cpu_us", digits=2),
            *(
                Metric(f"{name}: times that of chat completions", f"{name}_times", digits=2, aim=Aim(2))
                for name in ("messages", "responses", "ollama")
            ),
            Metric("dialects: bad streams", "bad", digits=0, of_proxy=False, largest=True, aim=Aim(0)),
        ),
        own=True,
    ),
    Scenario(
        "turn",
        "turns",
        {"count": 8, "messages": 200, "size": 2000},
        {"count": 2, "messages": 20, "size": 200},
        (
            Metric("long turn, ms", "p50", aim=Aim(2.0, "naive"), digits=2, of_proxy=False),
            Metric("long turn, CPU ms", "cpu_ms", digits=2),
            Metric("its first turn, ms", "cold_ms", digits=2, of_proxy=False),
        ),
        seeded=True,
    ),
    Scenario(
        "latency",
        "short",
        {"count": 300, "concurrency": 1},
        {"count": 20, "concurrency": 1},
        tuple(
            Metric(f"short request {key}, ms", key, digits=2, of_proxy=False, added=True)
            for key in ("p50", "p95", "p99")
        ),
    ),
    Scenario(
        "first-byte",
        "first_byte",
        {"count": 300},
        {"count": 20},
        tuple(
            Metric(f"first byte of a stream {key}, ms", key, digits=2, of_proxy=False, added=True)
            for key in ("p50", "p99")
        ),
    ),
    Scenario(
        "paced",
        "stream",
        {"streams": 200, "chunks": 60, "pause_us": 50_000},
        {"streams": 8, "chunks": 4, "pause_us": 10_000},
        (
            *_streamed("200 streams, a chunk every 50 ms", aim=Aim(1.5, "bare")),
            Metric("200 streams: CPU % of a core", "cpu_percent"),
            Metric("200 streams: slowest first byte, ms", "first_ms", of_proxy=False),
            Metric("200 streams: RSS, MiB", "rss_mib"),
        ),
    ),
)


def measure(scenario: Scenario, target: Target, *, round_number: int, quick: bool) -> dict[str, Any]:
    """Run the scenario's load once against the target, in a process of its own.

    Raises:
        RuntimeError: the load failed; the text is what it said.
    """
    arguments: dict[str, Any] = dict(scenario.quick if quick else scenario.arguments)
    if scenario.seeded:
        arguments["seed"] = round_number
    if scenario.resumes:
        arguments["resumes"] = target.resumes
    order = {"load": scenario.load, "port": target.port, "pids": target.pids, "arguments": arguments}
    done = subprocess.run(
        python("-m", "benchmarks.load", json.dumps(order)), capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        msg = f"{scenario.name} against {target.name}: {done.stderr.strip()[-2000:]}"
        raise RuntimeError(msg)
    if done.stderr:
        print(f"\n{scenario.name} against {target.name}: {done.stderr.strip()}", file=sys.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def value(metric: Metric, rounds: list[dict[str, Any]]) -> float | None:
    """One number from all rounds: a percentile of the pooled times, else the median (or largest); None without any."""
    if not rounds:
        return None
    if metric.key.startswith("p") and metric.key[1:].isdigit():
        times = sorted(time for result in rounds for time in result["times_ms"])
        times_at = min(len(times) - 1, int(len(times) * int(metric.key[1:]) / 100))
        return float(times[times_at])
    numbers = [float(result[metric.key]) for result in rounds]
    return max(numbers) if metric.largest else median(numbers)
