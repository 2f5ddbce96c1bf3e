from __future__ import annotations

from proxy.tokens.sentencepiece import SentencePieceVocabulary, is_apart

# "ab" before "bc": of "abc" only one can be.
PIECES = ["▁", "a", "b", "c", "é", "漢", "ab", "bc", "▁ab", "éa"]


def vocabulary(*more: str, prefix: bool = False) -> SentencePieceVocabulary:
    return SentencePieceVocabulary("x", [*PIECES, *more], prefix=prefix)


def test_merges_in_the_order_of_pieces() -> None:
    assert vocabulary().count("abc") == 2
    assert vocabulary().count("bc") == 1
    assert vocabulary().count(" ab") == 1


def test_known_characters_are_one_and_unknown_ones_their_bytes() -> None:
    assert vocabulary().count("é") == 1
    assert vocabulary().count("éa") == 1
    assert vocabulary().count("漢漢") == 2
    assert vocabulary().count("ñ") == 2
    assert vocabulary().count("漣") == 3  # begins with the same two bytes as 漢
    assert vocabulary().count("漣漢\u6f00é") == 3 + 1 + 3 + 1
    assert vocabulary().count("😀") == 4


def test_a_space_is_put_before_where_the_model_does() -> None:
    assert vocabulary().count("ab") == 1
    assert vocabulary(prefix=True).count("ab") == 1
    assert vocabulary(prefix=True).count("c") == 2
    assert vocabulary(prefix=True).count("") == 0


def test_runs_and_tags_stand_apart() -> None:
    assert vocabulary("\n\n").count("a\n\nb") == 3
    tagged = vocabulary("\n\n", "<b>", "</b>", "a<")
    assert tagged.count("a<b>c</b>") == 4
    assert tagged.count("a<c") == 2
    assert tagged.count("  <b>") == 3


def test_what_stands_apart() -> None:
    assert [is_apart(token) for token in ("\n\n", "▁▁", "\t\t\t", "<h1>", "</em>")] == [True] * 5
    assert [is_apart(token) for token in ("\n", "<unused 1>", "<|x|>", "▁a", "[m]", "")] == [False] * 6
