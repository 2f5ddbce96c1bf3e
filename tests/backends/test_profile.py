from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.profile import Continuation, Fact, ModelProfile, Provider, Trust, merge_profiles


def window(value: int, trust: Trust) -> ModelProfile:
    return ModelProfile(window=Fact(value, "test", trust))


def value_of(profile: ModelProfile) -> int | None:
    return profile.window.value if profile.window is not None else None


PROBED = [Trust.FALLBACK, Trust.TRAINED, Trust.LISTED, Trust.CONFIGURED, Trust.LOADED, Trust.LEARNED]


def facts(values: st.SearchStrategy[object], trusts: list[Trust]) -> st.SearchStrategy[object]:
    return st.none() | st.builds(Fact, values, st.sampled_from(["a", "b"]), st.sampled_from(trusts))


def profiles(trusts: list[Trust]) -> st.SearchStrategy[ModelProfile]:
    lengths = facts(st.integers(1, 10), trusts)
    flags = facts(st.booleans(), list(Trust))
    return st.builds(
        ModelProfile,
        window=lengths,
        trained_window=lengths,
        max_output=lengths,
        tools=flags,
        vision=flags,
        continuation=facts(st.sampled_from(Continuation), list(Trust)),
        tokenizer=facts(st.sampled_from(["x", "y"]), list(Trust)),
        refused_continuations=facts(st.frozensets(st.sampled_from(Continuation)), list(Trust)),
        providers=facts(st.sampled_from([(Provider("A", "a", 8192),), ()]), trusts),
    )


@pytest.mark.parametrize("lower", PROBED[:-1])
def test_the_more_trusted_window_wins_in_either_order(lower: Trust) -> None:
    less, more = window(8192, lower), window(4096, Trust(lower + 1))
    assert value_of(merge_profiles(less, more)) == 4096
    assert value_of(merge_profiles(more, less)) == 4096


def test_of_equally_trusted_facts_the_later_wins() -> None:
    assert value_of(merge_profiles(window(1, Trust.LOADED), window(2, Trust.LOADED))) == 2


@pytest.mark.parametrize(("user", "learned", "expected"), [(32768, 8192, 8192), (8192, 32768, 8192), (8192, 8192, 8192)])
def test_the_user_gives_way_only_to_a_smaller_learnt_window(user: int, learned: int, expected: int) -> None:
    merged = merge_profiles(window(65536, Trust.LOADED), window(learned, Trust.LEARNED), window(user, Trust.USER))
    assert value_of(merged) == expected


@pytest.mark.parametrize(("trust", "provisional"), [(trust, trust not in (Trust.LOADED, Trust.USER)) for trust in Trust])
def test_a_window_that_is_settled_is_not_provisional(trust: Trust, *, provisional: bool) -> None:
    merged = merge_profiles(ModelProfile(provisional=True), window(4096, trust))
    assert merged.provisional is provisional


@given(profiles(PROBED), profiles(PROBED), profiles(PROBED))
def test_merging_is_associative(one: ModelProfile, two: ModelProfile, three: ModelProfile) -> None:
    flat = merge_profiles(one, two, three)
    assert merge_profiles(merge_profiles(one, two), three) == flat
    assert merge_profiles(one, merge_profiles(two, three)) == flat


@given(profiles(list(Trust)), profiles(list(Trust)))
def test_every_fact_comes_from_one_of_the_profiles(one: ModelProfile, two: ModelProfile) -> None:
    merged = merge_profiles(one, two)
    for field in fields(ModelProfile):
        if field.name != "provisional":
            given_facts = (getattr(one, field.name), getattr(two, field.name))
            assert getattr(merged, field.name) in given_facts
            assert getattr(merged, field.name) is not None or given_facts == (None, None)


@given(profiles(list(Trust)))
def test_merging_with_itself_or_nothing_changes_nothing(profile: ModelProfile) -> None:
    assert merge_profiles(profile) == profile
    assert merge_profiles(profile, profile, ModelProfile()) == profile


FLAGS, TRAILING, QUOTE = Continuation


def continued(how: Continuation | None, *refused: Continuation, trust: Trust = Trust.FALLBACK) -> ModelProfile:
    return ModelProfile(
        continuation=Fact(how, "test", trust) if how is not None else None,
        refused_continuations=Fact(frozenset(refused), "an error", Trust.LEARNED) if refused else None,
    )


@pytest.mark.parametrize(
    ("profile", "ways"),
    [
        (ModelProfile(), [FLAGS, TRAILING, QUOTE]), (continued(TRAILING), [TRAILING, FLAGS, QUOTE]),
        (continued(QUOTE), [QUOTE, FLAGS, TRAILING]), (continued(FLAGS, FLAGS), [TRAILING, QUOTE]),
        (continued(None, TRAILING), [FLAGS, QUOTE]), (continued(FLAGS, FLAGS, trust=Trust.USER), [FLAGS, TRAILING, QUOTE]),
        (continued(FLAGS, *Continuation), [QUOTE]),
    ],
)  # fmt: skip
def test_ways_to_continue_are_those_not_refused_best_first(profile: ModelProfile, ways: list[Continuation]) -> None:
    assert profile.ways((FLAGS, TRAILING, QUOTE)) == ways


def test_quoting_is_always_left() -> None:
    assert ModelProfile().ways(()) == [QUOTE]
    assert continued(None, FLAGS).ways((FLAGS,)) == [QUOTE]
