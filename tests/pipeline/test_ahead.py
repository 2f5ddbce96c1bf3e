"""Compaction ahead of time: done after an answer, found by the next turn, and out of the way of everything else."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from proxy.addons.ahead import BUSY
from tests.fakes import (
    FAKES,
    FakeModel,
    Gate,
    LlamaCppFake,
    OpenRouterFake,
    Question,
    Reply,
    ToolCall,
    asks_summary,
    qa,
    summariser,
)
from tests.fakes.waiting import wait_until
from tests.pipeline.talk import MODEL, Talk, ahead, holding, is_summary_call, long_winded, readings, summaries, user, wait_ahead
from tests.proxying import UNREDUCED, Proxy, read_stream, running_proxy
from tests.wording import COMPACTED

ON: dict[str, Any] = {"ahead": "on"}
LATER = 20.0
"""Seconds that something may take which is only a matter of time."""
pytestmark = pytest.mark.slow


def brain() -> Any:
    return summariser(qa())


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each sleep, also of those that are still going on."""
    found, sleep = list[float](), asyncio.sleep

    async def noted(seconds: float) -> None:
        found.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr("asyncio.sleep", noted)
    return found


@pytest.mark.parametrize("kind", [kind for kind in FAKES if kind != "generic"])
@pytest.mark.rows(2)
def test_no_turn_of_a_long_chat_waits_for_a_summary(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.ahead.QUIET", 0.05)
    with FAKES[kind]([MODEL], brain()) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy, turns=1)
        for number in range(16):
            before = len(fake.chats())
            assert talk.ask().headers["x-spillway-action"] in UNREDUCED, number
            # What came first is the turn itself: whatever else there is was done after its answer.
            assert not is_summary_call(fake.chats()[before]), number
            settled(proxy)
        assert ahead(proxy)["done"] >= 2
        # What is not fit to be used is asked for once more.
        assert len(summaries(fake)) <= 2 * ahead(proxy)["done"]
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])


def test_without_it_the_same_turn_waits() -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake) as proxy:
        talk = Talk(proxy)
        talk.ask()
        assert talk.ask().headers["x-spillway-action"] == "compacted"
        assert len(summaries(fake)) == 1


def test_the_backend_has_read_the_new_prompt_before_the_next_turn_comes() -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy)
        talk.ask()
        wait_ahead(proxy, done=1)
        by_code, written = readings(fake)  # before the summary, for which there may be no time, and after it
        asked = next(at for at, each in enumerate(fake.chats()) if is_summary_call(each))
        assert fake.chats().index(by_code) < asked < fake.chats().index(written)
        talk.ask()
        sent = fake.chats()[-1].json["messages"]
        assert written.json["messages"][:-1] == sent[:-1]
        assert written.json["stream"] is True


@dataclass
class Pauses:
    """A conversation whose user is away for ten seconds each time, while the model takes some for each answer, by the proxy's clock."""

    thinks: float = 0.0
    stream: bool = True
    passed: float = 0.0

    def now(self) -> float:
        return time.monotonic() + self.passed

    def answer(self, question: Question) -> Reply:
        self.passed += 0 if asks_summary(question) else self.thinks
        return summariser(qa())(question)

    def talk(self, proxy: Proxy) -> Talk:
        """Ask up to the turn after which the next one would be due."""
        talk = Talk(proxy, turns=1)
        while not ahead(proxy):
            self.passed += 10
            talk.messages.append(user(talk.turns))
            talk.turns += 1
            assert talk.again(stream=self.stream).headers["x-spillway-action"] == "forwarded"
            talk.messages.append({"role": "assistant", "content": "Noted."})
            wait_until(lambda: bool(ahead(proxy)) or not planned(proxy), LATER)
        return talk


