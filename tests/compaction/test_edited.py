"""What a client has edited is nowhere any more: a rewrite is made from what it covers, and only then applied."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.asking import Summariser
from proxy.compaction.compaction import Compaction, compact
from proxy.core.history.checkpoint import chain
from proxy.core.jsontext import dumps
from proxy.core.request import Message
from tests.compaction.driver import driven
from tests.histories import FORMS, assistant, call, cost, reduction_of, tool, user
from tests.marked import MARK, conversations, without_mark


def repeating(messages: Sequence[Message]) -> str:
    """A summary that tells everything which can be told apart."""
    shown = " ".join(dict.fromkeys(MARK.findall(dumps(messages).decode())))
    return f"The conversation so far was about: {shown} and nothing else."


def compacted(messages: Sequence[Message], share: float, limit: float, *, same_model: bool, protect: int = 50) -> Compaction:
    total = sum(cost(messages))
    by = Summariser(window=int(total * 2), tokens=300, overhead=0.0, same_model=same_model)
    flow = compact(reduction_of(messages, total * share, gain=5, protect=protect), by, limit=total * limit)
    return driven(flow, lambda ask: repeating(ask.messages))[0]


def assert_no_trace(messages: Sequence[Message], links: list[bytes], made: Compaction, covered: int) -> None:
    """Edit every message; where the rewrite still holds, the old words are gone."""
    replacement = list(made.messages[: made.replaced])
    for index, message in enumerate(messages):
        for mark in set(MARK.findall(dumps(message).decode())):
            edited = [*messages[:index], without_mark(message, mark), *messages[index + 1 :]]
            if covered and chain(edited)[covered - 1] == links[covered - 1]:
                assert mark not in dumps([*replacement, *edited[covered:]]).decode()


@pytest.mark.no_cover
@pytest.mark.parametrize("form", FORMS)
@given(conversations(), st.floats(0.05, 0.9), st.sampled_from([10.0, 0.5, 0.2]), st.booleans())
def test_no_trace_is_left_of_what_was_edited(
    form: str, messages: list[Message], share: float, limit: float, same_model: bool
) -> None:
    messages = FORMS[form](messages)
    done = compacted(messages, share, limit, same_model=same_model)
    assert_no_trace(messages, chain(messages), done, done.covered)


@given(conversations(), conversations(first=1000), st.floats(0.1, 0.6), st.booleans())
def test_nor_after_the_next_rewrite(messages: list[Message], more: list[Message], share: float, same_model: bool) -> None:
    first = compacted(messages, share, 10.0, same_model=same_model)
    grown = [*first.messages, *more]
    second = compacted(grown, share, 10.0, same_model=same_model)
    sent = [*messages, *more]
    # As a checkpoint says it: against the client's own messages, and no less than the first one.
    beyond = max(0, first.replaced - second.covered)
    if second.covered:
        covered = second.covered + beyond + first.covered - first.replaced
        assert_no_trace(sent, chain(sent), second, covered)


def test_the_newest_question_is_not_summarised_while_it_stays_as_it_is() -> None:
    """Its turn alone is too large for the tail, and the client edits the question before it sends it again."""
    messages = [
        *(m for n in range(4) for m in (user(f"Question {n} " + "why " * 60), assistant("so " * 60))),
        user("You must never delete the backup mark1x."),
        assistant(None, tool_calls=[call(1), call(2)]),
        tool(1, "a " * 600),
        tool(2, "b " * 600),
    ]
    done = compacted(messages, 0.3, 10.0, same_model=True)
    assert done.kind == "compacted"
    assert_no_trace(messages, chain(messages), done, done.covered)


def test_a_pointer_to_a_later_result_holds_only_as_long_as_that_is_there() -> None:
    text = "the same long text again " * 60
    messages = [
        user("Read it"),
        *(assistant(None, tool_calls=[call(1)]), tool(1, text), assistant("Read.")),
        user("Once more"),
        *(assistant(None, tool_calls=[call(2)]), tool(2, text), assistant("Again.")),
        user("Thanks"),
    ]
    done = compacted(messages, 0.7, 10.0, same_model=True, protect=10_000)
    assert done.rungs == ("duplicates",)
    assert done.covered > messages.index(tool(2, text)), "who edits what follows the first gets the first back"
