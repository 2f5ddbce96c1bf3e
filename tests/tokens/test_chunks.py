from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.vocabulary import chunks


@given(st.text(alphabet="ab \n1漢", max_size=400), st.integers(1, 50), st.integers(1, 20))
def test_the_pieces_make_up_the_text(text: str, size: int, reach: int) -> None:
    pieces = list(chunks(text, size, reach))
    assert "".join(pieces) == text
    assert all(len(piece) <= size + reach for piece in pieces)


def test_cuts_before_a_word_or_at_the_start_of_a_line() -> None:
    assert list(chunks("aaaa bbbb cccc", 6, 6)) == ["aaaa bbbb", " cccc"]
    assert list(chunks("aaaa;;\nbbbb;;;;", 5, 5)) == ["aaaa;;\n", "bbbb;;;;"]


def test_cuts_anywhere_where_there_is_no_word() -> None:
    assert list(chunks("=" * 25, 8, 4)) == ["=" * 8, "=" * 8, "=" * 9]