@pytest.mark.parametrize(
    ("kind", "slow", "stream"), [("llamacpp", 0, 1), ("llamacpp", 1, 1), ("llamacpp", 1, 0), ("vllm", 0, 1), ("vllm", 1, 1)]
)
def test_a_summary_is_asked_for_if_it_ends_before_the_user_is_back(
    kind: str, slow: int, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it does not, the next turn finds its prompt read, and nothing in its way. vLLM does not say what an answer took."""
    pauses = Pauses(60.0 * slow, bool(stream))
    monkeypatch.setattr("proxy.app.time", SimpleNamespace(monotonic=pauses.now))
    with FAKES[kind]([MODEL], pauses.answer) as fake, running_proxy(fake, **ON) as proxy:
        monkeypatch.setattr(fake, "token_ms", 50.0 if slow else 0.1, raising=False)
        talk = pauses.talk(proxy)
        wait_ahead(proxy, done=1)
        assert len(readings(fake)) == 1
        assert len(summaries(fake)) == (not slow)
        assert talk.ask().headers["x-spillway-action"] in UNREDUCED
        assert fake.cancelled == 0


def test_a_summary_interrupted_twice_waits_for_a_longer_pause(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them reads all that was said, and the backend had read ten of them for nothing in a busy hour."""
    gate, pauses = Gate(), Pauses()

    def answer(question: Question) -> Reply:
        return replace(pauses.answer(question), gate=gate if asks_summary(question) else None)

    monkeypatch.setattr("proxy.app.time", SimpleNamespace(monotonic=pauses.now))
    with LlamaCppFake([MODEL], answer) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy, turns=1)
        while not gate.reached:
            pauses.passed += 10
            talk.ask()
            wait_until(lambda: gate.reached or not planned(proxy), LATER)
        for _ in range(2):
            gate.wait_reached(LATER)
            assert proxy.chat({"model": "m", "messages": [{"role": "user", "content": "Hi."}]}).status_code == 200
            wait_until(lambda: not gate.reached, LATER)
        wait_until(lambda: max(slept) >= 10, LATER)
        assert (len(summaries(fake)), len(readings(fake))) == (2, 1)


def planned(proxy: Proxy) -> list[str]:
    return [task for task in tasks(proxy) if task.startswith("ahead")]


def settled(proxy: Proxy) -> None:
    """Block until all of it is done."""
    wait_until(lambda: not planned(proxy), LATER)


def tasks(proxy: Proxy) -> list[str]:
    async def names() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks()]

    return asyncio.run_coroutine_threadsafe(names(), proxy.loop).result(5)


# -- where and for whom


@pytest.mark.parametrize("settings", [{"ahead": "off"}, {"ahead": "on", "models": {"m*": {"ahead": "off"}}}])
def test_it_can_be_turned_off(settings: dict[str, Any]) -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **settings) as proxy:
        talk = Talk(proxy)
        talk.ask()
        assert planned(proxy) == []
        assert talk.ask().headers["x-spillway-action"] == "compacted"
        assert ahead(proxy) == {}


@pytest.mark.parametrize(("fake_kind", "done"), [(LlamaCppFake, True), (OpenRouterFake, False)])
def test_by_itself_it_is_done_where_tokens_are_not_paid(fake_kind: Any, done: bool) -> None:
    with fake_kind([MODEL], brain()) as fake, running_proxy(fake, ahead="auto") as proxy:
        talk = Talk(proxy)
        talk.ask()
        assert bool(planned(proxy)) is done


@pytest.mark.parametrize(
    "alone",
    [
        {"messages": [user(0), {"role": "user", "content": "word " * 1500}]},
        {"n": 2},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
)
def test_what_is_no_conversation_is_left_alone(alone: dict[str, Any]) -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy)
        talk.messages.append(user(6))
        if "n" in alone:
            fake.fail_next(200, {"choices": [], "usage": {"prompt_tokens": 1500, "completion_tokens": 9}})
        if "continue_final_message" in alone:
            talk.messages.append({"role": "assistant", "content": "So"})
        proxy.chat({"model": "m", "messages": talk.messages, **alone})
        assert planned(proxy) == []


