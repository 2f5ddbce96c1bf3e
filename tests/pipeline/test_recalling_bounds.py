"""What recall may cost, and what holds for every history: run on the stage itself, with a real meter."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.addons.recall import Recaller
from proxy.backends.base import UNKNOWN
from proxy.backends.profile import ModelProfile, RepairRules
from proxy.compaction.budget import budget_for
from proxy.core.history.checkpoint import Checkpoint, chain
from proxy.core.history.marks import CLOSE, OPEN, RECALLED, RECALLED_END
from proxy.core.request import Managed, Request, text_of
from proxy.core.settings import Settings
from proxy.outcome import Telemetry
from proxy.prompt import Prompt
from proxy.recall.block import NOTHING, Block, RecalledBlocks
from proxy.tokens.meter import Meter
from tests.histories import FORMS, assistant, call, tool, user
from tests.pipeline.test_recalling import ASK, THINGS, talk

pytestmark = pytest.mark.slow

WINDOW = 4096


class Counting:
    """Counts a job that recall has changed."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    async def recount(self, job: Any) -> None:
        job.estimate = await self.meter.measure(job.key, job.prompt.body())


def recaller_of(meter: Meter) -> Recaller:
    return Recaller(Counting(meter), None)  # type: ignore[arg-type]


class Stand:
    """As much of a job as recall looks at."""

    def __init__(self, meter: Meter, messages: list[dict[str, Any]], covered: int, *, scope: str = "me") -> None:
        links = chain(messages)
        summary = {"role": "user", "content": "They talked of this and that."}
        checkpoint = Checkpoint(
            scope=scope, digest=links[covered - 1], covered=covered, replacement=(summary,),
            tokens_before=0, tokens_after=0, kind="compacted", created=0.0,
        )  # fmt: skip
        self.meter, self.key, self.scope, self.settings = meter, ("b", "m"), scope, Settings()
        self.exchange, self.known_backend, self.profile = SimpleNamespace(tenant=""), UNKNOWN, ModelProfile()
        self.budget, self.undisturbed = budget_for(self.settings, WINDOW), False
        self.managed, self.closes_gaps = Managed(), False
        self.outcome = Telemetry(clock=lambda: 0.0).silent()
        self.ahead: Any = None
        self.estimate: Any = None
        self.prompt = Prompt(
            request=Request(body={}), offer=None, builtin={}, system=[], sent=messages, shown=messages, digests=[], links=links,
            as_received=True, fields={}, rules=RepairRules(), checkpoint=checkpoint,
        )  # fmt: skip

    async def start(self) -> Self:
        self.prompt = replace(self.prompt, recalled=NOTHING)
        self.estimate = await self.meter.measure(self.key, self.prompt.body())
        return self

    @property
    def room(self) -> int:
        estimate = self.estimate
        return int(min(self.budget.due - estimate.tokens, self.budget.limit - estimate.upper))


async def recalled(recaller: Recaller, meter: Meter, messages: list[dict[str, Any]], covered: int, **given: Any) -> Stand:
    job = await Stand(meter, messages, covered, **given).start()
    await recaller.enrich(job)  # type: ignore[arg-type]
    return job


WORDS = st.sampled_from([*THINGS, "Mathilda", "hedgehogs", "Leipzig", "?", ".", "src/a.py", "May 4th", RECALLED_END, "字典"])
TEXTS = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)
HISTORIES = st.lists(TEXTS, min_size=6, max_size=40)


@settings(max_examples=60)
@given(HISTORIES, TEXTS, st.data())
def test_for_every_history(texts: list[str], question: str, data: st.DataObject) -> None:
    covered = data.draw(st.integers(2, len(texts) - 1))
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    messages.append({"role": "user", "content": question})

    async def run() -> None:
        meter = Meter()
        recaller = recaller_of(meter)
        job = await recalled(recaller, meter, messages, covered)
        sent = job.prompt.messages
        # The user's own words stay, everything else stays, and the prompt still fits.
        assert text_of(sent[-1]).endswith(question)
        assert sent[:-1] == job.prompt.history[:-1]
        assert job.estimate.tokens <= job.budget.due
        blocks = text_of(sent[-1])[: -len(question)]
        assert blocks.count(RECALLED) == blocks.count(f"\n{RECALLED_END}") <= 1
        # Nothing comes from anywhere but this history, and nothing is repeated that the prompt has, but for a later statement
        # beside the lost one that it may have changed: the one that holds has to come last.
        newest = job.prompt.recalled.newest
        passages = newest.passages if newest else ()
        for passage in passages:
            assert passage.text in texts[passage.index]
            if passage.index < covered:
                assert not any(passage.text in text_of(message) for message in job.prompt.history)
            else:
                assert passage.later
                assert any(other.behind == passage.text and other.index < covered for other in passages)
        # Applying it twice changes nothing.
        again = await recalled(recaller, meter, messages, covered)
        assert again.prompt.messages == sent

    asyncio.run(run())


