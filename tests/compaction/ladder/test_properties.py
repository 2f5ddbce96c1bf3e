"""The invariants that every ladder keeps, whichever of its rungs are used, and in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.asking import Summariser
from proxy.compaction.cap import within_limits
from proxy.compaction.compaction import RUNGS, compact
from proxy.compaction.ladder import Reduction, Rung
from proxy.compaction.policy import PruneLimits
from proxy.compaction.results import results_of, with_texts
from proxy.core.history.turns import is_result, newest_user
from proxy.core.request import Message
from tests.histories import RESULTS, assistant, call, cost, flaws, histories, reduction_of, tool, unknown, user

ladders = st.permutations([*RUNGS.values()]).flatmap(lambda rungs: st.integers(0, len(rungs)).map(lambda n: rungs[:n]))
outputs = st.one_of(
    st.integers(1, 300).map(lambda n: f"line {n} of it\n" * n),
    st.integers(1, 60).map(lambda n: "ERROR: 行く川 " * n),
    st.sampled_from(["the same long text again " * 30, "short", "", "a\nwarning: b\n" * 90]),
)
image = {"type": "image_url", "image_url": {"url": "https://example.org/" + "x" * 400}, "detail": "low"}
results_limits = st.builds(
    PruneLimits,
    protect_newest=st.integers(0, 300),
    minimum_gain=st.integers(0, 100),
    lines=st.integers(1, 100),
    line_characters=st.integers(1, 500),
    output_characters=st.integers(1, 2000),
    entries=st.integers(1, 50),
    result_tokens=st.integers(1, 400),
)


@st.composite
def wrapped(draw: st.DrawFn) -> str:
    """A user's words around results of a tool that the model has no protocol for."""
    text = draw(st.sampled_from(["", "Here: ", "<tool_result> is what? "]))
    for _ in range(draw(st.integers(0, 2))):
        text += draw(
            st.sampled_from(
                ["[TOOL_RESULT]{}[/TOOL_RESULT]\n", "<tool_result tool_name='ls' arguments='{{}}'>{}</tool_result>"]
            )
        ).format(draw(outputs))
    return text + draw(st.sampled_from(["", "[/TOOL_RESULT] go on"]))


@st.composite
def contents(draw: st.DrawFn, text: st.SearchStrategy[str]) -> Any:
    if draw(st.booleans()):
        return draw(text)
    parts = st.one_of(st.just(image), text.map(lambda t: {"type": "text", "text": t, "cache_control": {}}))
    return draw(st.lists(parts, min_size=1, max_size=3))


@st.composite
def tool_histories(draw: st.DrawFn) -> list[Message]:
    """Conversations with all forms of results, repeated calls and images."""
    messages: list[Message] = []
    number = 0
    for turn in range(draw(st.integers(1, 6))):
        if turn:
            messages.append(assistant("Well.", **draw(unknown)))
        messages.append({"role": "user", "content": draw(contents(wrapped())), **draw(unknown)})
        for _ in range(draw(st.integers(0, 2))):
            calls = []
            for _ in range(draw(st.integers(1, 2))):
                name, where = draw(st.sampled_from(["bash", "ls", "read"])), draw(st.sampled_from("ab"))
                calls.append(call(number := number + 1, name, f'{{"path":"{where}"}}'))
            messages.append(assistant(None, tool_calls=calls))
            messages += (
                {"role": "tool", "tool_call_id": c["id"]}
                | {"name": c["function"]["name"], "content": draw(contents(outputs)), **draw(unknown)}
                for c in calls
            )
    return messages


def descend(reduction: Reduction, rungs: Sequence[Rung]) -> Reduction:
    """As a compaction does: each rung on the old turns and then on all, while the budget is not kept."""
    for rung in rungs:
        for tail in (newest_user(reduction.messages) or 0, len(reduction.messages)):
            reduction = reduction if reduction.fits else rung(replace(reduction, tail=tail))
    return reduction


@st.composite
def jobs(draw: st.DrawFn) -> Reduction:
    messages = draw(st.one_of(tool_histories(), histories(longest=5)))
    reduction = replace(reduction_of(messages, 0), limits=draw(results_limits))
    return replace(reduction, budget=reduction.total * draw(st.floats(0.01, 1.1)))


