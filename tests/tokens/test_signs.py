from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.signs import SignedVocabulary
from proxy.tokens.vocabulary import CoarseVocabulary

COARSE = CoarseVocabulary()
SIGNED = SignedVocabulary("signed", COARSE, (((" the ",), 1.0), ("đơ", -2.0)))


def test_each_sign_adds_its_weight() -> None:
    plain = "over the hills and the dales"
    assert SIGNED.count(plain) == COARSE.count(plain) + 2
    assert SIGNED.count("no sign of it") == COARSE.count("no sign of it")
    marked = "over the hills and far away, đ and ơ"
    assert SIGNED.count(marked) == COARSE.count(marked) - 3


@given(st.text(alphabet="ađơ the", max_size=60))
def test_no_text_is_free_or_takes_more_than_was_added(text: str) -> None:
    tokens = COARSE.count(text)
    assert max(bool(text), tokens // 2) <= SIGNED.count(text) <= tokens + text.count(" the ")
