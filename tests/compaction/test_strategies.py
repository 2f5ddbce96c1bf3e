"""What every strategy keeps, and in what they differ."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.asking import SummaryAsk
from proxy.compaction.compaction import STRATEGIES, Compaction, compact
from proxy.compaction.ladder import OMITTED
from proxy.compaction.results import cleaned
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import newest_user
from proxy.core.request import Message
from tests.compaction.driver import driven
from tests.compaction.test_compaction import BY, GOOD, chat
from tests.compaction.test_compaction import agent as agent_of
from tests.histories import cost, flaws, histories, reduction_of

EVERY = sorted(STRATEGIES)
WITHOUT_A_MODEL = [name for name in EVERY if not STRATEGIES[name].asks]


def shortened(
    name: str, messages: Sequence[Message], share: float, *, summarised: bool = False, protect: int = 50
) -> tuple[Compaction, list[SummaryAsk]]:
    """A history brought down to a share of its tokens by a strategy, and what a model was asked."""
    reduction = reduction_of(messages, sum(cost(messages)) * share, protect=protect)
    flow = compact(reduction, BY, limit=1e9, summarised=summarised, strategy=STRATEGIES[name])
    return driven(flow, lambda _: GOOD)


def agent(steps: int) -> list[Message]:
    return agent_of(steps, words=300)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", EVERY)
@given(messages=histories(), share=st.floats(0.05, 1.1), summarised=st.booleans())
@pytest.mark.rows(2)
def test_what_comes_out_is_valid_and_shorter(name: str, messages: list[Message], share: float, summarised: bool) -> None:
    before = deepcopy(messages)
    done, asked = shortened(name, messages, share, summarised=summarised)
    after = list(done.messages)
    assert messages == before, "the client's messages are not touched"
    assert flaws(after) == []
    assert done.after < done.before if done.covered else after == messages
    newest = newest_user(messages)
    assert newest is not None
    assert any(message is messages[newest] for message in after)
    assert STRATEGIES[name].asks or not asked
    assert shortened(name, deepcopy(messages), share, summarised=summarised)[0].messages == after


def test_truncating_leaves_whole_turns_out_and_nothing_else() -> None:
    messages = chat(12)
    done, _ = shortened("truncate", messages, 0.5)
    kept = [message for message in done.messages if message.get("content") != OMITTED]
    assert kept == [messages[0], *messages[len(messages) - len(kept) + 1 :]]
    assert (done.kind, done.rungs, done.summary) == ("trimmed", ("trim",), "")


def test_masking_takes_results_first_and_tells_by_code_of_the_rest() -> None:
    light, _ = shortened("mask", agent(12), 0.5, protect=0)
    assert (light.kind, light.summary) == ("pruned", "")
    assert len(light.messages) == 25
    deep, asked = shortened("mask", chat(12), 0.3)
    assert (deep.kind, deep.summary, asked) == ("compacted", "extract", [])
    assert any(map(is_summary, deep.messages))


def test_summarizing_asks_though_masking_would_do() -> None:
    masked, nobody = shortened("auto", agent(12), 0.5, protect=0)
    assert (masked.kind, nobody) == ("pruned", [])
    told, asked = shortened("summarize", agent(12), 0.5, protect=0)
    assert (told.kind, told.summary, len(asked)) == ("compacted", "written", 1)


@pytest.mark.parametrize("name", WITHOUT_A_MODEL)
def test_who_wants_to_be_told_is_told_by_code(name: str) -> None:
    done, asked = shortened(name, chat(12), 0.5, summarised=True)
    assert (done.summary, asked) == ("extract", [])


def test_results_that_are_cleaned_are_counted_once() -> None:
    messages = agent(12)
    done, _ = shortened("mask", messages, 0.5, protect=0)
    changed = [new for old, new in zip(messages, done.messages, strict=True) if old != new]
    assert done.cleaned == len(changed) > 3
    # What was a note before is none that this one has cleaned.
    again, _ = shortened("truncate", done.messages, 0.5)
    whole = [message for message in done.messages if message in messages and message["role"] == "tool"]
    assert again.cleaned == len([message for message in whole if message not in again.messages])
    assert cleaned(messages, messages) == 0
