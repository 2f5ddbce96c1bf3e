from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.overflow import POOL_FULL, Overflow
from proxy.backends.profile import Continuation
from proxy.backends.refusals import ToolRefusal
from proxy.backends.remedy import MOST_SHORTENED, MOST_WAITS, Refusal, Remedy, Spent, remedy

TOO_LONG = Overflow(4096, 5000, "llama.cpp")
NO_TOOLS = ToolRefusal("Ollama")

refusals = st.builds(
    Refusal,
    overflow=st.sampled_from([None, TOO_LONG, POOL_FULL]),
    tools=st.sampled_from([None, NO_TOOLS]),
    roomy=st.booleans(),
    way=st.sampled_from([None, *Continuation]),
)


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(overflow=TOO_LONG), Remedy.SHORTEN),
        (Refusal(overflow=TOO_LONG, roomy=True), Remedy.SHORTEN),
        (Refusal(overflow=POOL_FULL, roomy=True), Remedy.WAIT),
        (Refusal(overflow=POOL_FULL, roomy=False), Remedy.SHORTEN),
        (Refusal(tools=NO_TOOLS), Remedy.EMULATE),
        (Refusal(way=Continuation.FLAGS), Remedy.OTHER_WAY),
        (Refusal(way=Continuation.FLAGS, tools=NO_TOOLS), Remedy.OTHER_WAY),
        (Refusal(overflow=TOO_LONG, way=Continuation.QUOTE), Remedy.SHORTEN),
        (Refusal(), Remedy.GIVE_UP),
    ],
)
def test_each_refusal_has_its_remedy(refusal: Refusal, expected: Remedy) -> None:
    assert remedy(refusal, Spent()) is expected


def test_a_prompt_is_shortened_so_often_in_a_row_and_anew_once_the_model_spoke() -> None:
    spent = Spent()
    assert [remedy(Refusal(overflow=TOO_LONG), spent) for _ in range(MOST_SHORTENED + 1)] == [
        *[Remedy.SHORTEN] * MOST_SHORTENED,
        Remedy.GIVE_UP,
    ]
    spent.answered()
    assert remedy(Refusal(overflow=TOO_LONG), spent) is Remedy.SHORTEN


def test_a_full_pool_that_stays_full_is_taken_for_a_full_window() -> None:
    spent, full = Spent(), Refusal(overflow=POOL_FULL, roomy=True)
    assert {remedy(full, spent) for _ in range(MOST_WAITS)} == {Remedy.WAIT}
    assert remedy(full, spent) is Remedy.SHORTEN


@pytest.mark.no_cover
@given(st.lists(refusals, min_size=60, max_size=120))
def test_whatever_a_backend_refuses_a_request_is_sent_a_bounded_number_of_times(said: list[Refusal]) -> None:
    spent = Spent()
    done = [remedy(refusal, spent) for refusal in said]
    assert done.count(Remedy.SHORTEN) <= MOST_SHORTENED
    assert done.count(Remedy.WAIT) <= MOST_WAITS
    assert done.count(Remedy.EMULATE) <= 1
    assert done.count(Remedy.OTHER_WAY) <= len(Continuation)
