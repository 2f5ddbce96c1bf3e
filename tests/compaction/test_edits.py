"""What clients wish left out of their histories is, and nothing else."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.results import edited
from proxy.core.history.turns import cut_points
from proxy.core.request import Cleared, ClearResults, ClearThoughts, Edit

Message = dict[str, Any]


def history(steps: int, *, user_every: int = 0) -> list[Message]:
    made: list[Message] = [{"role": "user", "content": "Find it."}]
    for step in range(steps):
        if user_every and step and step % user_every == 0:
            made.append({"role": "assistant", "content": "Well."})
            made.append({"role": "user", "content": f"Go on with {step}."})
        function = {"name": "read" if step % 2 else "search", "arguments": f'{{"n":{step}}}'}
        call = {"id": f"c{step}", "type": "function", "function": function}
        made.append({"role": "assistant", "content": None, "reasoning_content": f"Thought {step}.", "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": f"c{step}", "content": f"{step} " + "line of text " * 60})
    return made


def cost(messages: Any) -> list[float]:
    return [len(str(message)) / 4 for message in messages]


def run(messages: list[Message], *edits: Edit, tokens: int = 10_000) -> tuple[list[Message], list[Cleared]]:
    return edited(messages, edits, tokens=tokens, cost=cost)


def cleared_in(messages: list[Message]) -> list[int]:
    results = [message["content"] for message in messages if message["role"] == "tool"]
    return [at for at, said in enumerate(results) if said.startswith("[Tool result left out")]


def test_old_results_go_and_the_newest_stay() -> None:
    done, (told,) = run(history(8), ClearResults(over_tokens=9_000))
    assert cleared_in(done) == [0, 1, 2, 3, 4]
    assert (told.what, told.number) == ("results", 5)
    assert told.tokens == round(sum(cost(history(8))) - sum(cost(done)))
    assert done[2]["content"].startswith("[Tool result left out to save room: search, ")


def test_nothing_goes_below_the_trigger_or_for_too_little() -> None:
    for wish in (
        ClearResults(over_tokens=10_000),
        ClearResults(over_results=8),
        ClearResults(over_tokens=0, at_least=100_000),
        ClearResults(over_tokens=0, keep=8),
    ):
        messages = history(8)
        done, told = run(messages, wish)
        assert (done, told) == (messages, [])


def test_some_tools_are_spared_and_calls_may_go_too() -> None:
    done, (told,) = run(history(8), ClearResults(over_results=7, keep=2, spared=frozenset({"read"}), arguments=True))
    assert cleared_in(done) == [0, 2, 4]
    assert told.number == 3
    calls = [message["tool_calls"][0]["function"]["arguments"] for message in done if "tool_calls" in message]
    assert [at for at, said in enumerate(calls) if said == "{}"] == [0, 2, 4]
    done, _ = run(history(4), ClearResults(over_results=0, keep=1, arguments=frozenset({"read"})))
    calls = [message["tool_calls"][0]["function"]["arguments"] for message in done if "tool_calls" in message]
    assert [at for at, said in enumerate(calls) if said == "{}"] == [1]


def test_thoughts_of_old_turns_go() -> None:
    messages = history(6, user_every=2)
    done, (told,) = run(messages, ClearThoughts(1))
    assert [message["reasoning_content"] for message in done if "reasoning_content" in message] == ["Thought 4.", "Thought 5."]
    assert (told.what, told.number) == ("thoughts", 2)
    assert run(messages, ClearThoughts(3)) == (messages, [])


def test_both_are_told_in_their_order() -> None:
    _, told = run(history(8, user_every=3), ClearThoughts(1), ClearResults(over_tokens=1))
    assert [each.what for each in told] == ["thoughts", "results"]


@given(st.integers(0, 12), st.integers(0, 5), st.integers(0, 6), st.booleans(), st.integers(0, 4))
def test_a_history_stays_one(steps: int, user_every: int, keep: int, arguments: bool, thoughts: int) -> None:
    """The same places to cut, the same calls and users' words; the client's messages are not changed in place; twice is once."""
    messages = history(steps, user_every=user_every)
    before = copy.deepcopy(messages)
    edits = (ClearThoughts(thoughts), ClearResults(over_tokens=0, keep=keep, arguments=arguments))
    done, told = run(messages, *edits)
    assert messages == before
    assert cut_points(done) == cut_points(messages)
    assert [m for m in done if m["role"] == "user"] == [m for m in messages if m["role"] == "user"]
    assert bool(told) == (done != messages)
    assert run(done, *edits) == (done, [])
    grown, _ = run([*messages, *history(3)[1:]], *edits)
    assert all(new == old or new != was for old, new, was in zip(done, grown, messages, strict=False))
