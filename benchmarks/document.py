"""`python -m benchmarks.document [--book NAME] [--window TOKENS] [--package FILE] [--model FILE [--share N] [--questions N]]`.

A book of 110,000 tokens is pasted into a window of 12,288 with a question, eight times: some need all of it, some a single line.
By default a scripted engine answers, which notes the sentences that hold the evidence and as much else as a note may have: what is
counted is how many of them reach the model that answers. With `--model` a real one reads, from a GGUF file, and its answers are
looked through for what they should name; `--share` is the part of the book around the evidence that it reads. The books are Jane
Austen's, from the Debian package `r-cran-janeaustenr`.
"""

from __future__ import annotations

import argparse
import io
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import table
from proxy.core.request import text_of
from proxy.core.settings import BackendSetting
from tests.engine.server import llama_server
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.proxying import metric, running_proxy

PACKAGE = "r-cran-janeaustenr"
ANSWER = 400
"""Tokens of an answer."""
_BOUND = re.compile(r"at most (\d+) words")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Asked(NamedTuple):
    """A question about a book: phrases that stand where the answer does, and words of which an answer has to have one each."""

    text: str
    evidence: tuple[str, ...]
    answer: tuple[str, ...]


BOOKS = {
    "NORTHANGER ABBEY": (
        Asked(
            "Summarise this novel, with the places in which it plays.",
            ("about Fullerton", "Blaize Castle", "walking round Beechen Cliff", "my own house in Woodston"),
            ("Fullerton", "Bath", "Northanger", "Woodston"),
        ),
        Asked(
            "List all the main characters, and what becomes of them.",
            ("A family of ten children", "a pump-room acquaintance|Mrs. Thorpe", "Henry and Catherine were married"),
            ("Catherine", "Henry", "Isabella", "married"),
        ),
        Asked("Which papers did Catherine find in the black cabinet?", ("An inventory of linen",), ("linen|washing",)),
        Asked("Which horrid novels are in Isabella's list?", ("Castle of Wolfenbach, Clermont",), ("Wolfenbach",)),
        Asked("Which castle does Thorpe promise to drive to?", ("Blaize Castle",), ("Blaize",)),
        Asked("Of which illness did Mrs. Tilney die?", ("a bilious fever",), ("fever|bilious",)),
        Asked("How many children do Catherine's parents have?", ("A family of ten children",), ("ten|10",)),
        Asked("Whom did Miss Tilney marry in the end?", ("viscount and viscountess",), ("viscount|peer",)),
    ),
    "Persuasion": (
        Asked(
            "Outline the whole story, from beginning to end.",
            (
                "of Kellynch Hall, in Somersetshire",
                "the walk to the Cobb",
                "the house in Camden Place",
                "You pierce my soul",
            ),
            ("Kellynch", "Lyme", "Bath", "Wentworth"),
        ),
        Asked(
            "Name every ship that is mentioned, with who commanded it.",
            ("Your first was the Asp", "Wentworth's frigate, the Laconia"),
            ("Asp", "Laconia"),
        ),
        Asked("Which book did Sir Walter like to read?", ("any book but the Baronetage",), ("Baronetage",)),
        Asked("What was injured when the little boy fell?", ("His collar-bone was found",), ("collar",)),
        Asked("In which street does Mrs Smith have her lodgings?", ("lodgings in Westgate Buildings",), ("Westgate",)),
        Asked("Which remedy against freckles does Sir Walter praise?", ("the constant use of Gowland",), ("Gowland",)),
        Asked("What did Captain Wentworth write in his letter to Anne?", ("You pierce my soul",), ("soul|agony|hope",)),
        Asked("To whom had Captain Benwick been engaged?", ("Fanny Harville did not live",), ("Harville",)),
    ),
}


class Result(NamedTuple):
    """What became of a question: how much of what its answer needs came, in how many requests, and in how many seconds."""

    share: float
    requests: int
    seconds: float
    text: str


