"""`python -m benchmarks.agents [--quick] [--windows …] [--jobs N]`.

How long agent sessions fare in small windows: recorded ones are replayed step by step through the real proxy to a scripted
backend with a real window, beside a client that keeps the newest turns. The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.agents_data import Session, sessions
from benchmarks.agents_play import DEEP, SMALL, Replayed, newest_turns, replay

WINDOWS = {4096: 60, 8192: 20, 16384: 8}
"""Windows in tokens, and how many summaries per 100 steps are the aim there."""
_HEAD = ["session", "window", "by", "steps", "overflows", "invalid", "summ./100", "reductions/100", "vain"]
_HEAD += ["fill after", f"> {DEEP}", "prefix kept %", "newest result %", "larger ones %"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay the sessions that the command line, or these arguments, choose, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one session")
    parser.add_argument("--windows", nargs="+", type=int, default=list(WINDOWS), help="tokens")
    parser.add_argument("--jobs", type=int, default=1, help="sessions at a time")
    options = parser.parse_args(arguments)
    chosen = sessions()[: 1 if options.quick else None]
    cells = [(session, window) for window in options.windows for session in chosen]
    rows = [_HEAD]
    for (session, window), played in zip(cells, _replayed(cells, options.jobs), strict=True):
        rows.append([session.name, str(window), "spillway", *_figures(played)])
        rows.append([session.name, str(window), "newest turns", *_figures(newest_turns(session, window))])
        print(end=".", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(rows))
    for window, most in WINDOWS.items():
        print(
            f"aim in {window} tokens: summaries per 100 steps <= {most}, no overflow, no invalid history, nothing in vain, "
            f"no fill after a reduction above {DEEP} that is not forced, newest result >= 98 where it takes at most {SMALL:.0%}"
        )


def _replayed(cells: Sequence[tuple[Session, int]], jobs: int) -> list[Replayed]:
    played, windows = [session for session, _ in cells], [window for _, window in cells]
    if jobs == 1:
        return list(map(replay, played, windows))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(replay, played, windows))


def _figures(played: Replayed) -> list[str]:
    fills = played.deepest
    return [
        str(played.steps),
        str(played.overflows),
        str(played.invalid),
        _share(played.summaries, played.steps),
        _share(played.reductions, played.steps),
        str(played.vain),
        f"{sum(fills) / len(fills):.2f}, {max(fills):.2f}" if fills else "-",
        str(played.shallow),
        _share(played.kept, played.shown),
        _share(played.newest, played.of_newest),
        _share(played.large, played.of_large),
    ]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head, in Markdown."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join(
        f"| {line} |" for line in (lines[0], " | ".join("-" * width for width in widths), *lines[1:])
    )


if __name__ == "__main__":
    main()
