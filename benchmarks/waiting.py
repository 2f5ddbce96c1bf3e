"""`python -m benchmarks.waiting [--turns N] [--window TOKENS] [--model FILE] [--ahead MODE] [--pause SECONDS]`.

How long a user waits for the first word of each turn, while a real small model behind the real llama-server is its own summariser:
with `SPILLWAY_AHEAD` off and on, over the same recorded messages of a user. It is shown in two parts: what the engine took to read
the prompt, and everything else. Between two turns the user reads, for as long as there is anything done in the background, or for
`--pause` seconds. Where the machine is shared, look at the tokens that were read more than at the seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import orjson

from benchmarks.memory_data import dialogues
from benchmarks.tables import table
from tests.engine.instruct import INSTALL, instruct_model
from tests.engine.server import Engine, llama_server
from tests.engine.spillway import spillway_server

AIM, AIM_READ = 2.0, 3.0
"""The longest wait as a multiple of the median, beyond reading the prompt and with it."""
ANSWER = 64
"""Tokens of an answer."""
SETTLED = 1.5
"""Seconds without background work after which the user goes on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, as the client saw it."""

    seconds: float
    """Until the first word."""
    reading: float
    """Those of them in which the engine read the prompt, by its own account."""
    prompt: int
    read: int
    """Tokens of the prompt, and those of them that the backend had to read."""
    action: str
    saved: int
    """Tokens by which the history is shorter in the prompt, not counting what was recalled."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting", description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--window", type=int, default=2048, help="tokens")
    parser.add_argument("--ahead", choices=("off", "on"), action="append", help="default: one after the other")
    parser.add_argument("--pause", type=float, default=None, help="seconds; default: until nothing is done any more")
    parser.add_argument("--slots", type=int, default=4, help="of the engine, over one cache; 4 is its own default")
    parser.add_argument("--threads", type=int, default=2, help="of the engine; fewer where others use the machine")
    parser.add_argument(
        "--model", type=Path, default=None, help="GGUF file; default: SmolLM2-135M-Instruct, if installed"
    )
    options = parser.parse_args(arguments)
    model = options.model or instruct_model()
    if model is None:
        sys.exit(f"no model: {INSTALL}")
    said = [str(each["content"]) for each in dialogues("en")[0][0].messages if each["role"] == "user"]
    played = {
        ahead: list(_played(model, options, said[: options.turns], ahead)) for ahead in options.ahead or ("off", "on")
    }
    print(file=sys.stderr)
    print(table(_rows(played)))
    for ahead, turns in played.items():
        print(summed_up(ahead, turns))
    print(f"aim: at most {AIM} times the median beyond reading the prompt, {AIM_READ} times with it, with ahead on")


def _played(model: Path, options: argparse.Namespace, said: Sequence[str], ahead: str) -> Iterator[Turn]:
    with (
        tempfile.TemporaryDirectory(prefix="spillway-bench-") as folder,
        llama_server(
            model,
            log=Path(folder) / "engine.log",
            alias="m",
            ctx=options.window,
            parallel=options.slots,
            unified=options.slots > 1,
            threads=options.threads,
        ) as engine,
        spillway_server([engine.url], log=Path(folder) / "proxy.log", ahead=ahead) as proxy,
        httpx.Client(base_url=proxy.url, timeout=600, trust_env=False) as client,
    ):
        messages: list[dict[str, Any]] = []
        for each in said:
            messages.append({"role": "user", "content": each})
            turn, answer = play(client, messages)
            messages.append({"role": "assistant", "content": answer})
            _settle(engine) if options.pause is None else time.sleep(options.pause)
            yield turn
            print(turn, file=sys.stderr, flush=True)


def play(client: httpx.Client, messages: Sequence[dict[str, Any]]) -> tuple[Turn, str]:
    """Ask, and see when the first word comes and what it took; with the whole answer."""
    body = {"model": "m", "messages": messages, "max_tokens": ANSWER, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    since, first, text, usage, timings = time.monotonic(), 0.0, "", dict[str, Any](), dict[str, Any]()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = orjson.loads(line[6:])
            usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
            word = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            first = first or (time.monotonic() - since if word else 0.0)
            text += word
        action = response.headers["x-spillway-action"]
    told, cached = usage.get("spillway", {}), usage["prompt_tokens_details"]["cached_tokens"]
    prompt = usage["prompt_tokens"]
    reading = float(timings.get("prompt_ms", 0.0)) / 1000
    saved = told.get("saved_tokens", 0) + (told.get("recalled") or {}).get("tokens", 0)
    return Turn(first, reading, prompt, prompt - cached, told.get("action", action), saved), text


def _settle(engine: Engine) -> None:
    """Wait until nothing is done any more. The engine is not asked more often than it likes."""
    quiet = 0
    while quiet < 2:
        time.sleep(SETTLED)
        quiet = 0 if any(slot["is_processing"] for slot in engine.slots()) else quiet + 1


def renewed(turns: Sequence[Turn]) -> list[int]:
    """The turns whose prompt has a new summary, which saves more than the one before by at least a tenth: estimates vary by less."""
    saved = [0, *(turn.saved for turn in turns)]
    return [at for at, turn in enumerate(turns) if turn.saved > 1.1 * saved[at]]


def _rows(played: dict[str, list[Turn]]) -> list[list[str]]:
    rows = [
        [
            "turn",
            *(
                f"{what}, {ahead}"
                for ahead in played
                for what in ("s to first word", "reading", "prompt", "read", "summary")
            ),
        ]
    ]
    for number, turns in enumerate(zip(*played.values(), strict=True)):
        row = [str(number)]
        for ahead, turn in zip(played, turns, strict=True):
            new = number in renewed(played[ahead])
            row += [
                f"{turn.seconds:.2f}",
                f"{turn.reading:.2f}",
                str(turn.prompt),
                str(turn.read),
                "new" if new else "",
            ]
        rows.append(row)
    return rows


def summed_up(ahead: str, turns: Sequence[Turn]) -> str:
    """Sum up the turns before the first summary, the ordinary ones after it, and those that begin with a new one."""
    new = renewed(turns)
    first = new[0] if new else len(turns)
    parts = {
        "before the first summary": turns[1:first],
        "after it": [turn for at, turn in enumerate(turns) if at > first and at not in new],
        "with a new summary": [turns[at] for at in new],
    }
    usual = median(turn.seconds for turn in parts["before the first summary"])
    lines = [
        f"ahead {ahead}, {name}: {len(part)} turns, median {median(turn.seconds for turn in part):.2f} s "
        f"({median(turn.seconds for turn in part) / usual:.1f} times), at most {max(turn.seconds for turn in part):.2f} s "
        f"({max(turn.seconds for turn in part) / usual:.1f} times; "
        f"{max(turn.seconds - turn.reading for turn in part):.2f} s beyond reading); "
        f"tokens read: median {median(turn.read for turn in part):.0f}, at most {max(turn.read for turn in part)}"
        for name, part in parts.items()
        if part
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
