"""One target under mutations of its corpus, for where atheris has no wheel: takes and tells what that does."""

from __future__ import annotations

import faulthandler
import random
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.targets import TARGETS

ODD = (b"\n", b"\r", b"\r\n\r\n", b"\n\n", b"data: ", b'"', b"{", b"}", b"[", b"]", b"\x00", b"\xff", b":", b"\\")


def mutated(chance: random.Random, corpus: Sequence[bytes], largest: int) -> bytes:
    """An input of the corpus with a few changes: bytes lost, doubled, changed, put in, or taken from another one."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.randint(1, 6)):
        at, size = chance.randint(0, len(data)), chance.randint(1, 24)
        match chance.randint(0, 4):
            case 0:
                del data[at : at + size]
            case 1:
                data[at:at] = data[at : at + size]
            case 2:
                data[at : at + 1] = bytes((chance.randrange(256),))
            case 3:
                data[at:at] = chance.choice(ODD)
            case _:
                other = chance.choice(corpus)
                begin = chance.randint(0, len(other))
                data[at : at + size] = other[begin : begin + size]
    return bytes(data[:largest])


def main(arguments: Sequence[str]) -> int:
    """Run until the time is up or an input fails; libFuzzer's options and words."""
    options = dict(word[1:].split("=", 1) for word in arguments[1:] if word.startswith("-"))
    target = TARGETS[arguments[0]]
    corpus = [path.read_bytes() for path in sorted(Path(arguments[-1]).iterdir())]
    chance, tried = random.Random(), 0
    until = time.monotonic() + float(options["max_total_time"])
    data = b""
    try:
        for data in corpus:
            target(data)
        while time.monotonic() < until:
            data = mutated(chance, corpus, int(options["max_len"]))
            faulthandler.dump_traceback_later(float(options["timeout"]), exit=True)
            target(data)
            tried += 1
    except Exception:  # noqa: BLE001 - whatever it is, it was found
        path = Path(f"{options['artifact_prefix']}found")
        path.write_bytes(data)
        sys.stderr.write(f"{traceback.format_exc()}\n{data!r}\nwritten to {path}\n")
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.stderr.write(f"stat::number_of_executed_units: {tried}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
