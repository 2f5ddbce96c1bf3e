"""What is believed of a window, through the HTTP stack: what an estimate is no evidence against, and what proves one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from proxy.net import prober as probing
from proxy.net.prober import FIXED_FACTOR
from proxy.options import Options
from proxy.stages.counting import Counting
from proxy.stages.job import Job
from proxy.stages.routing import Route
from proxy.store import open_store
from proxy.telemetry.events import Cut, Event, WindowDisproved, WindowLearned
from proxy.tokens.meter import Meter
from tests.fakes import FAKES, FakeModel, GenericFake, OllamaFake, Question, Reply, VllmFake, qa, summariser
from tests.net.probing import MODEL, TTL, Bench, lmstudio, vllm
from tests.proxying import Proxy, running_proxy
from tests.stages.test_counting import history, told

pytestmark = pytest.mark.slow


def reporting(prompt_tokens: int) -> Callable[[Question], Reply]:
    """A model whose backend reports this of prompts that say REPORT, and the truth of others."""
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 2,
        "total_tokens": prompt_tokens + 2,
    }
    return lambda question: Reply(text="Noted.", usage=usage if "REPORT" in question.last_user else None)


def ask(proxy: Proxy, text: str) -> Any:
    return proxy.chat({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 5})


def get_to_know(proxy: Proxy) -> None:
    """Let enough be reported of the model for its estimates to be trusted."""
    for number in range(6):
        proxy.chat({"model": "m", "messages": history(2 * number + 1, 30), "max_tokens": 5})


# -- an estimate against a report ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(FAKES))
def test_an_estimate_is_no_evidence_against_what_the_backend_says(kind: str) -> None:
    with (
        FAKES[kind]([FakeModel("m", 16_384)], summariser(reporting(525))) as fake,
        running_proxy(fake) as proxy,
    ):
        get_to_know(proxy)
        window = told(proxy)["window"]
        for number in range(4):
            ask(proxy, f"{number} REPORT " + "word " * (1200 + 400 * number))
        assert told(proxy)["window"] == window
        long = proxy.chat({"model": "m", "messages": history(41, 150), "max_tokens": 5})
        assert long.headers["x-spillway-action"] == "forwarded"
        assert "spillway_silent_cuts_total{" not in proxy.client.get("/metrics").text


def test_low_reports_of_an_honest_backend_correct_the_counter() -> None:
    def fewer(question: Question) -> Reply:
        """Another model is behind the name now: it needs little more than half of the tokens."""
        tokens = question.prompt_tokens * 11 // 20
        return Reply(text="Noted.", usage={"prompt_tokens": tokens, "completion_tokens": 2})

    with VllmFake([FakeModel("m", 16_384)], qa()) as fake, running_proxy(fake) as proxy:
        get_to_know(proxy)
        fake.brain = fewer
        for number in range(8):
            ask(proxy, f"{number} " + "word " * (1200 + 100 * number))
        answer = ask(proxy, "and now " + "word " * 1500)
        real = 0.55 * fake.count({"model": "m", "messages": [{"role": "user", "content": "word " * 1502}]})
        fill = float(answer.headers["x-spillway-fill"]) * 16_384
        assert fill == pytest.approx(real, rel=0.1)


# -- a backend that cuts -------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [(41, 61), (61, 41)])
def test_a_backend_that_cuts_and_does_not_tell_its_window_is_found_out_in_two_conversations(
    turns: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    promise = {"m": {"window": 16_384}}
    with (
        OllamaFake([FakeModel("m", 2048)], summariser(qa())) as fake,
        running_proxy(fake, models=promise) as proxy,
    ):
        fake.fail_next(404, {"error": "not found"}, path="/api/ps", times=99)
        get_to_know(proxy)
        for number, count in enumerate(turns):
            assert told(proxy)["window"]["trust"] == "user"
            messages = [{"role": "user", "content": f"Chat {number}."}, *history(count, 150)[1:]]
            proxy.chat({"model": "m", "messages": messages, "max_tokens": 5})
        assert fake.cuts == 2
        window = told(proxy)["window"]
        assert (window["value"], window["trust"], window["origin"]) == (2048, "learned", "silent cut")
        assert "ollama/m has a window of 2048 tokens, by what was seen (silent cut)" in caplog.text
        messages = [{"role": "user", "content": "Chat 3."}, *history(51, 150)[1:]]
        proxy.chat({"model": "m", "messages": messages, "max_tokens": 5})
        assert fake.cuts == 2


def test_two_prompts_of_which_half_a_window_is_left_find_it_out_too() -> None:
    promise = {"m": {"window": 16_384}}
    with (
        OllamaFake([FakeModel("m", 2048)], qa()) as fake,
        running_proxy(fake, models=promise) as proxy,
    ):
        fake.fail_next(404, {"error": "not found"}, path="/api/ps", times=99)
        get_to_know(proxy)
        for number in range(2):
            ask(proxy, f"{number} " + "word " * 5000)
        assert fake.cuts == 2
        assert told(proxy)["window"]["value"] == 2048


# -- facts that contradict each other ------------------------------------------------------------------


def test_a_learned_window_is_given_up_with_the_first_prompt_that_proves_it_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with GenericFake([FakeModel("m", 16_384)], reporting(5000)) as fake, running_proxy(fake) as proxy:
        text = "This model's maximum context length is 2048 tokens."
        fake.fail_next(400, {"error": {"message": text, "code": "context_length_exceeded"}})
        ask(proxy, "hello")
        assert told(proxy)["window"]["value"] == 2048
        ask(proxy, "REPORT")
        assert told(proxy)["window"] is None
        assert "generic/m held 5002 tokens at once: the learned window of 2048 is given up" in caplog.text


def test_a_report_beyond_the_window_has_the_backend_asked_again() -> None:
    model = FakeModel("m", 4096)
    with VllmFake([model], reporting(5000)) as fake, running_proxy(fake) as proxy:
        ask(proxy, "hello")
        assert told(proxy)["window"]["value"] == 4096
        model.window = model.trained_window = 16_384
        ask(proxy, "REPORT")
        assert ask(proxy, "hello").headers["x-spillway-window"] == "16384"


def test_nothing_is_compacted_on_old_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something in front of the server has loaded the model anew, with more, and no connection told of it."""
    monkeypatch.setattr(probing, "COOL_DOWN", 0.0)
    model = FakeModel("m", 4096)
    with VllmFake([model], summariser(qa())) as fake, running_proxy(fake) as proxy:
        ask(proxy, "hello")
        model.window = model.trained_window = 16_384
        answer = proxy.chat({"model": "m", "messages": history(31, 150), "max_tokens": 5})
        assert answer.headers["x-spillway-action"] == "forwarded"
        assert answer.headers["x-spillway-window"] == "16384"


