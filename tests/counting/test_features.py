from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.counting import features
from proxy.counting.features import CLASSES, SIZE, add, byte_classes, message_vector, request_vector

NAMES = (
    *("digits", "letters", "spaces", "newlines", "punctuation"),
    *("latin", "greek", "cyrillic", "hebrew", "arabic", "devanagari", "thai", "indic", "e1", "e2"),
    *("kana", "han", "hangul", "private", "emoji", "upper", "pairs"),
)


def named(text: str) -> dict[str, float]:
    return {name: n for name, n in zip(NAMES, byte_classes(text.encode()), strict=True) if n}


def test_ascii_falls_into_five_classes_and_capitals_and_indents_count_again() -> None:
    assert named("Ab 12,\n\t    x") == {
        "digits": 2, "letters": 3, "spaces": 5, "newlines": 2, "punctuation": 1, "upper": 1, "pairs": 2,
    }  # fmt: skip


def test_each_script_counts_a_character_once() -> None:
    assert named("éλжשع") == {"latin": 1, "greek": 1, "cyrillic": 1, "hebrew": 1, "arabic": 1}
    assert named("अกক") == {"devanagari": 1, "thai": 1, "indic": 1}
    assert named("ế→か漢한ﬀ😀") == {
        "e1": 1, "e2": 1, "kana": 1, "han": 1, "hangul": 1, "private": 1, "emoji": 1,
    }  # fmt: skip


@given(st.text(), st.text())
def test_classes_of_joined_texts_are_the_sum_save_for_pairs(left: str, right: str) -> None:
    left, right = (text.encode("utf-8", "replace").decode() for text in (left, right))
    joined = byte_classes((left + right).encode())
    apart = add([byte_classes(left.encode()), byte_classes(right.encode())], CLASSES)
    assert joined[:-1] == apart[:-1]
    assert joined[-1] - apart[-1] in {0, 1}


def test_vectors_have_one_shape() -> None:
    text = (3, *features.NO_CLASSES)
    assert len(message_vector(text, calls=1, reasoning=2, images=1, image_tokens=9)) == SIZE
    assert len(request_vector(tools=1, schema=2)) == SIZE
    assert len((*text, *features.PLAIN_MESSAGE)) == SIZE == len(features.EMPTY) == len(add([]))


def test_the_names_point_where_the_numbers_are() -> None:
    x = message_vector((3, *features.NO_CLASSES), calls=1, reasoning=2, images=4, image_tokens=9)
    at = (features.BASE, features.MESSAGES, features.CALLS, features.REASONING, features.IMAGES)
    assert [x[i] for i in at] == [3, 1, 1, 2, 4]
    assert x[features.IMAGE_TOKENS] == 9
    y = request_vector(tools=5, schema=6)
    assert (y[features.FIRST], y[features.TOOLS], y[features.SCHEMA]) == (1, 5, 6)
