"""`python -m benchmarks.cache [--turns N] [--model FILE]`.

What a llama-server reads of prompts, by its own `/metrics`, direct and through Spillway, in one run with the same messages:
four conversations that take turns on two slots, the first turn of each after the server was restarted, an agent whose
summary is written ahead, and a mixed hour, shortened: chats and an agent in turn, and a restart. The server has
`--slot-save-path` in both; its `--cache-ram` and `--kv-unified` can be switched on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.memory_data import dialogues
from benchmarks.process import free_port
from benchmarks.tables import table
from tests.engine.instruct import INSTALL, instruct_model
from tests.engine.server import Engine, ServeOptions, llama_server
from tests.engine.spillway import spillway_server

TALKS, SLOTS, ANSWER, STEPS, PASSAGES = 4, 2, 16, 12, 8
SETTLED = 12.0
"""Seconds after which a quiet slot has been saved."""
QUIET = 4.0
"""Seconds between an agent's steps in which a summary may be written."""
_READ = "llamacpp:prompt_tokens_total"


@dataclass
class Run:
    """One server, started as often as needed, asked at `base`; `read` are the tokens that it read by part."""

    model: Path
    folder: Path
    serve: ServeOptions
    words: Sequence[str]
    turns: int
    base: str
    read: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Start the server, and note under this name what it reads until the end."""
        with llama_server(self.model, log=self.folder / "engine.log", alias="m", **self.serve) as engine:
            yield
            self.read[name] = self.read.get(name, 0) + tokens_read(engine)

    def say(self, talk: list[dict[str, Any]], text: str) -> None:
        """Take a turn of a conversation; where the server refuses it as too long, without its oldest turns, as programs do."""
        talk.append({"role": "user", "content": text})
        while (reply := self._post(talk)).status_code == 400 and len(talk) > 2:
            del talk[:2]
        talk.append(
            {"role": "assistant", "content": reply.raise_for_status().json()["choices"][0]["message"]["content"]}
        )
        print(end=".", file=sys.stderr, flush=True)

    def _post(self, talk: Sequence[dict[str, Any]]) -> httpx.Response:
        body = {"model": "m", "messages": talk, "max_tokens": ANSWER, "temperature": 0}
        return httpx.post(f"{self.base}/v1/chat/completions", json=body, timeout=600, trust_env=False)

    def step(self, talk: list[dict[str, Any]], step: int) -> None:
        """Take a step of an agent, with what a tool might have read."""
        self.say(talk, " ".join(self.words[(step * PASSAGES + at) % len(self.words)] for at in range(PASSAGES)))

    def round(self, talks: Sequence[list[dict[str, Any]]], turn: int) -> None:
        """Take a turn of each."""
        for number, talk in enumerate(talks):
            self.say(talk, self.words[(turn * TALKS + number) % len(self.words)])


def in_turn(run: Run) -> None:
    """Four conversations on two slots, and one turn of each after a restart."""
    talks: list[list[dict[str, Any]]] = [[] for _ in range(TALKS)]
    with run.part("four conversations in turn"):
        for turn in range(run.turns):
            run.round(talks, turn)
        time.sleep(SETTLED)
    with run.part("their first turn after a restart"):
        run.round(talks, run.turns)


def agent(run: Run) -> None:
    """An agent that outgrows its window, with pauses between its steps."""
    talk: list[dict[str, Any]] = []
    with run.part("an agent, summarised ahead"):
        for step in range(run.turns + STEPS):
            run.step(talk, step)
            time.sleep(QUIET)


def mixed(run: Run) -> None:
    """Chats and an agent, whose steps come between, and a restart."""
    talks: list[list[dict[str, Any]]] = [[] for _ in range(TALKS - 1)]
    worker: list[dict[str, Any]] = []
    for part in range(2):
        with run.part("a mixed hour, shortened"):
            for turn in range(run.turns - 1):
                run.round(talks, part * run.turns + turn)
                run.step(worker, part * run.turns + turn)
                time.sleep(QUIET)
            time.sleep(SETTLED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description=__doc__)
    parser.add_argument("--turns", type=int, default=8, help="of each conversation; of fewer, nearly all text is new")
    parser.add_argument("--window", type=int, default=2048, help="tokens of a slot")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-ram", type=int, default=0, help="MiB of the engine's own cache of prompts in memory")
    parser.add_argument("--unified", action="store_true", help="one KV cache for all slots, the engine's default")
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--only", default="", help="part of a scenario's name: in_turn, agent, mixed")
    options = parser.parse_args(arguments)
    model = options.model or instruct_model()
    if model is None:
        sys.exit(f"no model: {INSTALL}")
    words = [str(each["content"]) for each in dialogues("en")[0][0].messages if each["role"] == "user"]
    scenarios = [each for each in (in_turn, agent, mixed) if options.only in each.__name__]
    measured = [played(model, options, words, scenarios, proxied=proxied) for proxied in (False, True)]
    rows = [["prompt tokens read", "direct", "through Spillway", "share"]]
    for part in measured[0]:
        direct, through = (each[part] for each in measured)
        rows.append([part, str(direct), str(through), f"{through / direct:.0%}"])
    print(table(rows))


def played(
    model: Path,
    options: argparse.Namespace,
    words: Sequence[str],
    scenarios: Sequence[Callable[[Run], None]],
    *,
    proxied: bool,
) -> dict[str, int]:
    """Play all scenarios; tokens that the engine read by part."""
    with tempfile.TemporaryDirectory(prefix="spillway-bench-") as text:
        folder, port = Path(text), free_port()
        (folder / "slots").mkdir()
        serve: ServeOptions = {"parallel": SLOTS, "threads": options.threads, "port": port, "unified": options.unified}
        serve |= {"ctx": (1 if options.unified else SLOTS) * options.window}
        serve |= {"cache_ram": options.cache_ram, "slot_save_path": f"{folder / 'slots'}/"}
        url = f"http://127.0.0.1:{port}"
        with spillway_server([url], log=folder / "proxy.log", ahead="on") if proxied else nullcontext() as proxy:
            run = Run(model, folder, serve, words, options.turns, url if proxy is None else proxy.url)
            for scenario in scenarios:
                scenario(run)
        return run.read


def tokens_read(engine: Engine) -> int:
    """Tokens of prompts that the engine had to read since its start."""
    lines = httpx.get(f"{engine.url}/metrics", trust_env=False).raise_for_status().text.splitlines()
    return int(float(next(line for line in lines if line.startswith(_READ)).split()[-1]))


if __name__ == "__main__":
    main()
