"""An answer in several attempts: reading goes on as if it had come in one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation import Call, CallScanner, Offer, Scanned, Text, texts_joined
from tests.emulation.outputs import FENCED, TAGGED, P, offer, paris
from tests.emulation.test_scanner import plain_text, scanned

OFFER = offer()
ANSWERS = {
    "prose": f"First  I look.\n\n{TAGGED}",
    "code": f"Here:\n```python\n{P}\n```\nNow I ask.\n{TAGGED}\nDone.",
    "code in ticks": f"Use `{P}` and ``a`b``.\n{P}\n",
    "thought": f"<think>\nI could write\n{P}\n</think>\n{P}",
    "open thought": f"<think>\nI could write\n{P}\n{TAGGED}",
    "fence": f"I ask.\n{FENCED}\n then {P}\n   {P}",
    "record": f'A record:\n{{"id": 1,\n"x": [\n{P}\n]}}\nand\n{P}',
    "indented": f"So:\n\n    {P}\n  {P}\n",
    "white space": f"\n \n{TAGGED} \n{TAGGED}\nB.",
    "nothing": "a <b> [c] {d}\n{e}\n<tool <tool_ca ```x y\n```json\n{z}\n``` \n",
}


def read_on(said: str, *rest: str, of: Offer = OFFER, called: bool = False) -> tuple[Scanned, ...]:
    scanner = CallScanner(of)
    scanner.resume(said, called=called)
    pieces = [piece for text in rest for piece in scanner.feed(text)]
    return tuple(texts_joined([*pieces, *scanner.close()]))


def text_of(pieces: Sequence[Scanned]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


def calls_of(pieces: Sequence[Scanned]) -> list[Scanned]:
    return [piece for piece in pieces if not isinstance(piece, Text)]


@pytest.mark.parametrize("name", ANSWERS)
def test_every_split_finds_the_same(name: str) -> None:
    """What an interrupted attempt has sent is the text that it read, and what it held; but no call."""
    answer = ANSWERS[name]
    whole = scanned([answer])
    for at in range(len(answer) + 1):
        first = CallScanner(OFFER)
        before, held = first.feed(answer[:at]), first.held
        on = read_on(text_of(before) + held, answer[at:])
        assert on == read_on(text_of(before) + held, *answer[at:]), at
        assert [*calls_of(before), *calls_of(on)] == calls_of(whole), at
        wanted = text_of(whole)[len(text_of(before)) :]
        # Of what was held only that remains too much which a call begins with, and white space before it.
        ends = range(len(held) + 1) if calls_of(on) else [len(held)]
        found = [held[:end] + text_of(on) for end in ends]
        if calls_of(before):
            # White space behind a call was sent beside that before it.
            assert any("".join(text.split()) == "".join(wanted.split()) for text in found), at
        else:
            assert wanted in found, at


@given(plain_text, st.data())
def test_text_is_never_doubled_nor_lost(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert text[:at] + text_of(read_on(text[:at], *text[at:])) == text


@pytest.mark.parametrize(
    ("said", "rest", "pieces"),
    [
        ("A\n", f"{TAGGED}\nB", (paris("tool_call"), Text("B"))),
        ("A", f"\n{TAGGED}\nB", (paris("tool_call"), Text("\nB"))),
        ("A\n<tool", f"_call>\n{P}\n</tool_call>\nB", (paris("tool_call"), Text("B"))),
        ("A <tool", "box", (Text("box"),)),
        ("A \n", " B", (Text(" B"),)),
        ("\n", f"{P}\nB", (paris("bare"), Text("B"))),
        ("```py\nx", f"\n{P}\n```\n{P}", (Text(f"\n{P}\n```"), paris("bare"))),
        ("```py\nx\n``", f"`\n{P}", (Text("`"), paris("bare"))),
        ("<think>", P, (Text(P),)),
        ("<think>x</th", f"ink>{P}", (Text("ink>"), paris("bare"))),
        ("A: ", f"{P}", (Text(P),)),
        ("", P, (paris("bare"),)),
        (f"A\n{TAGGED}", f"\n{TAGGED}", (paris("tool_call"),)),
        (f"A\n{TAGGED}\n", "B", (Text("B"),)),
    ],
)
def test_where_an_answer_was_left(said: str, rest: str, pieces: tuple[Scanned, ...]) -> None:
    assert read_on(said, rest) == read_on(said, *rest) == pieces


def test_what_was_sent_is_not_held() -> None:
    scanner = CallScanner(OFFER)
    scanner.resume("A \n<tool")
    assert (scanner.held, scanner.held_size) == ("", 0)
    assert scanner.feed("_c") == []
    assert (scanner.held, scanner.held_size) == ("_c", 2)
    assert scanner.feed("x") == [Text("_cx")]
    scanner.resume("")
    scanner.feed(" \n{")
    assert (scanner.held, scanner.held_size) == (" \n{", 3)


def test_at_the_end_nothing_is_held() -> None:
    scanner = CallScanner(OFFER)
    scanner.resume("A\n")
    assert [*scanner.feed(TAGGED), *scanner.close()] == [paris("tool_call")]
    assert (scanner.held, scanner.held_size) == ("", 0)


def test_a_call_that_can_not_be_made_is_without_what_was_sent() -> None:
    (wrong,) = read_on("A\n<tool", '_call>{"name": "get_weather"}</tool_call>')
    assert not isinstance(wrong, Call)
    assert wrong.text == '_call>{"name": "get_weather"}</tool_call>'


def test_where_one_call_is_allowed_there_is_none_after_one_of_an_earlier_attempt() -> None:
    one = offer(parallel_tool_calls=False)
    assert read_on("A", f"\n{P}\nB", of=one, called=True) == (Text("\nB"),)
    assert read_on("A", f"\n{P}", of=one) == (paris("bare"),)