@pytest.mark.anyio
async def test_an_answer_has_as_much_room_as_without_what_is_recalled() -> None:
    """Else every answer to a turn that needs something would be paused soon after its first words."""
    meter, recalled_some, cramped = Meter(), 0, set[bool]()
    animal = "My sister Mathilda keeps animals, of which number {0} is called Pim{0}. {1}"
    facts = [{"role": "user", "content": animal.format(n, talk(9)[n]["content"] * 2)} for n in range(8)]
    covered = [*talk(150), *facts, *talk(150)]
    for count in range(40, 88, 4):
        messages = [*covered, *talk(count), {"role": "user", "content": ASK}]
        job = await Stand(meter, messages, len(covered)).start()
        job.budget = replace(job.budget, trigger=0.6)  # far enough from where an upper bound ends it
        meter.anchor_exact(job.estimate, job.estimate.tokens)
        await job.start()
        await recaller_of(meter).enrich(job)  # type: ignore[arg-type]
        assert job.estimate.tokens <= job.budget.window * job.budget.trigger
        recalled_some += bool(job.prompt.recalled.blocks)
        # Where there is room for hardly half of what is needed, a compaction may make some.
        newest = job.prompt.recalled.newest
        cramped |= {job.prompt.recalled.cramped} if newest is not None and len(newest.passages) < 3 else set()
    assert (recalled_some > 4, cramped) == (True, {True})


@pytest.mark.anyio
@pytest.mark.parametrize(("closes", "places"), [(True, ["nothing in 0"] * 2), (False, [ASK] * 2)])
async def test_in_a_loop_a_block_is_where_nothing_behind_it_is_read_again(closes: bool, places: list[str]) -> None:
    """In front of the result that was the newest when it was found, and there it stays when the history is shortened again."""
    meter = Meter()
    recaller = recaller_of(meter)
    fact = {"role": "user", "content": "My sister Mathilda keeps animals, of which number 3 is called Pim3."}
    messages = [fact, *talk(12), {"role": "user", "content": ASK}]
    found = list[str]()
    for step, covered in enumerate((6, 10)):
        messages += [assistant(None, tool_calls=[call(step)]), tool(step, f"nothing in {step}")]
        job = await Stand(meter, messages, covered).start()
        job.closes_gaps = closes
        await recaller.enrich(job)  # type: ignore[arg-type]
        sent = zip(job.prompt.messages, job.prompt.history, strict=True)
        found += [text_of(without) for put, without in sent if put != without and "Pim3" in text_of(put)]
    assert found == places


@pytest.mark.parametrize("form", FORMS)
def test_in_front_of_a_result_there_is_room_for_a_summary_and_a_block(form: str) -> None:
    """Nothing comes between a call and its result, although one in a user message is no longer alone there."""
    steps = [m for n in range(3) for m in (assistant("So.", tool_calls=[call(n)]), tool(n, "res"))]
    prompt, summary = Stand(Meter(), FORMS[form]([user("Go."), *steps]), 1).prompt, assistant(f"{OPEN}\nIt began.\n{CLOSE}")
    assert prompt.checkpoint is not None
    checkpoint = replace(prompt.checkpoint, replacement=(user("Go."), summary), place=7)
    prompt = replace(prompt, checkpoint=checkpoint, recalled=RecalledBlocks({7: Block("Recalled.", (), 1)}))
    assert prompt.messages[:-1] == prompt.sent[:-1]
    assert text_of(prompt.messages[-1]).endswith(f"{CLOSE}\n\nRecalled.\n\n{text_of(prompt.sent[-1])}")


@pytest.mark.anyio
async def test_a_client_may_go_back_to_an_earlier_step_of_a_loop() -> None:
    """There, the result that a block was in front of is not sent, or another message is in its place."""
    meter = Meter()
    recaller = recaller_of(meter)
    fact = {"role": "user", "content": "My sister Mathilda keeps animals, of which number 3 is called Pim3."}
    messages = [fact, *talk(12), {"role": "user", "content": ASK}]
    steps = [m for n in range(4) for m in (assistant(None, tool_calls=[call(n)]), tool(n, f"nothing in {n}"))]
    back = [*messages, *steps[:2], assistant("So " * 1500), {"role": "user", "content": "And what else?"}]
    beyond = [*back, *(each for _ in range(2) for each in (assistant("No."), {"role": "user", "content": "So?"}))]
    places = list[list[str]]()
    for sent in ([*messages, *steps], back, beyond, [*messages, *steps[:4]], messages):
        job = await Stand(meter, sent, 6).start()
        job.closes_gaps = True
        await recaller.enrich(job)  # type: ignore[arg-type]
        put = zip(job.prompt.messages, job.prompt.history, strict=True)
        places.append([text_of(without) for after, without in put if after != without])
    assert places == [["nothing in 3"], [], [], ["nothing in 1"], [ASK]]


def neighbour(number: int) -> str:
    return f"Our neighbour Quillon{number} paints carriages for the king of Ruritania{number}."
