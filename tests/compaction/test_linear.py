"""Work grows with the length of a history and no faster, whatever it looks like; and so few summaries are asked for."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from math import inf
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

from proxy.backends.profile import RepairRules
from proxy.compaction.asking import Summariser, transcripts
from proxy.compaction.compaction import RUNGS, compact
from proxy.compaction.extract import extract
from proxy.compaction.ladder import Reduction, cut_middles, drop_oldest
from proxy.compaction.policy import prune_limits
from proxy.compaction.results import Cost
from proxy.compaction.source import source_of
from proxy.compaction.summary import block
from proxy.core.history import marks
from proxy.core.history.checkpoint import chain
from proxy.core.history.rules import constraints
from proxy.core.history.turns import cut_points
from proxy.core.request import Message
from proxy.core.settings import Settings
from proxy.shaping.repair import clean_history, repair
from proxy.stream.status import COMPACTING
from proxy.tokens.counter import read_message
from tests.compaction.driver import driven
from tests.histories import assistant, call, reduction_of, tool, user

pytestmark = [pytest.mark.slow, pytest.mark.rows(1)]

STRICT = RepairRules(alternate=True, one_system=True)
DEEP = settings.get_current_profile_name() == "deep"
SIZE = 1_000 if DEEP else 200
"""Messages; the single parts do less for a history of a few, which the whole does not show."""
MOST_ASKS = 24
WRITTEN = '<tool_call>{"name": "x", "arguments": {}}</tool_call>'
RESULT = "<tool_result tool_name='y'>it is long enough</tool_result>"
STATUS = f"\n> *{COMPACTING.text}*\n"
SYSTEM: Message = {"role": "system", "content": "s"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def parts(role: str, part: dict[str, Any], count: int) -> list[Message]:
    return [user("a"), assistant("b"), {"role": role, "content": [dict(part) for _ in range(count)]}, user("c")]


def batch(count: int) -> list[Message]:
    calls = assistant(None, tool_calls=[call(n) for n in range(count)])
    return [user("a"), calls, *(tool(n, "r") for n in reversed(range(count))), assistant("x"), user("b")]


HISTORIES: dict[str, Callable[[int], list[Message]]] = {
    "turns": lambda n: [m for i in range(n // 2) for m in (user(f"Must {i} be."), assistant(f"a {i}"))],
    "users": lambda n: [user(f"Must {i} be.") for i in range(n)],
    "a batch in reverse": batch,
    "a batch without results": lambda n: [user("a"), assistant(None, tool_calls=[call(i) for i in range(n)])],
    "results without calls": lambda n: [user("a"), *(tool(i, "r" * 50) for i in range(n)), user("b")],
    "steps": lambda n: [m for i in range(n // 2) for m in (assistant(None, tool_calls=[call(i)]), tool(i, "r" * 900))],
    "system messages": lambda n: [user("a"), *([SYSTEM] * n), assistant("b"), user("c")],
    "texts of a user": lambda n: parts("user", text("You must."), n),
    "texts of an assistant": lambda n: parts("assistant", text("Well. "), n),
    "texts of a result": lambda n: [*batch(1)[:2], {**tool(0, ""), "content": [text("t")] * n}, user("b")],
    "results in parts": lambda n: parts("user", text(RESULT), n),
    "notices in parts": lambda n: parts("assistant", text(STATUS), n),
    "written calls": lambda n: [user("a"), assistant(WRITTEN * n), user(RESULT * n), assistant("b"), user("c")],
    "images": lambda n: parts("user", {"type": "image_url", "image_url": {"url": "data:,"}}, n),
    "marks": lambda n: [user("a"), assistant((marks.OPEN + marks.HEADING + "\n- x must be\n") * n), user("b")],
    "blobs": lambda n: [user("a"), {"role": "assistant", "content": {f"k{i}": "A" * 1100 for i in range(n)}}],
}


LIMITS = replace(prune_limits(Settings(policy="local"), 2**20), message=inf, worth=0.0)


def cost(messages: Sequence[Message]) -> list[float]:
    return [4.0 + len(str(message.get("content"))) / 4 for message in messages]


def reduction(messages: Sequence[Message]) -> Reduction:
    whole = reduction_of(messages, 50)
    return replace(whole, costs=cost(messages), cost=cost, floor=min(1, len(messages)), limits=LIMITS)


def shortened(rung: Callable[[Reduction, int], Reduction], messages: Sequence[Message]) -> Reduction:
    return rung(reduction(messages), len(messages))


def compacted(messages: Sequence[Message], answer: str, by: Summariser, count: Cost = cost) -> int:
    flow = compact(replace(reduction(messages), cost=count), by, limit=100)
    return len(driven(flow, lambda _: answer)[1])


BY = Summariser(window=3000, tokens=100, overhead=0.0, same_model=True)
WORK: dict[str, Callable[[Sequence[Message]], object]] = {
    "repair": lambda messages: repair(messages, RepairRules()),
    "repair for a strict template": lambda messages: repair(messages, STRICT),
    "clean": clean_history,
    "chain": chain,
    "cut points": cut_points,
    "constraints": lambda messages: constraints(messages, limit=900),
    "transcript": lambda messages: next(transcripts(messages)),
    "extract": lambda messages: extract(messages, source_of(messages), limit=900),
    "block": lambda messages: block("said", messages, limit=900),
    "read": lambda messages: [read_message(message) for message in messages],
    **{name: partial(shortened, rung) for name, rung in RUNGS.items()},
    "drop oldest": lambda messages: drop_oldest(reduction(messages), 50, 1, len(messages)),
    "cut middles": lambda messages: cut_middles(reduction(messages), 50),
    "compact": lambda messages: compacted(messages, "", BY),
}


def steps(work: Callable[[Sequence[Message]], object], messages: Sequence[Message]) -> int:
    """Lines and calls that it takes."""
    taken = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal taken
        taken += event in {"line", "call"}
        return count

    for name in [name for name in sys.modules if name.startswith("proxy.")]:
        for value in vars(sys.modules[name]).values():
            getattr(value, "cache_clear", int)()  # what an earlier history left there would be work only for the longer one
    before = sys.gettrace()
    sys.settrace(count)
    try:
        work(messages)
    finally:
        sys.settrace(before)
    return taken


PUBLIC = ("repair for a strict template", "clean", "chain", "read", "drop oldest", "cut middles", "compact")
"""What calls the rest of them; each part alone is measured under `make fuzz`, where a slow one can't hide in the whole."""
MEASURED = WORK if DEEP else PUBLIC