def test_nothing_is_done_for_conversations_and_credentials_that_are_made_up() -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **ON) as proxy:
        full = Talk(proxy).messages
        refused = {"model": "m", "messages": full[:2]}
        fake.fail_next(401, {"error": {"message": "Invalid API Key"}})
        assert proxy.chat(refused, authorization="Bearer refused").status_code == 401
        for key in ("never-seen", "refused", "a-key"):
            for number in range(2):  # with the same beginning each, as examples have
                made_up = [*full, user(6, f"{key}{number}")]
                answer = proxy.chat({"model": "m", "messages": made_up}, authorization=f"Bearer {key}")
                assert answer.status_code == 200
                assert bool(planned(proxy)) is (key == "a-key")


# -- once, and not in vain


def test_what_the_next_turn_did_not_go_on_with_was_useless() -> None:
    """An answer that is too long to stay is covered itself, and so in vain if the question to it is edited."""
    with LlamaCppFake([MODEL], summariser(long_winded)) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy, turns=3)
        talk.ask({"role": "user", "content": "At length, please."}, max_tokens=900)
        wait_ahead(proxy, done=1)
        talk.messages = talk.messages[:-2]
        talk.ask()
        assert ahead(proxy) == {"done": 1, "useless": 1}


def test_a_turn_that_was_edited_away_is_not_compacted() -> None:
    gate = Gate()
    with LlamaCppFake([MODEL], holding(gate)) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy)
        talk.ask()
        gate.wait_reached(LATER)
        talk.messages = talk.messages[:-2]
        short = talk.ask({"role": "user", "content": "Never mind."})
        assert short.headers["x-spillway-action"] in UNREDUCED
        wait_until(lambda: fake.cancelled == 1, LATER)
        gate.open()
        settled(proxy)
        assert ahead(proxy) == {"cancelled": 1, "done": 1}  # of what was there before the edit


def test_a_next_turn_that_comes_too_early_waits_for_what_was_begun() -> None:
    gate = Gate()
    with LlamaCppFake([MODEL], holding(gate)) as fake, running_proxy(fake, **ON, strategy="summarize", grace=0.0) as proxy:
        talk = Talk(proxy)
        talk.ask()
        gate.wait_reached(LATER)
        with talk.following(b"Compacting", LATER) as came:
            # Now that somebody waits for it, nobody else puts an end to it.
            other = Talk(proxy, "thing", "another-key").ask()
            assert other.headers["x-spillway-action"] == "forwarded"
            gate.open()
        seen = read_stream(b"".join(came))
        assert COMPACTED in seen.events[-1]["data"]["description"]
        assert (seen.done, len(summaries(fake)), fake.cancelled) == (1, 1, 0)


# -- real requests come first


def test_whoever_comes_goes_first_and_it_is_done_when_it_is_quiet_for_longer(slept: list[float]) -> None:
    gate = Gate()

    with LlamaCppFake([MODEL], holding(gate), slots=1) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy)
        talk.ask()
        gate.wait_reached(LATER)
        for method, path in (("GET", "/readyz"), ("HEAD", "/v1/models"), ("OPTIONS", "/v1/x"), ("GET", "/props")):
            proxy.client.request(method, path)  # whoever only looks is nobody
        assert fake.cancelled == 0
        other = proxy.chat({"model": "m", "messages": [{"role": "user", "content": "Hi."}]})
        assert other.status_code == 200  # on the only slot there is, which was taken
        wait_until(lambda: fake.cancelled == 1, LATER)
        gate.open()
        wait_ahead(proxy, cancelled=1, done=1)
        assert [each for each in slept if 0.5 < each != BUSY], "than the pause that was too short"
        assert talk.ask().headers["x-spillway-action"] in UNREDUCED


