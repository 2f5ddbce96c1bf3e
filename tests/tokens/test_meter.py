import asyncio
import itertools
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.families import GENERAL
from proxy.tokens.meter import Estimate, Meter
from proxy.tokens.models import Observation
from proxy.tokens.vocabulary import Library
from tests.tokens.conftest import Shipped, loaded

pytestmark = pytest.mark.anyio

KEY = ("local", "some-model")
QWEN = ("local", "qwen3-8b")
WORDS = "the quick brown fox jumps over a lazy dog and then some more of it again"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def chat(turns: int) -> list[dict[str, Any]]:
    found = [{"role": "system", "content": "You are helpful."}]
    for turn in range(turns):
        found += [user(f"{WORDS} {turn}"), {"role": "assistant", "content": f"{turn} {WORDS}, {WORDS}"}]
    return [*found, user("and now?")]


def truth(messages: list[dict[str, Any]]) -> int:
    """What a model with qwen's vocabulary reports: 11 tokens around the whole, 6 around each message."""
    return 11 + sum(6 + loaded("qwen").count(message["content"]) for message in messages)


@pytest.fixture
async def meter() -> Meter:
    meter = Meter()
    await meter.measure(KEY, {})
    return meter


async def teach(meter: Meter, key: tuple[str, str], turns: int) -> None:
    for turn in range(turns):
        messages = chat(turn)
        meter.observe(await meter.measure(key, body(*messages)), truth(messages))


async def test_a_history_that_extends_an_answered_one_starts_from_its_report(meter: Meter) -> None:
    messages = chat(5)
    estimate = await meter.measure(KEY, body(*messages))
    assert estimate.source == "calibrated"
    assert meter.observe(estimate, 1234) is Observation.ACCEPTED
    again = await meter.measure(KEY, body(*messages))
    assert (again.tokens, again.source) == (1234, "backend")
    longer = await meter.measure(KEY, body(*messages, user("ok")))
    assert longer.source == "anchored"
    assert 1235 <= longer.tokens < 1260
    other = await meter.measure(("local", "another"), body(*messages))
    assert other.source == "calibrated"


async def test_a_system_message_that_tells_the_time_keeps_the_anchor(meter: Meter) -> None:
    messages = chat(5)
    meter.observe(await meter.measure(KEY, body(*messages)), 1234)
    clock = {"role": "system", "content": "You are helpful. It is 10:01 and the sun is shining."}
    later = await meter.measure(KEY, body(clock, *messages[1:]))
    assert later.source == "anchored"
    assert 1234 < later.tokens < 1260
    shorter = await meter.measure(KEY, body({"role": "system", "content": "Be."}, *messages[1:]))
    assert 1220 < shorter.tokens < 1234


async def test_an_edit_falls_back_to_the_anchor_before_it(meter: Meter) -> None:
    messages = chat(5)
    meter.observe(await meter.measure(KEY, body(*messages[:4])), 111)
    meter.observe(await meter.measure(KEY, body(*messages)), 1234)
    edited = [*messages[:6], user("something else"), *messages[7:]]
    estimate = await meter.measure(KEY, body(*edited))
    assert (estimate.source, estimate.expected.anchor) == ("anchored", 111)


async def test_exact_counts_are_believed(meter: Meter) -> None:
    estimate = await meter.measure(KEY, body(*chat(3)))
    meter.anchor_exact(estimate, 4321)
    exact = await meter.measure(KEY, body(*chat(3)))
    assert (exact.tokens, exact.upper, exact.source) == (4321, 4321, "backend")
    meter.anchor_exact(exact, 0)
    assert (await meter.measure(KEY, body(*chat(3)))).tokens == 4321


async def test_a_count_that_is_reported_again_teaches_nothing(meter: Meter) -> None:
    await teach(meter, KEY, 3)
    before, known = meter.describe(KEY), body(*chat(2))
    for requested in (False, True):
        again = await meter.measure(KEY, known)
        assert (again.source, again.counted) == ("backend", requested)
        assert meter.observe(again, truth(chat(2))) is Observation.ACCEPTED
        assert meter.describe(KEY)["samples"] == before["samples"]
        meter.anchor_exact(again, truth(chat(2)))
    assert (await meter.measure(KEY, known)).counted


