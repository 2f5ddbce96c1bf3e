from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation import Call, CallScanner, Malformed, Offer, Scanned, Text, texts_joined
from tests.emulation.broken import MALFORMED, REPAIRED, UNTOUCHED
from tests.emulation.outputs import CLEAN, FENCED, TAGGED, Output, P, offer, paris

OFFER = offer()
ROWS = [*CLEAN, *REPAIRED, *MALFORMED]
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
# Text that may begin anything: the characters and words that forms are made of, and others.
pieces_of_text = st.lists(
    st.sampled_from(
        [
            *["x", "ü", "<", ">", ";", "{", "}", "[", "]", "`", "```", ",", ":", "\\", "'", '"'],
            *(" ", "\n", "```json\n", "```xml\n", P, TAGGED, '{"name": "', '"arguments": '),
            *[
                "get_weather",
                "now",
                "<tool_call>",
                "</tool_call>",
                "<function=",
                "<parameter=",
                "</parameter>",
                "</function>",
            ],
            *[
                "<think>",
                "</think>",
                "[TOOL_CALLS]",
                "[ARGS]",
                "<|python_tag|>",
                "[now()]",
                "(",
                ")",
                "days=",
                "city='x'",
            ],
        ]
    ),
    max_size=30,
).map("".join)
plain_text = st.text(st.sampled_from("{}[]<>`\"':,; \n\tabtnmeoljs_=/"), max_size=80)


def scanned(chunks: Iterable[str], *, cut: bool = False, of: Offer = OFFER) -> tuple[Scanned, ...]:
    scanner = CallScanner(of)
    pieces = [piece for chunk in chunks for piece in scanner.feed(chunk)]
    return tuple(texts_joined([*pieces, *scanner.close(cut=cut)]))


def test_there_are_enough_outputs() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len(ROWS) >= 80


@rows
def test_pieces_of_an_output(row: Output) -> None:
    assert scanned([row.text], cut=row.cut) == row.pieces


@rows
def test_pieces_of_an_output_that_comes_in_single_characters(row: Output) -> None:
    assert scanned(row.text, cut=row.cut) == row.pieces


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert scanned([text]) == scanned(text) == (Text(text),)


@given(pieces_of_text, st.data(), st.booleans())
def test_no_chunking_changes_anything(text: str, data: st.DataObject, cut: bool) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert scanned(chunks, cut=cut) == scanned([text], cut=cut) == scanned(text, cut=cut)


@given(plain_text)
def test_text_without_a_call_is_unchanged(text: str) -> None:
    assert scanned([text]) == scanned(text) == ((Text(text),) if text else ())


@given(pieces_of_text)
def test_every_character_is_text_or_part_of_a_call(text: str) -> None:
    """Up to the end of what was fed, whatever is not handed out is held."""
    scanner = CallScanner(OFFER)
    given_out = ""
    for at, character in enumerate(text):
        pieces = scanner.feed(character)
        if any(not isinstance(piece, Text) for piece in pieces):
            return
        given_out += "".join(piece.text for piece in pieces if isinstance(piece, Text))
        assert given_out + scanner.held == text[: at + 1]


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("Hello", "Hello"),
        ("Hello ", "Hello"),
        ("Hello  w", "Hello  w"),
        ("```", ""),
        ("```j", ""),
        ("```js", ""),  # it may be json
        ("```js\n", "```js\n"),
        ("```jx", "```jx"),
        ("```json", ""),
        ("```json\n{", ""),
        ("```json\n[1", "```json\n[1"),
        ("```jsonc", "```jsonc"),
        ("```python", "```python"),
        ("`", ""),
        ("`x", "`x"),
        ("``x", "``x"),
        ("{", ""),
        ('{"a', ""),
        ('{"ab', '{"ab'),
        ('{"args', ""),
        ('{"na', ""),
        ('{"name": "g', ""),
        ('{"name": "gu', ""),
        ('{"name": "gu"', '{"name": "gu"'),
        ('{"name": "get_weather', ""),
        ('{"name": "get_weather"', ""),
        ('{"name": "get_weather2"', '{"name": "get_weather2"'),
        ('{"name": 1', '{"name": 1'),
        ('{"type": "f', ""),
        ('{"type": "o', '{"type": "o'),
        ('x {"name": "get_weather"', 'x {"name": "get_weather"'),
        ("{x", "{x"),
        ("[", ""),
        ("[x", ""),
        ("[x]", "[x]"),
        ("x [T", "x"),
        ("x [To", "x [To"),
        ("[TOOL_CALLS]get_weather[ARGS]{", ""),
        ("[TOOL_CALLS]x is", "[TOOL_CALLS]x is"),
        ("a <t", "a"),
        ("a <ta", "a <ta"),
        ("<tool_call>", ""),
        ("<tool_call>x", ""),
        ("<tool_call>x y", "<tool_call>x y"),
        ("<|chan", ""),
        ("<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
        ("<function=no", ""),
        ("<function=nx>{", "<function=nx>{"),
        ("<think>x {", "<think>x {"),
        ("`{", "`{"),
        (P, ""),
        (P + " i", P + " i"),
    ],
)
def test_nothing_is_held_longer_than_needed(text: str, out: str) -> None:
    """What must have been handed out when the last character is in; the rest is still held."""
    scanner = CallScanner(OFFER)
    assert "".join(piece.text for piece in scanner.feed(text) if isinstance(piece, Text)) == out
    assert scanner.held == text[len(out) :]


def test_a_call_is_handed_out_with_its_last_character() -> None:
    scanner = CallScanner(OFFER)
    assert scanner.feed(TAGGED[:-1]) == []
    assert scanner.feed(TAGGED[-1]) == [paris("tool_call")]
    assert scanner.held == ""


def test_with_one_call_allowed_later_ones_are_left_out_and_text_stays() -> None:
    one = offer(parallel_tool_calls=False)
    text = f"A\n{TAGGED}\n{P}\n{FENCED}\nB"
    assert scanned(text, of=one) == scanned([text], of=one) == (Text("A"), paris("tool_call"), Text("\nB"))
    assert scanned([f"[{P}, {P}]"], of=one) == (paris("bare"),)
    wrong = P.replace("Paris", "").replace("city", "days")
    assert scanned([f"{P}\n{wrong}"], of=one) == (paris("bare"),)


def test_with_no_call_wanted_everything_is_text() -> None:
    none = offer(tool_choice="none")
    assert scanned(TAGGED, of=none) == (Text(TAGGED),)


def test_with_a_named_function_only_that_one_counts() -> None:
    named = offer(tool_choice={"type": "function", "function": {"name": "now"}})
    now = '{"name": "now"}'
    assert scanned(f"{TAGGED}\n{now}", of=named) == (Text(TAGGED), Call("now", "{}", "bare"))


def test_after_the_end_there_is_nothing() -> None:
    scanner = CallScanner(OFFER)
    assert scanner.feed("a ") == [Text("a")]
    assert scanner.close() == [Text(" ")]
    assert scanner.close() == []
    assert scanner.held == ""


def test_reasons_name_the_tool() -> None:
    (piece,) = scanned(['{"name": "get_weather", "arguments": {}}'])
    assert isinstance(piece, Malformed)
    assert piece.reason.startswith("get_weather: ")
