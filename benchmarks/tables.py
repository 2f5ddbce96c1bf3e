"""Tables and figures of the benchmarks that play sessions, and how they are played side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head, in Markdown."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *rest = rows
    lines = (head, ["-" * width for width in widths], *rest)
    return "\n".join(f"| {' | '.join(map(str.rjust, line, widths))} |" for line in lines)


def percent(part: float, whole: float) -> str:
    """What share that is."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def mapped(jobs: int, run: Callable[..., T], *inputs: Iterable[Any]) -> Iterator[T]:
    """As `map`, in so many processes."""
    if jobs == 1:
        yield from map(run, *inputs)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, *inputs)