class Renamed(GenericFake):
    """A router: it tells in its answers which model is behind the name that was asked for."""

    behind = "first"

    @override
    def reply_name(self, body: dict[str, Any], model: FakeModel) -> str:
        return self.behind


@pytest.mark.parametrize("stream", [True, False])
def test_another_model_behind_the_name_ends_what_was_learned_of_the_one_before(stream: bool) -> None:
    """No prompt has to prove it: a long conversation is not crushed on old facts."""
    model = FakeModel("m", 2048)
    with Renamed([model], summariser(qa())) as fake, running_proxy(fake) as proxy:

        def chat(messages: list[dict[str, Any]]) -> Any:
            answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 5, "stream": stream})
            assert answer.status_code == 200
            return answer

        chat(history(1, 20))
        chat(history(31, 150))  # it is refused, and the error names the window
        assert told(proxy)["window"]["value"] == 2048
        chat(history(1, 20))
        assert told(proxy)["window"]["value"] == 2048, "the same name says nothing new"
        fake.behind, model.window, model.trained_window = "second", 16_384, 16_384
        chat(history(1, 20))
        assert chat(history(31, 150)).headers["x-spillway-action"] == "forwarded"
        assert told(proxy)["window"] is None


def test_another_window_in_an_error_is_believed_at_once_and_the_backend_asked_again() -> None:
    """The server was started anew with less, and nobody noticed."""
    model = FakeModel("m", 16_384)
    with VllmFake([model], summariser(qa())) as fake, running_proxy(fake) as proxy:
        ask(proxy, "hello")
        asked = [r for r in fake.requests if r.path == "/v1/models"]
        model.window = model.trained_window = 2048
        answer = proxy.chat({"model": "m", "messages": history(31, 150), "max_tokens": 5})
        assert answer.status_code == 200
        assert answer.headers["x-spillway-window"] == "2048"
        ask(proxy, "hello")
        assert len([r for r in fake.requests if r.path == "/v1/models"]) > len(asked)
        assert told(proxy)["window"]["value"] == 2048


# -- counting alone ------------------------------------------------------------------------------------