def outside(messages: Sequence[Message]) -> list[Message]:
    """The history without the texts of its results, and without images."""
    blank = [
        with_texts(message, dict.fromkeys(results_of([message]), "")) if message["role"] != "assistant" else message
        for message in messages
    ]
    return [
        {**m, "content": [None if _is_image(part) else part for part in m["content"]]}
        if isinstance(m["content"], list)
        else m
        for m in blank
    ]


def _is_image(part: Any) -> bool:
    return part.get("type") == "image_url" or str(part.get("text")).startswith("[An image")


@given(jobs(), ladders)
def test_every_ladder_keeps_the_invariants(reduction: Reduction, rungs: list[Rung]) -> None:
    messages = list(reduction.messages)
    before = deepcopy(messages)
    done = descend(reduction, rungs)
    after = list(done.messages)
    assert messages == before, "the client's messages are not touched"
    assert flaws(after) == flaws(messages) == []
    assert done.total < reduction.total or after == messages
    assert done.total == pytest.approx(sum(reduction.cost(after)))
    newest = newest_user(messages)
    for index, (old, new) in enumerate(zip(messages, after, strict=True)):
        assert old is new or (reduction.floor <= index != newest), "head and newest question stay"
        assert {**old, "content": 0} == {**new, "content": 0}, "unknown fields stay"
    if not any(message["role"] in RESULTS and _has_image(message) for message in messages):
        assert outside(after) == outside(messages), "words around results stay"


def _has_image(message: Message) -> bool:
    return isinstance(message["content"], list) and any(map(_is_image, message["content"]))


@given(jobs(), ladders)
def test_every_ladder_is_deterministic_and_changes_nothing_the_second_time(
    reduction: Reduction, rungs: list[Rung]
) -> None:
    done = descend(reduction, rungs)
    again = descend(replace(reduction, messages=deepcopy(reduction.messages)), rungs)
    assert list(again.messages) == list(done.messages)
    twice = descend(done, rungs)
    assert list(twice.messages) == list(done.messages)


@pytest.mark.no_cover
@given(jobs())
def test_a_budget_that_is_kept_is_left_alone(reduction: Reduction) -> None:
    kept = replace(reduction, budget=reduction.total)
    assert descend(kept, [*RUNGS.values()]) is kept


def test_a_compaction_names_the_rungs_that_it_took() -> None:
    big = {"type": "text", "text": "\n".join(f"line {n}" for n in range(2000))}
    messages = [
        user("Read all"),
        assistant(None, tool_calls=[call(1), call(2, arguments="{}")]),
        {**tool(1, ""), "content": [big]},
        tool(2, "of no great length\n" * 30),
        assistant("Read."),
        *(m for _ in range(2) for m in (user("See [TOOL_RESULT]" + "same " * 60 + "[/TOOL_RESULT]"), assistant("ok"))),
        user("And?"),
    ]
    for share, rungs in ((0.3, ("cap",)), (0.11, ("cap", "mask"))):
        reduction = reduction_of(messages, sum(cost(messages)) * share, protect=250)
        flow = compact(
            replace(reduction, limits=replace(reduction.limits, lines=50, line_characters=200, result_tokens=200)),
            Summariser(window=4000, tokens=60, overhead=0.0, same_model=True),
            limit=1e9,
        )
        with pytest.raises(StopIteration) as stopped:
            next(flow)
        assert stopped.value.value.rungs == rungs
        assert stopped.value.value.kind == "pruned"


@pytest.mark.no_cover
@given(tool_histories(), results_limits)
def test_results_within_limits_are_the_same_on_every_turn(history: list[Message], limits: PruneLimits) -> None:
    before = deepcopy(history)
    within = within_limits(history, limits)
    assert history == before
    assert flaws(within) == flaws(history)
    assert [m for m in within if not is_result(m)] == [m for m in history if not is_result(m)]
    for end in range(len(history)):
        assert list(within_limits(history[:end], limits)) == list(within[:end])
    assert list(within_limits(within, limits)) == list(within)