async def test_a_count_that_is_reported_again_is_found_behind_each_system_message(meter: Meter) -> None:
    messages, later = chat(2), {"role": "system", "content": "You are careful."}
    meter.observe(await meter.measure(KEY, body(*messages)), 300)
    other = [later, *messages[1:]]
    meter.observe(await meter.measure(KEY, body(*other)), 310)
    meter.observe(await meter.measure(KEY, body(*messages)), 300)
    assert (await meter.measure(KEY, body(*other))).tokens == 310
    assert (await meter.measure(KEY, body(*messages))).tokens == 300


async def test_a_known_family_is_exact_after_a_few_requests(meter: Meter) -> None:
    await teach(meter, QWEN, 5)
    messages = [user("Something quite different: 漢字 1234567, naïve."), *chat(3)[1:]]
    estimate = await meter.measure(QWEN, body(*messages))
    assert estimate.source == "exact"
    assert estimate.tokens == pytest.approx(truth(messages), abs=3)
    assert truth(messages) <= estimate.upper <= truth(messages) * 1.1 + 12
    described = meter.describe(QWEN)
    assert (described["family"], described["family_by"], described["samples"]) == ("qwen", "name", 5)


async def test_a_name_that_misleads_is_corrected_by_reports(meter: Meter) -> None:
    key = ("local", "gpt-4o-finetuned-from-something")
    prompts = [body(user(f"{number} " + WORDS * (3 + 7 * number % 40))) for number in range(21)]
    true = [round(11 + 1.25 * loaded("o200k").count(prompt["messages"][0]["content"])) for prompt in prompts]
    for prompt, tokens in zip(prompts[:20], true, strict=False):
        assert meter.observe(await meter.measure(key, prompt), tokens) is Observation.ACCEPTED
    assert (await meter.measure(key, prompts[20])).tokens == pytest.approx(true[20], rel=0.08)


async def test_hint_and_override_choose_the_vocabulary(meter: Meter) -> None:
    meter.model(KEY).resolve(hint="qwen2")
    assert (await meter.measure(KEY, body(user("12345")))).source == "exact"
    assert meter.describe(KEY)["vocabulary"] == "qwen"
    meter.model(KEY).resolve(hint="qwen2", override="llama3")
    assert (await meter.measure(KEY, body(user("12345")))).source == "calibrated"
    meter.model(KEY).resolve(hint="qwen2")
    assert (await meter.measure(KEY, body(user("12345")))).source == "exact"


async def test_a_tokenizer_file_that_cannot_be_read_is_told_of(meter: Meter, tmp_path: Any) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    meter.model(KEY).resolve(override=str(tmp_path / "tokenizer.json"))
    estimate = await meter.measure(KEY, body(user("hello")))
    assert estimate.source == "calibrated"
    assert "not a tokenizer" in meter.describe(KEY)["problem"]


async def test_a_corrupt_report_changes_nothing(meter: Meter) -> None:
    await teach(meter, QWEN, 6)
    messages = chat(20)
    meter.observe(await meter.measure(QWEN, body(*messages[:30])), truth(messages[:30]))
    estimate = await meter.measure(QWEN, body(*messages))
    assert estimate.source == "anchored"
    before = meter.model(QWEN).dump()
    assert meter.observe(estimate, truth(messages[30:])) is Observation.REJECTED  # without the cached part
    assert meter.observe(estimate, 0) is Observation.REJECTED
    assert meter.model(QWEN).dump() == before
    assert await meter.measure(QWEN, body(*messages)) == estimate
    assert meter.describe(QWEN)["rejected"] == 2


