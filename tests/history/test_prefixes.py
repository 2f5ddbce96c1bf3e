"""What is remembered of histories is found again by how they begin, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.history.chain import Chains, chain
from proxy.history.prefixes import BRANCHES, LEAST, Prefixes
from proxy.neutral.request import Message
from tests.histories import assistant, call, user


def turns(count: int) -> list[Message]:
    return [(user, assistant)[number % 2](f"message {number}") for number in range(count)]


def kept(known: Prefixes[str], messages: list[Message], value: str, scope: str = "") -> None:
    found = known.longest(scope, messages)
    known.keep(found, found.grown(value))


def test_a_history_that_goes_on_is_known_as_far_as_it_was_there() -> None:
    known: Prefixes[str] = Prefixes(10**6)
    kept(known, turns(20), "twenty")
    found = known.longest("", turns(22))
    assert (found.common, found.value) == (20, "twenty")
    assert list(found.shared) == turns(20)


def test_an_edited_history_is_known_up_to_the_edit() -> None:
    known: Prefixes[str] = Prefixes(10**6)
    kept(known, turns(20), "twenty")
    edited = [*turns(20), user("more")]
    edited[7] = assistant("something else")
    assert known.longest("", edited).common == 7


def test_of_several_branches_the_longest_one_counts() -> None:
    known: Prefixes[str] = Prefixes(10**6)
    for branch in range(BRANCHES):
        kept(known, [*turns(20), user(f"branch {branch}"), assistant("end")], f"branch {branch}")
    for branch in range(BRANCHES):
        found = known.longest("", [*turns(20), user(f"branch {branch}")])
        assert (found.common, found.value) == (21, f"branch {branch}")
    kept(known, [*turns(20), user("one more")], "one more")
    assert known.longest("", [*turns(20), user("branch 0")]).common == 20


def test_another_scope_knows_nothing_of_it() -> None:
    known: Prefixes[str] = Prefixes(10**6)
    kept(known, turns(20), "twenty", scope="a")
    assert known.longest("b", turns(20)).common == 0


@pytest.mark.parametrize(
    ("then", "now"), [(1, True), (0, False), (True, 1), ([{"a": 1}], [{"a": True}]), (1, 1.0)]
)
def test_what_python_takes_for_the_same_is_not(then: Any, now: Any) -> None:
    known: Prefixes[str] = Prefixes(10**6)
    kept(known, [*turns(20), user("a", flag=then), *turns(4)], "then")
    assert known.longest("", [*turns(20), user("a", flag=now), *turns(4)]).common == 20
    assert known.longest("", [*turns(20), user("a", flag=then), *turns(4)]).common == 25


def test_what_is_remembered_is_bounded() -> None:
    known: Prefixes[str] = Prefixes(100_000)
    for number in range(40):
        kept(known, [user(f"head {number}"), assistant("x" * 9000), *turns(10)], "")
    assert known.longest("", [user("head 39")]).common == 1
    assert known.longest("", [user("head 0")]).common == 0
    kept(known, [user("large"), assistant("x" * 200_000)], "")
    assert known.longest("", [user("large")]).common == 0
    assert known.longest("", [user("head 39")]).common == 1


def test_what_is_nested_without_end_is_not_remembered() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    known: Prefixes[str] = Prefixes(10**6)
    history = [user("a"), user("b", deep=deep)]
    kept(known, history, "")
    assert known.longest("", history).common == 0


MESSAGES = st.lists(
    st.one_of(
        st.builds(user, st.sampled_from("ab")),
        st.builds(assistant, st.sampled_from("ab ")),
        st.builds(lambda at: assistant(None, tool_calls=[call(at)]), st.integers(0, 2)),
    ),
    max_size=6,
)


@given(st.lists(st.tuples(st.integers(0, 40), MESSAGES), max_size=8))
def test_a_chain_is_the_same_whatever_was_seen_before(edits: list[tuple[int, list[Message]]]) -> None:
    chains, history = Chains(10**6), turns(LEAST)
    for at, new in edits:
        history = [*(dict(message) for message in history[:at]), *new]
        found = chains.find(history)
        assert chains.keep(found, chains.go_on(found)) == chain(history)
