from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.profile import RepairRules
from proxy.core.history.marks import CLOSE, OPEN
from proxy.core.history.turns import bridge_needed, calls_of, cut_points, first_user, is_result, is_user, newest_user
from proxy.core.request import Message, text_of
from proxy.shaping.repair import repair
from tests.histories import assistant, call, flaws, histories, tool, user, written

SYSTEM: Message = {"role": "system", "content": "s"}


@given(histories())
def test_a_cut_never_separates_a_call_from_its_results(messages: list[Message]) -> None:
    points = cut_points(messages)
    assert points[0] == 0
    assert points[-1] == len(messages)
    assert points == sorted(set(points))
    for point in points:
        for part in (messages[:point], messages[point:]):
            assert [flaw for flaw in flaws(part) if "call" in flaw] == []


@pytest.mark.parametrize("form", [list, written], ids=["native", "as text"])
def test_a_batch_is_whole_even_with_something_in_between(form: Callable[[list[Message]], list[Message]]) -> None:
    """Some clients put an image that a tool gave into a user message between two results."""
    batch = form([assistant(None, tool_calls=[call(1), call(2)]), tool(1, "a"), user("image"), tool(2, "b")])
    assert cut_points([user("a"), *batch, assistant("b")]) == [0, 1, 5, 6]
    assert cut_points([user("a"), *batch[:2], assistant("b"), user("c")]) == [0, 1, 3, 4, 5]


def test_odd_histories_are_cut_anywhere() -> None:
    assert cut_points([tool(1, "a"), tool(2, "b"), user("c")]) == [0, 2, 3]
    assert cut_points([user("a"), assistant("", tool_calls=[call(1)]), user("b")]) == [0, 1, 2, 3]
    assert (cut_points([]), first_user([SYSTEM]), newest_user([])) == ([0], None, None)


def test_results_as_text_are_not_what_the_user_says() -> None:
    batch = written([assistant(None, tool_calls=[call(1)]), tool(1, "a")])
    messages = [batch[1], user("a"), *batch, user("[TOOL_RESULT]b[/TOOL_RESULT] is what?"), *batch]
    assert [is_result(m) for m in messages] == [True, False, False, True, False, False, True]
    assert (first_user(messages), newest_user(messages)) == (1, 4)
    assert newest_user(batch) is None


def test_a_summary_is_not_what_the_user_began_with() -> None:
    written = user(f"{OPEN}\nThey talked of this and that.\n{CLOSE}")
    assert first_user([SYSTEM, written, assistant("Noted."), user("a")]) is None
    assert first_user([SYSTEM, user("a"), assistant("b"), written]) == 1


def test_ids_that_are_used_again_bind_to_the_newest_call() -> None:
    step = [assistant(None, tool_calls=[call(0)]), tool(0, "a")]
    assert cut_points([user("a"), *step, *step, *step]) == [0, 1, 3, 5, 7]


def test_a_long_history_is_cut_in_linear_time() -> None:
    step = [assistant(None, tool_calls=[call(0)]), tool(0, "a")]
    assert len(cut_points(step * 20_000)) == 20_001


@pytest.mark.parametrize("calls", [None, 5, "x", {}, [None, 5]])
def test_odd_calls_are_none(calls: object) -> None:
    assert calls_of({"role": "assistant", "tool_calls": calls}) == []


@pytest.mark.parametrize(
    ("before", "after", "speaker"),
    [
        (user("a"), [assistant("b")], None), (user("a"), [user("b")], "assistant"),
        (assistant("a"), [assistant("b"), user("c")], "user"), (assistant("a"), [SYSTEM, assistant("b")], "user"),
        (assistant("a"), [SYSTEM, user("b")], None), (assistant("a"), [], None), (None, [user("a")], None),
        (None, [SYSTEM, assistant("a")], "user"), (tool(1, "a"), [tool(2, "b")], None),
    ],
)  # fmt: skip
def test_who_has_to_speak_in_between(before: Message | None, after: list[Message], speaker: str | None) -> None:
    assert bridge_needed(before, after) == speaker


@given(histories(), st.lists(st.integers(0, 20), min_size=1, max_size=4), st.booleans())
def test_the_system_never_speaks_for_the_user(messages: list[Message], places: list[int], alternate: bool) -> None:
    """Some families take system messages at the beginning only; one in the middle becomes a user message."""
    messages = [*messages, *([assistant("b")] if messages[-1]["role"] == "user" else []), user("What now?")]
    for place in places:
        messages.insert(place, SYSTEM)
    mended = repair(messages, RepairRules(one_system=True, alternate=alternate))[0]
    newest = newest_user(mended)
    assert newest is not None
    assert text_of(mended[newest]).startswith("What now?")


def test_what_the_system_says_in_the_middle_is_not_the_users() -> None:
    mended = repair([assistant("b"), SYSTEM], RepairRules(one_system=True))[0]
    assert [m["role"] for m in mended] == ["assistant", "user"]
    assert not any(map(is_user, mended))