@pytest.mark.hypothesis
@pytest.mark.rows(8)
@pytest.mark.parametrize("shape", HISTORIES)
@pytest.mark.parametrize("work", MEASURED)
def test_twice_the_history_is_twice_the_work(work: str, shape: str) -> None:
    once, twice = (steps(WORK[work], HISTORIES[shape](size)) for size in (SIZE, 2 * SIZE))
    assert twice <= 2.4 * once + 500


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", ["a batch in reverse", "results without calls", "users"])
def test_a_huge_history_is_mended_in_a_moment(shape: str) -> None:
    """Texts that are joined again and again, and lists that are searched, are work that no line shows."""
    messages = HISTORIES[shape](20_000)
    done, _ = repair(messages, STRICT)
    assert repair(done, STRICT)[1] == []


@pytest.mark.timeout(60)
def test_a_huge_history_is_cut_in_a_moment() -> None:
    cut = cut_middles(reduction(HISTORIES["users"](30_000)), 50)
    assert len(cut.messages) == 30_000


@pytest.mark.parametrize("same_model", [False, True])
@pytest.mark.parametrize("answer", ["", "A summary that says something about all of it."])
def test_however_long_a_history_few_summaries_are_asked_for(answer: str, *, same_model: bool) -> None:
    by = replace(BY, window=600, same_model=same_model)
    for turns in (100, 1_000):
        messages = [m for i in range(turns) for m in (user(f"Question {i} " * 9), assistant(f"Answer {i} " * 9))]
        assert compacted(messages, answer, by) <= MOST_ASKS


def test_only_as_much_of_a_history_is_counted_in_one_as_is_sent_in_one() -> None:
    messages = [m for i in range(1_000) for m in (user(f"Question {i} " * 9), assistant(f"Answer {i} " * 9))]
    longest = 0

    def count(some: Sequence[Message]) -> list[float]:
        nonlocal longest
        longest = max(longest, *(len(str(message.get("content"))) for message in some), 0)
        return cost(some)

    compacted(messages, "A summary that says something about all of it.", BY, count)
    assert longest < 10 * BY.window


def test_a_summariser_that_fails_at_every_piece_is_left_alone() -> None:
    """Every other answer fails, so that each piece is asked for twice."""
    messages = [m for i in range(60) for m in (user(f"Question {i} " * 9), assistant(f"Answer {i} " * 9))]
    by = replace(BY, window=900, same_model=False)
    answers = cycle(["", "A summary that says something about all of it."])
    done, asked = driven(compact(reduction(messages), by, limit=100), lambda _: next(answers))
    assert done.covered
    assert 2 < len(asked) <= MOST_ASKS
