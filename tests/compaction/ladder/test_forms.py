"""Tools as fields of messages and tools as text are shortened alike: each rung, on native, text and mixed histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.cap import cap_results
from proxy.compaction.compaction import RUNGS
from proxy.compaction.ladder import Reduction, drop_duplicates, drop_oldest, mask_results
from proxy.compaction.middles import cut_middles
from proxy.compaction.results import NOTE, results_of, unread_from
from proxy.core.history.turns import cut_points, first_user, newest_user
from proxy.core.request import Message
from tests.histories import (
    FORMS,
    assistant,
    call,
    half_written,
    histories,
    mixed_flaws,
    mixed_histories,
    reduction_of,
    tool,
    user,
    written,
)

LONG = "some text that is long enough to be worth a pointer in its place " * 4
forms = pytest.mark.parametrize("form", FORMS)


def step(number: int, text: str, name: str = "read", arguments: str = "{}") -> list[Message]:
    return [assistant("Look.", tool_calls=[call(number, name, arguments)]), tool(number, text)]


def whole(messages: Sequence[Message], budget: float = 0.0, **limits: Any) -> Reduction:
    """A reduction in which everything but the head may be shortened."""
    reduction = reduction_of(messages, budget, protect=limits.pop("protect", 0))
    return replace(reduction, tail=len(messages), limits=replace(reduction.limits, **limits))


def results(messages: Sequence[Message]) -> list[tuple[str, str | None, str]]:
    return [(r.name, r.arguments, r.text) for r in results_of(messages)]


# -- the same is seen in every form


@given(histories(longest=5))
def test_turns_are_the_same_in_every_form(messages: list[Message]) -> None:
    for same in (written(messages), half_written(messages)):
        assert mixed_flaws(same) == []
        assert cut_points(same) == cut_points(messages)
        assert newest_user(same) == newest_user(messages)
        assert first_user(same) == first_user(messages)
        assert unread_from(same) == unread_from(messages)


@forms
def test_results_know_their_calls(form: str) -> None:
    both = [call(1, "grep", '{"q": 1}'), call(2, "ls", '{"p":2}'), call(3, "grep", '{"q":3}')]
    parts = [{"type": "text", "text": "3a"}, {"type": "image_url"}, {"type": "text", "text": "3b"}]
    messages = [
        user("a"),
        *step(0, "zero", arguments='{"n":0}'),
        assistant(None, tool_calls=both),
        tool(1, "one"),
        tool(2, "two"),
        {**tool(3, ""), "content": parts},
        *step(1, "again", arguments='{"n":1}'),
        user("Look at <tool_result tool_name='ls'>mine</tool_result>"),
    ]
    assert results(FORMS[form](messages)) == [
        ("read", '{"n":0}', "zero"),
        ("grep", '{"q": 1}', "one"),
        ("ls", '{"p":2}', "two"),
        ("grep", '{"q":3}', "3a"),
        ("grep", '{"q":3}', "3b"),
        ("read", '{"n":1}', "again"),
        ("ls", None, "mine"),
    ]


def test_results_without_a_name_answer_the_calls_in_their_order() -> None:
    batch = written([assistant(None, tool_calls=[call(1, "a", '{"x":1}'), call(2, "b")])])
    messages = [user("q"), *batch, user("[TOOL_RESULT]1[/TOOL_RESULT]\n\n[TOOL_RESULT]2[/TOOL_RESULT]")]
    assert [r[:2] for r in results(messages)] == [("a", '{"x":1}'), ("b", '{"path":"a.py"}')]


def test_results_that_were_joined_as_parts_keep_their_calls() -> None:
    parts = [{"type": "text", "text": f"[TOOL_RESULT]{n}[/TOOL_RESULT]"} for n in range(2)]
    batch = written([assistant(None, tool_calls=[call(1, "a"), call(2, "b")])])
    joined = [parts[0], {"type": "text", "text": "\n\n"}, parts[1]]
    assert [r[0] for r in results([*batch, {"role": "user", "content": joined}])] == ["a", "b"]
    assert [r[0] for r in results([*batch, {"role": "user", "content": parts}])] == ["a", "a"]
    both = [{"type": "text", "text": parts[0]["text"] + parts[1]["text"]}]
    assert [r[0] for r in results([*batch, {"role": "user", "content": both}])] == ["a", "b"]


# -- the rungs


@forms
def test_cap_goes_by_the_tool_and_its_arguments(form: str) -> None:
    lines = "\n".join(f"line {n} of it" for n in range(300))
    messages = [
        user("a"),
        *step(1, lines),
        *step(2, lines, "bash"),
        *step(3, lines, "bash", '{"command":"ls -l"}'),
        assistant("b"),
    ]
    limits = {"lines": 40, "line_characters": 200, "output_characters": 500, "entries": 10, "result_tokens": 10_000}
    native = results(cap_results(whole(messages, **limits)).messages)
    assert [len(text.split("\n")) <= most for (_, _, text), most in zip(native, (40, 40, 11), strict=True)]
    assert len({text for _, _, text in native}) == 3
    done = cap_results(whole(FORMS[form](messages), **limits))
    assert results(done.messages) == native
    assert mixed_flaws(done.messages) == []


@forms
def test_mask_leaves_the_newest_and_the_unread(form: str) -> None:
    steps = [m for n in range(6) for m in step(n, f"line {n} " * 200)]
    messages = FORMS[form]([user("a"), *steps])
    reduction = whole(messages)
    # So much that the last result, which is unread, and the two before it are protected.
    reduction = replace(reduction, limits=replace(reduction.limits, protect_newest=int(3.5 * reduction.costs[2])))
    done = list(mask_results(reduction).messages)
    assert [n for n, (a, b) in enumerate(zip(messages, done, strict=True)) if a is not b] == [2, 4, 6]
    note = results(done)[0]
    assert note[2].startswith(f"{NOTE} to save room: read, 1400 characters. It began: line 0 line 0")
    assert mixed_flaws(done) == []
    assert results(mask_results(whole(messages)).messages)[-1][2] == "line 5 " * 200


@forms
def test_repeated_results_and_superseded_reads_leave_pointers(form: str) -> None:
    messages = [
        user("a"),
        *step(1, "old " + LONG, arguments='{"p":1}'),
        *step(2, "other " + LONG, arguments='{"p":2}'),
        *step(3, "other " + LONG, "cat"),
        *step(4, "new " + LONG, arguments='{"p":1}'),
        *step(5, "last"),
    ]
    done = drop_duplicates(whole(FORMS[form](messages)))
    assert [text.startswith(NOTE) for _, _, text in results(done.messages)] == [True, True, False, False, False]
    assert "read was called again" in results(done.messages)[0][2]
    assert "cat returned the same" not in results(done.messages)[0][2]
    assert mixed_flaws(done.messages) == []


@forms
def test_a_result_stays_one_when_its_image_goes(form: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/" + "x" * 400}}
    batches = [m for n in range(5) for m in step(n, "")]
    for message in batches[1::2]:
        message["content"] = [{"type": "text", "text": "A picture."}, image]
    messages = FORMS[form]([user("a"), *batches, assistant("b"), user("c")])
    done = drop_duplicates(reduction_of(messages, 0))
    assert sum("example.org" in str(m["content"]) for m in done.messages) == 3
    assert mixed_flaws(done.messages) == []
    assert newest_user(done.messages) == len(messages) - 1
    assert cut_points(done.messages) == cut_points(messages)


@forms
def test_whole_turns_are_dropped(form: str) -> None:
    steps = [
        m
        for n in range(0, 12, 2)
        for m in (assistant(None, tool_calls=[call(n), call(n + 1)]), tool(n, LONG), tool(n + 1, LONG))
    ]
    messages = FORMS[form]([user("a"), *steps, assistant("b"), user("c")])
    kept = []
    for budget in range(0, int(reduction_of(messages, 0).total), 60):
        done = drop_oldest(reduction_of(messages, budget)).messages
        assert mixed_flaws(done) == []
        assert done[0] is messages[0]
        assert done[-1] is messages[-1]
        kept.append(len(results_of(done)))
    assert set(kept) == {0, 2, 4, 6, 8, 10}


@forms
def test_middles_are_cut_inside_of_results_and_around_calls(form: str) -> None:
    arguments = '{"text":"' + "y" * 3000 + '"}'
    messages = [
        user("a"),
        assistant("Thus: " + "because " * 300, tool_calls=[call(1, "write", arguments)]),
        tool(1, "x" * 9000),
        *step(2, "short"),
    ]
    done = cut_middles(whole(FORMS[form](messages), 1400))
    assert mixed_flaws(done.messages) == []
    (_, kept, cut), (_, _, short) = results(done.messages)
    assert kept == arguments
    assert short == "short"
    assert "characters left out here" in cut
    assert (cut[:100], cut[-100:]) == ("x" * 100, "x" * 100)
    assert done.fits


def test_several_results_in_one_message_are_cut_each_for_itself() -> None:
    one = "<tool_result tool_name='read'>" + "a" * 5000 + "</tool_result>"
    messages = [user("q"), *written(step(1, "x"))[:1], user(f"{one}\n\n{one}")]
    done = cut_middles(whole(messages, 600))
    assert done.fits
    texts = [text for _, _, text in results(done.messages)]
    assert [("left out here" in text, len(text) < 2000) for text in texts] == [(True, True)] * 2


def test_what_is_left_without_a_question_begins_with_the_user() -> None:
    """Chat templates refuse a conversation that the assistant begins; a result as text is no question."""
    steps = written([m for n in range(6) for m in step(n, LONG)])
    done = drop_oldest(replace(reduction_of(steps, 200), tail=len(steps) - 2))
    assert [m["role"] for m in done.messages] == ["user", "assistant", "user"]
    assert list(done.messages[1:]) == steps[-2:]


@given(mixed_histories(), st.permutations([*RUNGS.values()]), st.floats(0.05, 1.0), st.integers(0, 200))
def test_the_rungs_keep_the_invariants_on_mixed_histories(
    messages: list[Message], rungs: list[Any], share: float, protect: int
) -> None:
    reduction = reduction_of(messages, reduction_of(messages, 0).total * share, protect=protect)
    for rung in (*rungs, *rungs):
        for tail in (newest_user(messages) or 0, len(messages)):
            reduction = rung(replace(reduction, tail=tail))
    assert mixed_flaws(reduction.messages) == mixed_flaws(messages) == []
    newest = newest_user(messages)
    assert newest_user(reduction.messages) == newest
    for index, (old, new) in enumerate(zip(messages, reduction.messages, strict=True)):
        assert old is new or (reduction.floor <= index != newest and {**old, "content": 0} == {**new, "content": 0})
    assert reduction.total < reduction_of(messages, 0).total or list(reduction.messages) == messages
