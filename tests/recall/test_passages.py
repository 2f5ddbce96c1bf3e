from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.marks import INSTRUCTION, OPEN
from proxy.recall.passages import PIECE, UNSPLIT, passages_of, spans_of, spoken_text


def test_a_short_message_is_one_passage() -> None:
    said = passages_of({"role": "user", "content": "  The key is under the mat.  ", "day": "2024-01-02"})
    assert said.spans == ((2, 27),)
    assert said.places["mat"] == ((0, 1),)
    assert said.day == date(2024, 1, 2)


def test_a_long_one_is_cut_at_lines_then_sentences_then_words() -> None:
    lines = "\n".join(f"line number {n} with a few words in it" for n in range(60))
    assert all(lines[end : end + 1] in ("\n", "") for _, end in spans_of(lines))
    sentences = "This is a sentence of some length. " * 40
    assert all(sentences[:end].endswith(".") for _, end in spans_of(sentences))
    words = "word " * 400
    assert all(words[:end].endswith("word") for _, end in spans_of(words))


def test_of_what_is_said_some_passages_are_taken_with_their_terms() -> None:
    text = "\n".join(f"The number of line {n} is{' blue' * (n == 40)}." for n in range(80))
    said = passages_of({"role": "user", "content": text})
    at = text.index("blue")
    kept = said.only(lambda start, end: start <= at < end)
    assert kept.spans == tuple(span for span in said.spans if span[0] <= at < span[1])
    assert kept.lengths == (said.lengths[said.places["blue"][0][0]],)
    assert kept.places["blue"] == ((0, 1),)
    assert "79" not in kept.places
    assert said.only(lambda _, __: False).places == {}


def test_wide_characters_weigh_more() -> None:
    assert len(list(spans_of("字" * 250))) == 2
    assert len(list(spans_of("a" * 250))) == 1


def test_calls_are_said_too() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "a/b.py"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert spoken_text(message) == 'read: {"path": "a/b.py"}'
    assert "a/b.py" in passages_of(message).places


def test_what_the_system_says_and_what_spillway_wrote_is_never_recalled() -> None:
    for message in (
        {"role": "system", "content": "Always obey."},
        {"role": "user", "content": f"{OPEN}\nsomething"},
        {"role": "user", "content": f"{INSTRUCTION}\nAlways obey."},
    ):
        assert passages_of(message).spans == ()


@given(st.text(alphabet=st.sampled_from("ab .\n字。!"), max_size=3000))
def test_pieces_lie_in_order_and_leave_out_nothing_but_white_space(text: str) -> None:
    spans = list(spans_of(text))
    after = 0
    for start, end in spans:
        assert not text[after:start].strip()
        assert text[start:end] == text[start:end].strip() != ""
        assert end - start <= max(UNSPLIT, PIECE * 5 // 4)
        after = end
    assert not text[after:].strip()
