"""Any bytes, for a short time: what was found before, and mutations of it. `make fuzz` goes on for as long as one likes."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import targets
from tests.fuzz.__main__ import LARGEST, NAMES
from tests.fuzz.targets import CUTS, TARGETS

CORPUS = {name: sorted((Path(__file__).parent / "corpus" / name).iterdir()) for name in NAMES}


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


def test_all_targets_are_run() -> None:
    assert tuple(TARGETS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_the_corpus_holds(name: str) -> None:
    assert CORPUS[name]
    for path in CORPUS[name]:
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
@given(chance=st.randoms(use_true_random=False))
def test_and_so_do_its_mutations(name: str, chance: random.Random) -> None:
    TARGETS[name](mutated(chance, [path.read_bytes() for path in CORPUS[name]], LARGEST))


@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("name", NAMES)
def test_and_so_do_arbitrary_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)


WHOLE, SINGLY = bytes(CUTS), b"\xff" + bytes(CUTS - 1)
LONG = {
    "events": [b"data: x\n", b"\n", b"\r", b"\r\n", b": c\n\n", b"data: x\r\r"],
    "chunks": [b"data: {\n", b'data: {"choices": [', b"data: [[", b"\n\n", b'{"choices": '],
    "streams": [b"data: {\n", b"\n", b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n', b"\r", b"data: [DONE]\n\n"],
    "calls": [b"<tool_call>", b"```json\n{", b'{"name": "now"', b"[", b"`", b"\n ", b"<function=now><parameter=a>"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG))
@pytest.mark.parametrize("cuts", [WHOLE, SINGLY], ids=["whole", "byte by byte"])
def test_time_grows_no_faster_than_the_input(name: str, cuts: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the input takes less than 24 times as long; in the square of it, it would be 64 times."""
    monkeypatch.setattr(targets, "SINGLY", 10_000)
    for unit in LONG[name]:
        small, large = (cuts + unit * (size // len(unit)) for size in (500, 4_000))
        assert best(name, large) < 24 * best(name, small) + 0.005, unit


def best(name: str, data: bytes) -> float:
    took = []
    for _ in range(2):
        begun = time.process_time()
        TARGETS[name](data)
        took.append(time.process_time() - begun)
    return min(took)