def main() -> None:
    """Ask all questions, with and without the reading of documents, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.document", description=__doc__)
    parser.add_argument("--book", choices=BOOKS, action="append", help="default: all")
    parser.add_argument("--window", type=int, default=12_288, help="tokens")
    parser.add_argument(
        "--package", type=Path, default=None, help=f"a file of {PACKAGE}; default: from `apt-get download`"
    )
    parser.add_argument("--model", type=Path, default=None, help="GGUF file of an instruct model")
    parser.add_argument("--share", type=float, default=1.0, help="of the book, around the evidence")
    parser.add_argument("--questions", type=int, default=8, help="for a slow machine")
    parser.add_argument("--threads", type=int, default=2, help="of a real engine")
    options = parser.parse_args()
    texts = {text.split("\n", 1)[0]: text for text in _books(options.package)}
    rows = [
        ["book", "question", *(f"{what}, {mode}" for mode in ("off", "on") for what in ("reached", "requests", "s"))]
    ]
    for name in options.book or BOOKS:
        asked, scores = BOOKS[name][: options.questions], {"off": 0.0, "on": 0.0}
        for each in asked:
            text = excerpt(texts[name], each, options.share)
            results = {mode: ask(text, each, options, mode) for mode in scores}
            for mode, result in results.items():
                scores[mode] += result.share == 1
            cells = [(f"{r.share:.0%}", str(r.requests), f"{r.seconds:.1f}") for r in results.values()]
            rows.append([name, each.text, *(cell for three in cells for cell in three)])
            print(f"{each.text}\n    {results['on'].text[:1000]}", file=sys.stderr, flush=True)
        rows.append([name, f"of {len(asked)}", *(cell for n in scores.values() for cell in (f"{n:.0f}", "", ""))])
    print(table(rows))


def ask(text: str, asked: Asked, options: argparse.Namespace, mode: str) -> Result:
    """Ask a question about a text; `mode`: whether documents are read in parts."""
    with ExitStack() as stack:
        fake = None
        if options.model is None:
            fake = stack.enter_context(LlamaCppFake([FakeModel("m", options.window)], lambda got: _noted(got, asked)))
            proxy = stack.enter_context(running_proxy(fake, documents=mode))
        else:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-"))) / "engine.log"
            engine = stack.enter_context(
                llama_server(options.model, log=log, alias="m", ctx=options.window, threads=options.threads)
            )
            backend = BackendSetting(name="local", url=engine.url)
            proxy = stack.enter_context(running_proxy(backend, documents=mode, read_timeout=3600.0))
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"{text}\n\n{asked.text}"}],
            "max_tokens": ANSWER,
        }
        since = time.monotonic()
        reply = proxy.client.post("/v1/chat/completions", json=body | {"temperature": 0}, timeout=7200.0)
        seconds, parts = time.monotonic() - since, round(sum(metric(proxy, "spillway_document_parts_total").values()))
        answer = reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else ""
        seen = answer
        if fake is not None and reply.status_code == 200:
            seen = _flat(" ".join(text_of(each) for each in fake.chats()[-1].json["messages"]))
        needed = asked.evidence if options.model is None else asked.answer
        found = sum(re.search(each, seen, re.IGNORECASE) is not None for each in needed)
        return Result(found / len(needed), parts + (reply.status_code == 200), seconds, answer or reply.text)


def excerpt(text: str, asked: Asked, share: float) -> str:
    """A share of a text that has the evidence for a question, a third into it.

    Raises:
        ValueError: the evidence lies too far apart.
    """
    size, spaced = int(len(text) * share), [each.replace(" ", r"\s+") for each in asked.evidence]
    places = [found.start() for each in spaced if (found := re.search(each, text))]
    start = max(0, min(min(places) - size // 3, len(text) - size))
    if len(places) < len(spaced) or max(places) >= start + size:
        raise ValueError(f"The evidence is not in so much of the book: {asked.text}")
    return text[start : start + size]


def _noted(got: Question, asked: Asked) -> Reply:
    """Note the sentences of a part that have the evidence, then others for as long as a note may be."""
    bound = _BOUND.search(got.last_user)
    if bound is None:
        return Reply(text="An answer.")
    sentences = _SENTENCE.split(_flat(got.last_user.rsplit("Between the marks", 1)[0]))
    telling = [each for each in sentences if any(re.search(phrase, each) for phrase in asked.evidence)]
    words = " ".join((*telling, *(each for each in sentences[1:] if each not in telling))).split()
    return Reply(text=" ".join(words[: max(int(bound[1]), len(" ".join(telling).split()))]))


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _books(package: Path | None) -> Iterator[str]:
    """Read the books out of the package: zlib frames with R's vectors of strings, a string for each line."""
    with tempfile.TemporaryDirectory(prefix="spillway-bench-") as folder:
        if package is None:
            subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True, stdout=sys.stderr)
            package = next(Path(folder).glob("*.deb"))
        unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as files:
        data = next(
            file.read()
            for each in files
            if each.name.endswith("janeaustenr/data/Rdata.rdb") and (file := files.extractfile(each)) is not None
        )
    while data:
        frame = zlib.decompressobj()
        vector = frame.decompress(data[4:])
        data = frame.unused_data
        # The version of the format and the name of the encoding stand in front, before each string its kind and its length.
        at = 18 + struct.unpack_from(">I", vector, 14)[0] + 4
        lines = []
        for _ in range(struct.unpack_from(">I", vector, at)[0]):
            size = struct.unpack_from(">I", vector, at + 8)[0]
            lines.append(vector[at + 12 : at + 12 + size].decode())
            at += 8 + size
        yield "\n".join(lines)


if __name__ == "__main__":
    main()
