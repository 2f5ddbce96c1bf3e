"""The table of the sessions, with the aims, and what missed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks import tables
from benchmarks.survival_session import Cell
from benchmarks.survival_tally import Tally

Result = tuple[Cell, Tally]
TOLD = 60
"""Lines of the list of misses."""
SHOWN = 2
"""Lines on each session in it, of each kind."""


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure and its bound. `applies`: to which cells; a figure is None where there is nothing to measure."""

    name: str
    figure: Callable[[Tally], float | None]
    most: float | None = None
    least: float | None = None
    applies: Callable[[Cell], bool] = lambda _: True
    digits: int = 0

    def missed(self, cell: Cell, tally: Tally) -> bool:
        """Whether a session misses it."""
        value = self.figure(tally)
        if value is None or not self.applies(cell):
            return False
        return (self.most is not None and value > self.most) or (self.least is not None and value < self.least)

    @property
    def bound(self) -> str:
        """The aim as text."""
        if self.most is not None:
            return f"<= {self.most:g}" if self.most else "0"
        return f">= {self.least:g}" if self.least is not None else ""


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


AIMS = (
    Aim("overflows", lambda t: t.overflows, most=0),
    Aim("cuts", lambda t: t.cuts, most=0),
    Aim("invalid", lambda t: t.invalid, most=0),
    Aim("errors", lambda t: len(t.errors), most=0),
    Aim("leaks", lambda t: t.leaks, most=0),
    Aim("unpinned", lambda t: t.unpinned, most=0),
    Aim("blind", lambda t: t.blind, most=0),
    Aim(
        "summ./100",
        lambda t: _share(t.summaries, t.turns),
        most=6,
        applies=lambda cell: cell.scenario.chat and cell.window == 8192,
        digits=1,
    ),
    Aim("wasted", lambda t: t.wasted),
    Aim("floor/100", lambda t: _share(t.floor, t.turns), digits=1),
    Aim("kept %", lambda t: _share(t.kept, t.shown), least=95, digits=1),
    Aim(
        "overall %",
        lambda t: _share(t.kept_overall, t.shown_overall),
        least=85,
        # Where turns take 6 % of the window each, every fifth one needs a compaction, and that is 85 % at best.
        applies=lambda cell: cell.scenario.chat,
        digits=1,
    ),
    Aim("asked", lambda t: t.asked),
    Aim("right", lambda t: t.right),
    Aim("lost", lambda t: t.lost_kept, most=0),
    Aim("not kept", lambda t: t.lost_unkept),
    Aim("unseen", lambda t: t.lost_unseen, most=0),
)


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of several sessions."""
    whole = Tally()
    for tally in tallies:
        for name in Tally.__dataclass_fields__:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
    return whole


def table(results: Sequence[Result], *, each: bool) -> str:
    """A row per scenario and window, sums over the kinds of backend; `each`: a row per session."""
    groups: dict[tuple[str, ...], list[Tally]] = {}
    for cell, tally in results:
        key = (cell.scenario.name, str(cell.window), cell.kind if each else "")
        groups.setdefault(key, []).append(tally)
    lines = [["scenario", "window", "backend" if each else "backends", *(aim.name for aim in AIMS), "s"]]
    lines.append(["aim", "", "", *(aim.bound for aim in AIMS), ""])
    for (scenario, window, kind), tallies in groups.items():
        whole = total(tallies)
        figures = [_number(aim.figure(whole), aim.digits) for aim in AIMS]
        lines.append([scenario, window, kind or str(len(tallies)), *figures, f"{whole.seconds:.0f}"])
    return tables.table(lines)


def misses(results: Sequence[Result]) -> str:
    """Each session that misses an aim, with its first errors."""
    lines = []
    for cell, tally in results:
        missed = [aim for aim in AIMS if aim.missed(cell, tally)]
        if missed:
            figures = ", ".join(f"{aim.name} {_number(aim.figure(tally), aim.digits)}" for aim in missed)
            lines.append(f"{cell.scenario.name} {cell.window} {cell.kind}: {figures}")
            lines += [f"    {line[:200]}" for line in (*tally.errors[:SHOWN], *tally.notes[:SHOWN])]
    if not lines:
        return "All aims are met."
    more = [f"and {len(lines) - TOLD} lines more"] if len(lines) > TOLD else []
    return "\n".join(["Aims missed:", *lines[:TOLD], *more])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