async def test_a_backend_that_does_not_cut_is_not_said_to(meter: Meter) -> None:
    await teach(meter, QWEN, 6)
    estimate = await meter.measure(QWEN, body(*chat(150)))
    assert meter.observe(estimate, 2050, may_cut=False) is Observation.REJECTED
    assert meter.observe(estimate, 2050, window=16_384) is Observation.REJECTED
    assert meter.describe(QWEN)["cuts"] == 0


async def test_a_silent_cut_is_recognised_and_teaches_nothing(meter: Meter) -> None:
    await teach(meter, QWEN, 6)
    messages = chat(150)
    estimate = await meter.measure(QWEN, body(*messages))
    before = meter.model(QWEN).dump()
    assert meter.observe(estimate, 2050, window=None) is Observation.CUT
    assert meter.observe(estimate, 2048, window=4096) is Observation.CUT
    assert meter.model(QWEN).dump() == before
    assert meter.describe(QWEN)["cuts"] == 2
    assert (await meter.measure(QWEN, body(*messages))).tokens == estimate.tokens


async def test_costs_add_up_to_a_fresh_estimate(meter: Meter) -> None:
    await teach(meter, KEY, 6)
    messages = [user("not seen before"), *chat(7)[1:]]
    estimate = await meter.measure(KEY, body(*messages))
    costs = meter.costs(KEY, messages)
    assert len(costs) == len(messages)
    rest = estimate.tokens - sum(costs)
    empty = await meter.measure(KEY, body())
    assert rest == pytest.approx(empty.tokens, abs=1)
    assert min(costs) > 0


async def test_a_count_that_comes_in_the_middle_of_a_plan_changes_none_of_its_costs(meter: Meter) -> None:
    messages = chat(5)
    cost = meter.pricing(KEY)
    planned = cost(messages)
    meter.anchor_exact(await meter.measure(KEY, body(*messages)), 2000)
    assert cost(messages) == planned
    assert sum(meter.costs(KEY, messages)) > 1.1 * sum(planned)


async def test_tools_schemas_and_images_count(meter: Meter) -> None:
    plain = await meter.measure(KEY, body(user("hi")))
    tools = [{"type": "function", "function": {"name": "f", "description": WORDS * 10}}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 500_000}}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"description": WORDS * 10}}}
    for more in (body(user("hi"), tools=tools), body(user("hi"), response_format=schema)):
        assert 120 < (await meter.measure(KEY, more)).tokens - plain.tokens < 400
    seen = await meter.measure(KEY, body({"role": "user", "content": [{"type": "text", "text": "hi"}, image]}))
    assert 900 < seen.tokens - plain.tokens < 1100


async def test_a_vocabulary_is_loaded_when_a_model_needs_it_and_no_other() -> None:
    library = Library()
    meter = Meter(library=library)
    own = await meter.measure(QWEN, body(user(WORDS)))
    assert (own.source, library.get("qwen") is None, library.get(GENERAL)) == ("exact", False, None)
    other = await meter.measure(KEY, body(user(WORDS)))
    assert (other.source, library.get(GENERAL) is None, library.get("o200k")) == ("calibrated", False, None)


async def test_completion_text(meter: Meter, shipped: Shipped) -> None:
    await meter.measure(QWEN, {})
    text = WORDS * 5
    assert meter.count_text(QWEN, text) == shipped("qwen").count(text)
    assert meter.count_text(KEY, text) == pytest.approx(shipped("o200k").count(text), rel=0.1)
    assert (meter.count_text(KEY, ""), meter.count_text(KEY, " ")) == (0, 1)
    assert Meter().count_text(KEY, text) == pytest.approx(shipped("o200k").count(text), rel=0.3)


async def test_what_was_learned_survives_a_restart(meter: Meter) -> None:
    await teach(meter, KEY, 8)
    again = Meter()
    assert again.model(KEY).load(meter.model(KEY).dump())
    await again.measure(KEY, {})
    fresh = body(user("a new conversation " + WORDS))
    assert await again.measure(KEY, fresh) == await meter.measure(KEY, fresh)
    assert again.describe(KEY)["samples"] == 8


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b'{"family": null, "exact": false, "samples": 1, "weights": [1], "variances": [1]}']
)
async def test_other_data_is_not_taken(meter: Meter, data: bytes) -> None:
    assert not meter.model(KEY).load(data)


