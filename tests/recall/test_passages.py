import re
from datetime import date
from typing import Any

import pytest
import snowballstemmer
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.history.marks import INSTRUCTION, OPEN
from proxy.recall.passages import PIECE, UNSPLIT, day_term, days_in, passages_of, spans_of, spoken_text, written_on
from proxy.recall.words import FUNCTION_WORDS, folded, language_of, terms


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What painters did you recommend to me?", ["painter", "recommend"]),
        ("recommendations recommending", ["recommend", "recommend"]),
        ("CAFÉ \uff21\uff42\uff43", ["cafe", "abc"]),
        ("don't I'll Anna's", ["don", "anna"]),
        ("मेरी साइकिलें", ["मेर", "साइकिल"]),
        ("আমার সাইকেল ❤️ 1️⃣", ["আমার", "সাইকেল", "1"]),
        ("الدواء دراجتها", ["دواء", "دراج"]),
        ("τα ποδήλατα", ["τα", "ποδηλατ"]),
        ("load_file 10.0.0.1", ["load_file", "load", "file", "10.0.0.1", "10", "0", "0", "1"]),
    ],
)
def test_terms_are_stems_without_function_words_and_identifiers_whole_and_in_parts(text: str, found: list[str]) -> None:
    assert terms(text) == found


@given(st.from_regex(r"[a-z0-9]{2,40}", fullmatch=True).filter(lambda word: word not in FUNCTION_WORDS["english"]))
@example("utf8s")
@example("a1b2c3d4")
@example("running9")
@example("aGVsbG8gd29ybGQhIHRoZSBxdWljayBicm93bnM".lower())
@example("7f3ab9edings")
def test_a_part_of_a_path_has_the_stem_that_the_stemmer_gives_it_unless_it_is_no_word(word: str) -> None:
    is_word = len(word) <= 32 and not re.search(r"\d[a-z]+\d", word)
    stem = snowballstemmer.stemmer("english").stemWord(word) if is_word else word
    assert terms(word) == [stem]
    assert terms(f"src/{word}")[1:] == ["src", stem]


def test_the_language_is_that_of_the_function_words() -> None:
    assert language_of(["ich", "habe", "das", "buch", "gelesen"]) == "german"
    assert language_of(["quelle", "est", "la", "couleur", "de", "ma", "voiture"]) == "french"
    assert language_of(["мы", "были", "там", "когда", "он", "пришел"]) == "russian"
    assert language_of(["xyzzy"]) == language_of(["ja"]) == "english"
    assert terms("Die Bücher, die ich gelesen habe") == ["buch", "geles"]
    assert terms("What about the dentist? Die Bücher, die ich gelesen habe") == ["dentist", "buch", "geles"]


def test_unspaced_scripts_are_cut_into_pairs() -> None:
    assert terms("我去了博物馆") == ["我去", "去了", "了博", "博物", "物馆"]
    assert terms("茶") == ["茶"]
    assert "박물" in terms("박물관에")
    assert terms("สีแดง ကျွန်") == ["สี", "ีแ", "แด", "ดง", "ကျ", "ျွ", "ွန", "န်"]
    assert terms("用Python写") == ["用", "python", "写"]


@given(st.text(max_size=300))
@example("\U0001d400")
def test_every_text_has_terms_or_none_and_a_folded_text_the_same_ones(text: str) -> None:
    found = terms(text)
    assert all(found)
    assert terms(folded(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("On May 4th, I shared", [(None, "day:5-4")]), ("the 3rd of June 2024", [(date(2024, 6, 3), "day:6-3")]),
        ("am 3. März 2023", [(date(2023, 3, 3), "day:3-3")]), ("le 1er août", [(None, "day:8-1")]),
        ("2 de mayo de 2021", [(date(2021, 5, 2), "day:5-2")]), ("9 мая", [(None, "day:5-9")]),
        ("我在5月2日说过", [(None, "day:5-2")]), ("2023年5月2日", [(date(2023, 5, 2), "day:5-2")]),
        ("2023-05-03T10:00", [(date(2023, 5, 3), "day:5-3")]), ("29 February", [(None, "day:2-29")]),
        ("31 June 2020, 2023-02-30", []), ("may 5:30, market 5, in 3 marches", []),
    ],
)  # fmt: skip
def test_days_are_read_in_the_forms_people_use(text: str, found: list[Any]) -> None:
    assert list(days_in(folded(text))) == found


@pytest.mark.parametrize(
    ("message", "day"),
    [
        ({"content": "[2023-05-03 09:12] hi there, how are you"}, date(2023, 5, 3)),
        ({"content": "8 May 2023\nhey"}, date(2023, 5, 8)),
        ({"content": "(1:56 pm on 8 May, 2023) hey"}, date(2023, 5, 8)),
        ({"content": [{"type": "text", "text": "2023-05-03: hi"}]}, date(2023, 5, 3)),
        ({"content": "x", "day": "2023-04-27"}, date(2023, 4, 27)),
        ({"content": "x", "timestamp": 1_700_000_000}, date(2023, 11, 14)),
        ({"content": "x", "created_at": "2024-02-29T12:00:00+00:00"}, date(2024, 2, 29)),
        ({"content": "x", "tool_call_id": "2023-01-01"}, None),
        ({"content": "x", "id": 1_700_000_000, "count": True}, None),
        ({"content": "We met on May 3, 2023 at the market, and since then I think of it " * 2}, None),
        ({"content": "On May 3rd I was there"}, None),
        ({"content": None}, None),
    ],
)
def test_a_message_tells_its_day_in_a_field_or_where_it_begins(message: dict[str, Any], day: date | None) -> None:
    assert written_on({"role": "user", **message}) == day


@given(st.dates(date(1950, 1, 1), date(2090, 1, 1)))
def test_iso_days_are_read_back(day: date) -> None:
    assert list(days_in(f"on {day.isoformat()}.")) == [(day, day_term(day))]


@given(st.text(alphabet="0123456789-/. :maymärz年月日,", max_size=60))
def test_no_text_is_too_odd(text: str) -> None:
    list(days_in(folded(text)))
    written_on({"role": "user", "content": text, "at": text})


def test_a_short_message_is_one_passage() -> None:
    said = passages_of({"role": "user", "content": "  The key is under the mat.  ", "day": "2024-01-02"})
    assert (said.spans, said.places["mat"]) == (((2, 27),), ((0, 1),))
    assert said.day == date(2024, 1, 2)


def test_a_long_one_is_cut_at_lines_then_sentences_then_words() -> None:
    lines = "\n".join(f"line number {n} with a few words in it" for n in range(60))
    assert all(lines[end : end + 1] in ("\n", "") for _, end in spans_of(lines))
    sentences = "This is a sentence of some length. " * 40
    assert all(sentences[:end].endswith(".") for _, end in spans_of(sentences))
    words = "word " * 400
    assert all(words[:end].endswith("word") for _, end in spans_of(words))


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


def test_of_what_is_said_some_passages_are_taken_with_their_terms() -> None:
    text = "\n".join(f"The number of line {n} is{' blue' * (n == 40)}." for n in range(80))
    some = passages_of({"role": "user", "content": text}, only=lambda passage: "blue" in passage)
    assert ["blue" in text[start:end] for start, end in some.spans] == [True]
    assert some.places["blue"] == ((0, 1),)
    assert "79" not in some.places