def test_a_user_who_is_back_early_does_not_put_off_the_next_one(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    def brain(question: Question) -> Reply:
        return replace(summariser(qa())(question), gate=gate if question.body.get("max_tokens") == 1 else None)

    monkeypatch.setattr("proxy.addons.ahead.QUIET", 0.123)
    with LlamaCppFake([MODEL], brain) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy)
        talk.ask()
        gate.wait_reached(LATER)  # the new prompt is being read
        assert talk.ask().headers["x-spillway-action"] in UNREDUCED
        wait_until(lambda: ahead(proxy) == {"cancelled": 1} and fake.cancelled == 1, LATER)
        gate.open()
        wait_until(lambda: sum(ahead(proxy).values()) > 1, LATER)
        assert slept.count(0.123) >= 2


@contextmanager
def held(fake: LlamaCppFake, url: str) -> Iterator[None]:
    """While somebody else's answer, asked for there, is not done; it is at the end."""
    gate = Gate()
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    with ThreadPoolExecutor(1) as pool:
        fake.gate = gate
        answer = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
        gate.wait_reached(LATER)
        fake.gate = None
        try:
            yield
        finally:
            gate.open()
        assert answer.result(LATER).status_code == 200


def test_a_backend_that_answers_somebody_is_left_alone() -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **ON) as proxy:
        with held(fake, proxy.url):
            talk = Talk(proxy)
            talk.ask()
            assert summaries(fake) == []
            served = fake.served
            talk.again()
            assert fake.served == served + 1
        wait_ahead(proxy, done=1)


def test_a_backend_that_is_at_work_for_somebody_else_is_left_alone() -> None:
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **ON) as proxy:
        with held(fake, fake.url):
            Talk(proxy).ask()
            wait_until(lambda: any(request.path == "/slots" for request in fake.requests), LATER)
            assert summaries(fake) == []
        wait_ahead(proxy, done=1)


def test_of_histories_that_wait_the_oldest_go_when_they_take_too_much() -> None:
    small = {"cache_bytes": 2**20, **ON}
    with LlamaCppFake([MODEL], brain()) as fake, running_proxy(fake, **small) as proxy, held(fake, proxy.url):
        for key in "abcd":
            talk = Talk(proxy, key=key)
            talk.messages[0]["pad"] = 100_000 * "x"
            talk.ask()
        wait_until(lambda: len(planned(proxy)) == 2, LATER)


# -- faults


def test_a_backend_that_dies_meanwhile_leaves_nothing_behind() -> None:
    gate = Gate(at=3)
    with LlamaCppFake([MODEL], holding(gate)) as fake, running_proxy(fake, **ON) as proxy:
        talk = Talk(proxy)
        talk.ask()
        gate.wait_reached(LATER)
        fake.stop()
        wait_ahead(proxy, done=1)  # by code
        fake.start()
        gate.open()
        talk.ask()
        wait_ahead(proxy, done=2)
        assert len(summaries(fake)) == 2


# -- other forms of turns


@pytest.mark.parametrize("tools", [True, False])
def test_between_the_steps_of_a_loop(tools: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the model has no tools, and is told of them in its prompt."""
    monkeypatch.setattr("proxy.addons.ahead.QUIET", 0.05)

    def step(question: Question) -> Reply:
        arguments = '{"path":  "a"}'
        if not tools:
            return Reply(text=f'<tool_call>{{"name": "read", "arguments": {arguments}}}</tool_call>')
        return Reply(text="On.", tool_calls=[ToolCall("read", arguments, id=f"c{question.body['seed']}")])

    model = FakeModel("m", 4096, tools=tools)
    with LlamaCppFake([model], summariser(step)) as fake, running_proxy(fake, **ON) as proxy:
        offered = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Read all of it."}]
        for number in range(24):
            answer = proxy.chat({"model": "m", "messages": messages, "tools": offered, "seed": number})
            assert answer.headers["x-spillway-action"] in UNREDUCED, number
            settled(proxy)
            messages.append(answer.json()["choices"][0]["message"])
            (call,) = messages[-1]["tool_calls"]
            words = " ".join(f"word{number}x{i}" for i in range(80))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": words})
        assert ahead(proxy)["done"] >= 2
        assert fake.invalid_histories == []
