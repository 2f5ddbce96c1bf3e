"""`python -m benchmarks.agents [--quick] [--windows …] [--jobs N]`.

How long agent sessions fare in small windows: recorded ones are replayed step by step through the real proxy to a scripted
backend with a real window, beside a client that keeps the newest turns. The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.agents_data import sessions
from benchmarks.agents_play import DEEP, SMALL, Replayed, newest_turns, replay
from benchmarks.tables import mapped, percent, table

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
    replayed = mapped(options.jobs, replay, *zip(*cells, strict=True))
    for (session, window), played in zip(cells, replayed, strict=True):
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


def _figures(played: Replayed) -> list[str]:
    fills = played.deepest
    return [
        str(played.steps),
        str(played.overflows),
        str(played.invalid),
        percent(played.summaries, played.steps),
        percent(played.reductions, played.steps),
        str(played.vain),
        f"{sum(fills) / len(fills):.2f}, {max(fills):.2f}" if fills else "-",
        str(played.shallow),
        percent(played.kept, played.shown),
        percent(played.newest, played.of_newest),
        percent(played.large, played.of_large),
    ]


if __name__ == "__main__":
    main()
