"""Work grows with the length of the text and no faster, however it is cut and whatever it looks like."""

import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from proxy.core.piece import Piece
from proxy.emulation.reader import WrittenCallReader
from tests.emulation.outputs import P, offer

pytestmark = pytest.mark.rows(6)

OFFER = offer()
SIZE = 2_000


def call_of(content: str) -> str:
    return json.dumps({"name": "write_file", "arguments": {"path": "a", "content": content}})


TEXTS: dict[str, Callable[[int], str]] = {
    "prose": lambda n: "some words. " * (n // 12),
    "braces": lambda n: "{\n" * (n // 2),
    "names": lambda n: '{"name": "\n' * (n // 11),
    "backticks": lambda n: "```\n`" * (n // 5),
    "fences": lambda n: f"```json\n{P}\n//\n```\n" * (n // 75),
    "records": lambda n: '{"id": 1, "name": "x"}\n' * (n // 23),
    "words in brackets": lambda n: "{x\n" * (n // 3),
    "lists left open": lambda n: '["\n' * (n // 3),
    "one list": lambda n: "[\n" + '{"id": "x", "name": "y"},\n' * (n // 26),
    "one list of words": lambda n: "[" + "a," * (n // 2),
    "arguments of nobody": lambda n: '{"arguments": [1 2\n' * (n // 20),
    "tags": lambda n: "<tool_call>\n" * (n // 12),
    "angles": lambda n: "<" * n,
    "white space": lambda n: " \n" * (n // 2),
    "thought": lambda n: "<think>" + "</" * (n // 2),
    "one call": lambda n: call_of("x\n{" * (n // 3)),
    "call left open": lambda n: call_of("x\n{" * (n // 3))[:-3],
    "arguments first": lambda n: '{"arguments": "' + "x" * n,
    "calls in a fence": lambda n: "```json\n" + (P + "\n") * (n // 56),
    "calls in a tag": lambda n: "<tool_call>" + (P + "\n") * (n // 56),
    "calls in a row": lambda n: (P + "; ") * (n // 57),
    "white space in a tag": lambda n: "<tool_call>" + " \n" * (n // 2),
    "many members": lambda n: '{"name":"now","arguments":{}' + ',"x":{}' * (n // 7),
    "backticks in a row": lambda n: "`" * n,
    "calls": lambda n: (P + "\n") * (n // 56),
    "array": lambda n: "[" + (P + ",") * (n // 56),
    "parameters": lambda n: "<function=write_file>" + "<parameter=path>\na\n</parameter>" * (n // 31),
    "brackets": lambda n: '{"name":"now","arguments":' + "[{" * (n // 2) + "}]" * (n // 2),
    "python": lambda n: "[now()" + ",\nsearch(query='x')" * (n // 19) + "]",
    "python in a row": lambda n: "[now()]\n" * (n // 8),
    "python left open": lambda n: "[now(" * (n // 5),
    "python with long text": lambda n: "[search(query='" + "x\\'[" * (n // 4) + "')]",
    "python with brackets": lambda n: "[search(tags=" + "[1]," * (n // 4),
    "python tags": lambda n: "<|python_tag|>now\n" * (n // 18),
    "strangers": lambda n: '<tool_call>{"name": "x"}' * (n // 24),
    "examples": lambda n: f"<tool_call>{P}</tool_call>\nis one.\n" * (n // 90),
    "ends": lambda n: f"<tool_call>{P}</tool_call>" + "<|x|> " * (n // 6),
    "bad escapes": lambda n: '{"name":"now","arguments":{"a":"' + "\\d" * (n // 2) + '"}}',
}


def steps(text: str, size: int, *, emulated: bool) -> int:
    taken = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal taken
        taken += event in {"call", "c_call"}

    reader = WrittenCallReader(OFFER, lambda: "id", emulated=emulated)
    pieces = [Piece(text=text[at : at + size], form={}, choice=True) for at in range(0, len(text), size)]
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for piece in pieces:
            reader.feed(piece)
        reader.close()
    finally:
        sys.setprofile(before)
    return taken


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("size", "emulated"), [(3, True), (10**6, False)])
def test_twice_the_text_takes_twice_the_steps(name: str, size: int, *, emulated: bool) -> None:
    once, twice = (steps(TEXTS[name](n), size, emulated=emulated) for n in (SIZE, 2 * SIZE))
    assert twice <= 2.2 * once + 200


FULL = 100_000
"""Characters of one piece, as a backend may send an answer that it does not stream."""
HOSTILE = [
    *("[", "{", "<", "`", "<t", "<|", "[ ", "` ", "\n{", "\n[now(", '\n{"', "`a` ", "```\n", "a<t b", "<function="),
    *("<think></think>", "<tool_call>", '\n{"name":"now"}', '<tool_call>\n{"name": "now", "arguments": {', "[TOOL_CALLS]"),
]


def least_time(work: Callable[[], object]) -> float:
    """Seconds of this thread's CPU in the best of three runs."""
    seconds = []
    for _ in range(3):
        begun = time.thread_time()
        work()
        seconds.append(time.thread_time() - begun)
    return min(seconds)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("emulated", [True, False])
def test_no_piece_holds_the_loop(text: str, *, emulated: bool) -> None:
    """The costliest text takes some 20 times one look at each of its characters, whatever the machine."""
    full = (text * FULL)[:FULL]

    def read() -> None:
        reader = WrittenCallReader(OFFER, lambda: "id", emulated=emulated)
        reader.feed(Piece(text=full, form={}, choice=True))
        reader.close()

    def look() -> None:
        seen: dict[str, int] = {}
        for character in full:
            seen[character] = seen.get(character, 0) + 1

    assert least_time(read) < 60 * least_time(look)