async def test_data_of_another_family_is_not_taken(meter: Meter) -> None:
    assert not meter.model(QWEN).load(meter.model(KEY).dump())


async def test_many_models_are_forgotten() -> None:
    meter = Meter(2**20)
    await teach(meter, KEY, 2)
    for number in range(1100):
        meter.describe(("local", f"model {number}"))
    assert meter.describe(KEY)["samples"] == 0


async def test_what_is_counted_takes_no_more_memory_than_it_may() -> None:
    memory = (meter := Meter(2**20)).memory
    await meter.measure(KEY, {})
    meter.costs(KEY, [user("What is made once.")])
    tracemalloc.start()
    for number in range(5000):
        meter.costs(KEY, [user(f"Message {number}, and as many of them as there may be: {number**3} words!")])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory.size <= memory.limit
    assert memory.limit / 4 < taken < 1.1 * memory.limit


ODD: list[Any] = [
    {}, {"role": "weird"}, {"role": "user", "content": 6}, user("\ud800"),
    {"role": "user", "content": None}, {"role": "user", "content": {"a": [1, 2]}},
    {"role": "user", "content": [1, None, "x", {"type": "new", "q": [{"a": 1}]}, {"type": "text", "text": None}]},
    {"role": "assistant", "tool_calls": "bad"}, {"role": "assistant", "tool_calls": [None, 5, {"function": None}]},
    {"role": "tool", "content": [{"type": "image_url", "image_url": 7}]}, {"role": "user", "content": 10**400},
]  # fmt: skip


async def test_odd_input_is_counted(meter: Meter) -> None:
    options = {"tools": {"a": ["b"]}, "response_format": 5, "documents": [1], "chat_template": 7}
    estimate = await meter.measure(KEY, body(*ODD, **options))
    assert 100 < estimate.tokens < 2000
    assert len(meter.costs(KEY, ODD)) == len(ODD)
    requests: list[dict[str, Any]] = [{}, {"messages": None}, {"messages": []}]
    for request in requests:
        assert (await meter.measure(KEY, request)).tokens > 0


LARGE = {
    "prose": WORDS * 14_000, "one letter": "a" * 10**6, "spaces": " " * 10**6, "base64": "iVBORw0KGgo" * 90_000,
    "han": "漢字" * 250_000,
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
async def test_a_large_text_does_not_hold_up_the_loop(meter: Meter, kind: str) -> None:
    """The loop's own thread works less than 20 ms between two turns, and turns many times while it counts."""
    worst, turns = 0.0, 0
    task = asyncio.ensure_future(meter.measure(KEY, body(user(LARGE[kind]))))
    while not task.done():
        begun = time.thread_time()
        await asyncio.sleep(0)
        worst, turns = max(worst, time.thread_time() - begun), turns + 1
    assert task.result().tokens > 5_000
    assert worst < 0.02
    assert turns > 20


async def test_a_small_text_is_counted_on_the_spot(meter: Meter) -> None:
    running = meter.measure(KEY, body(*chat(3)))
    with pytest.raises(StopIteration) as stopped:
        running.send(None)
    assert isinstance(stopped.value.value, Estimate)


@settings(max_examples=15)
@given(st.lists(st.sampled_from([WORDS, "漢字かな", "12345 67890", "", "def f(x):\n    return x\n"]), max_size=12))
def test_counts_grow_with_messages(texts: list[str]) -> None:
    async def estimates() -> list[int]:
        meter = Meter()
        await meter.measure(KEY, {})
        messages = [user(text) for text in texts]
        return [(await meter.measure(KEY, body(*messages[:n]))).tokens for n in range(len(messages) + 1)]

    assert all(a < b for a, b in itertools.pairwise(asyncio.run(estimates())))
