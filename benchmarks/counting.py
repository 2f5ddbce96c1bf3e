"""Figures of token counting: `python -m benchmarks.counting [--quick] [--vocab NAME=GGUF ...]`.

A vocabulary given is put under a tiny model on the real llama-server; `known=` and `unknown=` say whether the model
has a name that tells its family. Without any, a vocabulary trained here is measured as an unknown one. The aims are reported, never asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.counting_accuracy import Figures, follow, mean, percentile, rendered
from benchmarks.counting_corpus import Corpus, conversation
from benchmarks.counting_engine import measured
from benchmarks.counting_speed import histories, lag, slowest, start
from proxy.tokens.families import FAMILIES, VOCABULARIES
from proxy.tokens.meter import Meter
from tests.tokens.probe import probe

GOLDEN = Path(__file__).parent.parent / "tests" / "tokens" / "golden.json"
SKIPPED = 5
"""Conversations until a model of unknown family is taken as known."""


@dataclass(frozen=True)
class Row:
    """One figure; `most` and `least` are its aim."""

    name: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None

    def line(self) -> str:
        """As a row of a Markdown table."""
        aim = "" if self.most is None else f"<= {self.most:g}"
        aim = aim if self.least is None else f">= {self.least:g}"
        missed = (self.most is not None and self.value > self.most) or (
            self.least is not None and self.value < self.least
        )
        return f"| {self.name:<72} | {self.value:>10,.3f} {self.unit:<3} | {aim:>8} | {'missed' if missed else '':<6} |"


def golden() -> list[Row]:
    """Differences from the counts of the models' own tokenizers."""
    different = 0
    for name, counts in json.loads(GOLDEN.read_text(encoding="utf-8")).items():
        vocabulary = VOCABULARIES[name]()
        different += sum(vocabulary.count(text) != n for text, n in zip(probe(), counts, strict=True))
    return [Row("golden counts, 6 vocabularies: differences", different, most=0)]


def accuracy_rows(name: str, found: Figures, *, fresh: float, anchored: float) -> list[Row]:
    """The rows of one experiment; aims in percent."""
    return [
        Row(f"{name}: fresh, p95", 100 * percentile(found.fresh, 0.95), "%", most=fresh),
        Row(f"{name}: anchored, mean", 100 * mean(found.anchored), "%", most=0.5),
        Row(f"{name}: anchored, p95", 100 * percentile(found.anchored, 0.95), "%", most=anchored),
        Row(f"{name}: upper bound held", 100 * mean(list(map(float, found.held))), "%", least=98.5),
        Row(f"{name}: over-reserve", 100 * mean(found.reserve), "%", most=3),
    ]


async def simulated(conversations: int) -> list[Row]:
    """Models whose vocabulary is known, and the same behind a name that says nothing."""
    known, unknown = Figures(), Figures()
    for family in FAMILIES:
        if family.ratios:
            continue
        truth = rendered(VOCABULARIES[family.vocabulary]())
        for name, into, skipped in ((family.id, known, 1), ("some-model", unknown, SKIPPED)):
            meter, key = Meter(), ("simulated", name)
            meter.model(key).resolve(override=family.id if into is known else None)
            await meter.measure(key, {})
            for seed in range(conversations):
                found = await follow(meter, key, conversation(seed, 4 + seed % 9), truth)
                if seed >= skipped:
                    into.add(found)
    rows = accuracy_rows("simulated, vocabulary known", known, fresh=0.5, anchored=0.5)
    return rows + accuracy_rows("simulated, vocabulary unknown", unknown, fresh=5, anchored=1.5)


async def speed() -> list[Row]:
    """Time and memory."""
    taken = await histories()
    seconds, memory = start()
    corpus = Corpus(4)
    lags = [await lag(corpus.text(kind, 1_000_000)) for kind in ("prose", "json", "chinese", "base64")]
    return [
        Row("400 kB, 200 messages: warm estimate", taken["warm"], "ms", most=taken["parse"]),
        Row("  orjson's parse of it", taken["parse"], "ms"),
        Row("  from scratch / warm", taken["scratch"] / taken["warm"], least=100),
        Row("  from scratch / one new message of 2.5 kB on top", taken["scratch"] / taken["one_more"], least=50),
        Row("short request, new text", taken["short_us"], "us"),
        Row("event loop's longest stall for a message of 1 MB", max(lags), "ms", most=20),
        Row("1 MB of one character / 1 MB of prose, time", slowest(), most=20),
        Row("start to first count, network refused", seconds, "s", most=1),
        Row("memory with the general vocabulary alone", memory, "MiB", most=50),
    ]


async def engine(vocabularies: list[tuple[str, Path | None]], *, quick: bool) -> list[Row]:
    """The real llama-server."""
    rows = []
    for kind, path in vocabularies:
        known = kind == "known"
        seeds = range(2) if quick else range(8)
        found = await measured(path, known=known, seeds=seeds, turns=6 if quick else 40)
        name = f"llama-server, {path.stem if path else 'own vocabulary'}, {kind}"
        rows += accuracy_rows(name, found, fresh=0.5 if known else 5, anchored=0.5 if known else 1.5)
    return rows


def _vocabulary(text: str) -> tuple[str, Path | None]:
    kind, _, path = text.partition("=")
    if kind not in {"known", "unknown"} or not Path(path).is_file():
        raise argparse.ArgumentTypeError("known=FILE or unknown=FILE")
    return kind, Path(path)


async def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting", description="Measure token counting.")
    parser.add_argument("--quick", action="store_true", help="few and short conversations")
    parser.add_argument("--vocab", action="append", type=_vocabulary, help="known=FILE or unknown=FILE, a GGUF")
    options = parser.parse_args()
    rows = golden()
    rows += await speed()
    rows += await simulated(8 if options.quick else 40)
    rows += await engine(options.vocab or [("unknown", None)], quick=options.quick)
    print("\n".join(row.line() for row in rows))


if __name__ == "__main__":
    asyncio.run(main())
