"""A history is cleaned and mended the same whether or not its beginning was seen before, and only what is new costs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from proxy.history.marks import OPEN
from proxy.history.prefixes import LEAST
from proxy.neutral.request import Message
from proxy.shaping.clean import clean_history
from proxy.shaping.repair import RepairRules, repair
from proxy.shaping.tidy import Tidier, Tidy
from tests.histories import assistant, call, tool, user

RULES = (
    RepairRules(),
    RepairRules(one_system=True),
    RepairRules(alternate=True, one_system=True),
    RepairRules(alternate=True, one_system=True, keep_last=True),
)
STATUS = "> *⚙️ Compacting conversation history…*\n\n"
SYSTEM: Message = {"role": "system", "content": "Be brief."}

ODD = st.one_of(
    st.builds(user, st.sampled_from("ab")),
    st.builds(assistant, st.sampled_from(["a", "", " ", STATUS, f"{STATUS}b", OPEN])),
    st.builds(
        lambda ids: assistant(None, tool_calls=[call(at) for at in ids]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    st.builds(tool, st.integers(0, 3), st.sampled_from("xy")),
    st.just({"role": "tool", "content": "of no call"}),
    st.just({"role": "function", "name": "f", "content": "1"}),
    st.just(assistant(None, function_call={"name": "f", "arguments": "{}"})),
    st.just(assistant(None, tool_calls=[call(1, arguments="no JSON")])),
    st.just(SYSTEM),
)


def turns(count: int) -> list[Message]:
    return [(user, assistant)[number % 2](f"message {number}") for number in range(count)]


def afresh(messages: list[Message], rules: RepairRules) -> tuple[list[Message], list[str]]:
    done, kinds = repair(clean_history(messages), rules)
    return list(done), kinds


@given(
    st.sampled_from(RULES),
    st.lists(ODD, max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.lists(ODD, max_size=5)), max_size=6),
)
def test_memory_changes_nothing(
    rules: RepairRules, first: list[Message], steps: list[tuple[int, list[Message]]]
) -> None:
    tidier, history = Tidier(10**6), [*first, *turns(LEAST)]
    for lost, new in [(0, []), *steps]:
        history = [*history[: len(history) - lost], *new]
        sent = copy.deepcopy(history)
        tidy = tidied(tidier, sent, rules)
        assert sent == history, "the client's own messages are what they were"
        assert (list(tidy.messages), tidy.kinds) == afresh(history, rules)
        assert (tidy.messages is sent) == (afresh(history, rules) == (history, []))


def tidied(tidier: Tidier, messages: list[Message], rules: RepairRules) -> Tidy:
    tidy = tidier.find(messages, rules)
    tidier.go_on(tidy)
    tidier.keep(tidy)
    return tidy


class Watched(dict[str, Any]):
    """A message that counts how often it is looked at."""

    looks = 0

    @override
    def get(self, key: str, default: Any = None) -> Any:
        Watched.looks += 1
        return super().get(key, default)


def looks(tidier: Tidier, messages: list[Message], rules: RepairRules) -> int:
    Watched.looks = 0
    tidied(tidier, [Watched(message) for message in messages], rules)
    return Watched.looks


def steps(count: int) -> list[Message]:
    """An agent's work: a call and its result, over and over."""
    pairs = ((assistant(None, tool_calls=[call(n)]), tool(n, "r")) for n in range(count))
    return [user("go"), *(message for pair in pairs for message in pair)]


@pytest.mark.parametrize("rules", RULES[::2])
@pytest.mark.parametrize("conversation", [turns(401), steps(200)], ids=["turns", "steps"])
@pytest.mark.parametrize("flaw", [[], [assistant("")]], ids=["valid", "mended"])
def test_only_what_is_new_is_gone_through(
    rules: RepairRules, conversation: list[Message], flaw: list[Message]
) -> None:
    tidier = Tidier(10**7)
    history = [*conversation[:1], *flaw, *conversation[1:]]
    whole = looks(tidier, history[:-2], rules)
    assert looks(tidier, history, rules) < whole / 20
    rewritten = [*history[:-1], user("the newest message is often another one")]
    assert looks(tidier, rewritten, rules) < whole / 20
