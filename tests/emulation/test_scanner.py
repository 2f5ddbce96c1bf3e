import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.scanner import CallScanner
from tests.emulation.broken import MALFORMED, REPAIRED, UNTOUCHED
from tests.emulation.outputs import CLEAN, FENCED, TAGGED, Found, Output, P, offer, paris, scanned

OFFER = offer()
ROWS = [*CLEAN, *REPAIRED, *MALFORMED]
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
# Text that may begin anything: the characters and words that forms are made of, and others.
pieces_of_text = st.lists(
    st.sampled_from(
        [
            *["x", "ü", "<", ">", ";", "{", "}", "[", "]", "`", "```", ",", ":", "\\", "'", '"'],
            *(" ", "\n", "```json\n", "```xml\n", P, TAGGED, '{"name": "', '"arguments": '),
            *["get_weather", "now", "<tool_call>", "</tool_call>", "<function=", "<parameter=", "</parameter>", "</function>"],
            *["<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[now()]", "(", ")", "days=", "city='x'"],
        ]
    ),
    max_size=30,
).map("".join)
plain_text = st.text(st.sampled_from("{}[]<>`\"':,; \n\tabtnmeoljs_=/"), max_size=80)


@rows
def test_what_is_found_in_an_output(row: Output) -> None:
    assert scanned([row.text], cut=row.cut) == scanned(row.text, cut=row.cut) == row.found


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert scanned([text]) == scanned(text) == (text,)


@given(pieces_of_text, st.data(), st.booleans())
def test_no_chunking_changes_anything(text: str, data: st.DataObject, cut: bool) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert scanned(chunks, cut=cut) == scanned([text], cut=cut) == scanned(text, cut=cut)


@given(plain_text)
def test_text_without_a_call_is_unchanged(text: str) -> None:
    assert scanned([text]) == scanned(text) == ((text,) if text else ())


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        *[("Hello", 5), ("Hello ", 6), (" \n", 0), ("```", 0), ("```j", 0), ("```js", 0), ("```js\n", 6), ("```jx", 5)],
        *[("```json\n{", 0), ("```json\n[1", 10), ("```jsonc", 8), ("```python", 9), ("`", 0), ("`x", 2), ("``x", 3)],
        *[("{", 0), ('{"a', 0), ('{"ab', 4), ('{"args', 0), ('{"na', 0), ('{"name": "gu', 0), ('{"name": "gu"', 13)],
        *[('{"name": "get_weather"', 0), ('{"name": 1', 10), ('{"type": "f', 0), ('{"type": "o', 11), ("{x", 2)],
        *[('x {"name": "get_weather"', 24), ("[", 0), ("[x", 0), ("[x]", 3), ("x [T", 2), ("x [To", 5)],
        *[("[TOOL_CALLS]get_weather[ARGS]{", 0), ("[TOOL_CALLS]x is", 16), ("a <t", 2), ("a <ta", 5), ("<tool_call>", 0)],
        *[("<tool_call>x", 0), ("<tool_call>x y", 14), ("<|chan", 0)],
        *[("<function=no", 0), ("<function=nx>{", 14), ("<think>x {", 10), ("`{", 2), (P, 0), (P + " i", len(P) + 2)],
    ],
)  # fmt: skip
def test_nothing_is_held_longer_than_needed(text: str, decided: int) -> None:
    """What is decided when the last character is in."""
    scanner = CallScanner(OFFER)
    assert (scanner.feed(text), scanner.decided) == ([], decided)


def test_a_call_is_handed_out_with_its_last_bracket() -> None:
    scanner, last = CallScanner(OFFER), TAGGED.rindex("}") + 1
    assert scanner.feed(TAGGED[:last]) == []
    span, *_ = scanner.feed("\n<")
    assert (span.start, span.end, span.found) == (0, last, (paris("tool_call"),))


def test_with_one_call_allowed_later_ones_are_left_out_and_text_stays() -> None:
    one = offer(parallel_tool_calls=False)
    text = f"A\n{TAGGED}\n{P}\n{FENCED}\nB"
    assert scanned(text, of=one) == scanned([text], of=one) == ("A\n", paris("tool_call"), "B")
    assert scanned([f"[{P}, {P}]"], of=one) == (paris("bare"),)
    wrong = P.replace("Paris", "").replace("city", "days")
    assert scanned([f"{P}\n{wrong}"], of=one) == (paris("bare"),)


# -- behind an earlier attempt

CODE, THOUGHT = f"Here:\n```python\n{P}\n```\nNow.\n", f"<think>\nI could write\n{P}\n</think>\n"
ANSWERS = {
    "prose": "First  I look.\n\n",
    "code": CODE,
    "code in ticks": f"Use `{P}` and ``a`b``.\n",
    "thought": THOUGHT,
    "nothing": "a <b> [c] {d}\n{e}\n<tool <tool_ca ```x y\n```json\n{z}\n``` \n",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_split_of_the_text_before_a_call_finds_the_same(name: str) -> None:
    text = ANSWERS[name]
    for at in range(len(text)):
        if text[:at].endswith(("<tool", "<tool_ca", "`")) or 0 < at < len("<think>"):
            continue  # what was sent can't be taken back
        found = scanned([text[at:] + TAGGED], said=text[:at])
        left = "".join(each for each in found if isinstance(each, str))
        assert (text[:at] + left).rstrip() == text.rstrip(), at
        assert found[-1] == paris("tool_call"), at


@pytest.mark.parametrize(
    ("said", "rest", "found"),
    [
        ("A\n", f"{TAGGED}\nB", (paris("tool_call"), "B")), ("A", f"\n{TAGGED}\nB", ("\n", paris("tool_call"), "B")),
        ("A <tool", "box", ("box",)), ("```py\nx", f"\n{P}\n```\n{P}", (f"\n{P}\n```\n", paris("bare"))),
        ("```py\nx\n``", f"`\n{P}", ("`\n", paris("bare"))), ("<think>", P, (P,)),
        ("<think>x</th", f"ink>{P}", ("ink>", paris("bare"))), ("A: ", f"{P}", (P,)), ("", P, (paris("bare"),)),
        (f"A\n{TAGGED}", f"\n{TAGGED}", (paris("tool_call"),)),
    ],
)  # fmt: skip
def test_where_an_answer_was_left(said: str, rest: str, found: tuple[Found, ...]) -> None:
    assert scanned([rest], said=said) == scanned(rest, said=said) == found


def test_where_one_call_is_allowed_there_is_none_after_one_of_an_earlier_attempt() -> None:
    scanner = CallScanner(offer(parallel_tool_calls=False), "A", calls_before=1)
    assert [span.found for span in [*scanner.feed(f"\n{P}"), *scanner.close()]] == [()]