@dataclass(slots=True)
class World:
    """Counting before a backend that tells of itself what `bench` says; events are kept."""

    bench: Bench
    counting: Counting
    events: list[Event] = field(default_factory=list)
    chats: int = 0

    @classmethod
    def of(cls, replies: dict[str, Any]) -> World:
        bench = Bench(replies)
        store = open_store("memory://", clock=bench.clock, ttl=3600.0, max_bytes=2**20, timeout=5.0)
        counting = Counting(meter=Meter(), store=store)
        return cls(bench, counting)

    async def answered(
        self, words: int, prompt: int, completion: int = 2, *, finish: str = "stop", choices: int = 1
    ) -> None:
        """A chat of its own, of which the backend reported so many tokens."""
        self.chats += 1
        body = {"messages": [{"role": "user", "content": f"{self.chats} " + "word " * words}]}
        profile = await self.bench.prober.profile(MODEL)
        window = profile.window
        route = Route(cast("Any", SimpleNamespace(name="backend", prober=self.bench.prober)), MODEL)
        job = SimpleNamespace(
            route=route,
            key=route.key,
            profile=profile,
            budget=None if window is None else Options().budget(window.value),
            journal=SimpleNamespace(tell=self.events.append, clock=self.bench.clock),
            prompt=SimpleNamespace(
                request=SimpleNamespace(capped=False, choices=choices, body=body),
                links=(str(self.chats).encode(),),
            ),
            scope="s",
            cut=False,
        )
        estimate = await self.counting.measure(route, profile, body)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        self.counting.observe(cast("Job", job), estimate, usage, finish=finish)


NOTHING: dict[str, Any] = {"/v1/models": {"object": "list", "data": [{"id": MODEL}]}}


@pytest.mark.anyio
async def test_an_answer_that_filled_the_window_tells_it() -> None:
    world = World.of(NOTHING)
    await world.answered(20, 30, 8162, finish="length", choices=2)
    await world.answered(20, 30, 8162, finish="stop")
    assert await world.bench.window() is None
    await world.answered(20, 30, 8162, finish="length")
    assert await world.bench.window() == 8192
    assert world.events == [WindowLearned(8192, "filled", None)]
    await world.answered(20, 30, 9000)
    assert await world.bench.window() is None
    assert world.events[1:] == [WindowDisproved(8192, 9030)]


@pytest.mark.anyio
async def test_an_answer_that_ends_far_before_the_window_has_it_read_again() -> None:
    world = World.of(vllm(8192))
    assert await world.bench.window() == 8192
    world.bench.sent(vllm(2048))
    await world.answered(20, 30, 2018, finish="stop")
    assert await world.bench.window() == 8192
    await world.answered(20, 30, 2018, finish="length")
    assert await world.bench.window() == 2048


@pytest.mark.anyio
async def test_where_a_window_shifts_a_long_answer_proves_nothing() -> None:
    world = World.of(lmstudio(8192))
    await world.bench.window()
    world.bench.prober.learn(MODEL, 4096, "an error")
    await world.answered(20, 30, 9000, finish="length")
    assert await world.bench.window() == 4096
    await world.answered(20, 5000)
    assert await world.bench.window() == 8192


TELLING: dict[str, Callable[[int], dict[str, Any]]] = {
    "lmstudio": lmstudio,
    "vllm": vllm,
    "generic": lambda window: NOTHING,
}

STEPS = st.one_of(
    st.tuples(st.just("report"), st.integers(1, 400), st.floats(0.01, 1.0)),
    st.tuples(st.just("filled"), st.integers(1, 400), st.floats(0.01, 0.9)),
    st.tuples(st.just("bounded"), st.sampled_from([64, 100, 256, 1000, 1024]), st.floats(0.01, 0.9)),
    st.tuples(st.just("refused"), st.just(0), st.just(0.0)),
    st.tuples(st.just("away"), st.just(0), st.just(0.0)),
    st.tuples(st.just("later"), st.integers(1, 5000), st.just(0.0)),
    st.tuples(st.just("larger"), st.integers(1, 50_000), st.just(0.0)),
)


async def step(world: World, window: int, kind: str, what: tuple[str, int, float]) -> int:
    """Something true happens; the window as it is after it."""
    name, number, share = what
    prompt = max(1, int(window * share))
    match name:
        case "report":
            await world.answered(number * 20, prompt)
        case "filled" if kind != "lmstudio":
            await world.answered(number, prompt, window - prompt, finish="length")
        case "bounded" if prompt + number < window:
            await world.answered(number, prompt, number, finish="length")
        case "refused":
            world.bench.prober.learn(MODEL, window, "an error")
        case "away":
            world.bench.prober.forget(MODEL)
        case "later":
            world.bench.clock.now += number
        case "larger" if kind != "generic":
            window += number
            world.bench.sent(TELLING[kind](window))
    return window


@given(st.sampled_from(sorted(TELLING)), st.integers(600, 40_000), st.lists(STEPS, max_size=12))
def test_what_is_true_never_makes_a_window_smaller(
    kind: str, window: int, steps: list[tuple[str, int, float]]
) -> None:
    async def run() -> None:
        world = World.of(TELLING[kind](window))
        now = window
        for what in steps:
            now = await step(world, now, kind, what)
        assert kind == "lmstudio" or not any(isinstance(event, Cut) for event in world.events)
        world.bench.clock.now += TTL * FIXED_FACTOR
        believed = await world.bench.window()
        assert believed is None or believed >= now

    asyncio.run(run())
