from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.recall.words import folded, language_of, terms


def test_words_are_stemmed_and_function_words_left_out() -> None:
    assert terms("What painters did you recommend to me?") == ["painter", "recommend"]
    assert terms("recommendations") == terms("recommending") == ["recommend"]


def test_the_language_is_that_of_the_function_words() -> None:
    assert language_of(["ich", "habe", "das", "buch", "gelesen"]) == "german"
    assert language_of(["quelle", "est", "la", "couleur", "de", "ma", "voiture"]) == "french"
    assert language_of(["мы", "были", "там", "когда", "он", "пришел"]) == "russian"
    assert language_of(["xyzzy"]) == language_of(["ja"]) == "english"
    assert terms("Die Bücher, die ich gelesen habe") == ["buch", "geles"]


def test_accents_width_and_case_make_no_difference() -> None:
    assert folded("CAFÉ \uff21\uff42\uff43") == "cafe abc"
    assert terms("ÉLÉPHANT") == terms("elephant")


def test_unspaced_scripts_are_cut_into_pairs() -> None:
    assert terms("我去了博物馆") == ["我去", "去了", "了博", "博物", "物馆"]
    assert terms("茶") == ["茶"]
    assert "박물" in terms("박물관에")
    assert terms("用Python写") == ["用", "python", "写"]


def test_identifiers_paths_and_numbers_count_whole_and_in_parts() -> None:
    found = terms("see src/app/main.py:42 and load_file, 10.0.0.1")
    assert {"src/app/main.py:42", "main", "load_file", "load", "10.0.0.1"} <= set(found)


def test_contractions_are_words_not_identifiers() -> None:
    assert terms("don't I'll Anna's") == ["don", "anna"]


@given(st.text(max_size=300))
@example("\U0001d400")
def test_every_text_has_terms_or_none_and_a_folded_text_the_same_ones(text: str) -> None:
    found = terms(text)
    assert all(found)
    assert terms(folded(text)) == found
