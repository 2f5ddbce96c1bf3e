"""Nobody waits for a summary: code makes what a turn needs at once, and the model's summary stands in a later prompt."""

import re
from typing import Any

import pytest

from tests.fakes import (
    FakeBackend,
    FakeModel,
    Gate,
    LlamaCppFake,
    OpenRouterFake,
    Question,
    Reply,
    asks_summary,
    qa,
    summariser,
    walk,
)
from tests.fakes.waiting import wait_until
from tests.pipeline.talk import MODEL, Talk, ahead, holding, is_summary_call, summaries, wait_ahead
from tests.pipeline.test_ahead import tasks
from tests.proxying import UNREDUCED, Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

WRITTEN = "The user tells codes and asks for them later"
"""Stands in each summary that the model writes."""
AUTO: dict[str, Any] = {"ahead": "auto"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.ahead.QUIET", 0.05)


def prompt(fake: FakeBackend) -> str:
    return str([each for each in fake.chats() if not is_summary_call(each)][-1].json["messages"])


def next_has_the_summary(proxy: Proxy, talk: Talk, fake: FakeBackend) -> bool:
    wait_ahead(proxy, **{**ahead(proxy), "done": 1})
    assert talk.ask().headers["x-spillway-action"] in UNREDUCED
    return WRITTEN in prompt(fake)


def test_a_slow_summary_delays_no_turn_and_stands_in_a_later_prompt() -> None:
    gate = Gate()
    with LlamaCppFake([MODEL], holding(gate), slots=1) as fake, running_proxy(fake, **AUTO) as proxy:
        talk = Talk(proxy, turns=9)
        with talk.following(b"[DONE]", 20) as came:
            assert summaries(fake) == []
        assert "Conversation shortened (" in str(read_stream(b"".join(came)).events)
        assert "An extract, made by code" in prompt(fake)
        talk.messages.append({"role": "assistant", "content": "Noted."})
        gate.wait_reached()  # the user comes back while it is written
        assert talk.ask().headers["x-spillway-action"] in UNREDUCED
        wait_until(lambda: fake.cancelled == 1)
        gate.open()
        assert next_has_the_summary(proxy, talk, fake)
        assert (fake.overflows, fake.invalid_histories) == (0, [])


@pytest.mark.parametrize(("form", "keys"), [("auto", ()), ("content", ()), ("content", ("a-key-12345",))])
def test_the_first_turn_after_it_was_shortened_ahead_says_so_once(form: str, keys: tuple[str, ...]) -> None:
    told = re.compile(r"✅ \d+ earlier messages are now a summary \([\d.]+k? → [\d.]+k? tokens\)(: http://\S+/#/r/\w+)?")
    fake = LlamaCppFake([MODEL], summariser(qa()))
    with fake, running_proxy(fake, **AUTO, status=(form,), api_keys=keys, allow=("metrics",)) as proxy:
        talk = Talk(proxy, key="a-key-12345")
        talk.ask()
        wait_ahead(proxy, done=1)
        seen = []
        for _ in range(2):
            talk.messages.append({"role": "user", "content": "And now?"})
            seen.append(talk.again(stream=True).text)
            talk.messages.append({"role": "assistant", "content": read_stream(seen[-1].encode()).text})
        first, second = map(told.search, seen)
        assert second is None
        assert first is not None
        assert (first[1] is None) == bool(keys), "the page is open to this machine without keys"
        assert "earlier messages" not in prompt(fake), "what the client sends back of it is taken out"


def test_what_is_told_of_it_is_the_extract_where_the_summary_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="spillway")
    brain, poor = qa(), Reply(text="Nothing of it was of any interest to anybody who was there.")
    fake = LlamaCppFake([MODEL], lambda question: poor if asks_summary(question) else brain(question))
    with fake, running_proxy(fake, **AUTO) as proxy:
        Talk(proxy).ask()
        wait_ahead(proxy, done=1)
    (before, after), *_ = re.findall(r"event=ahead .*before=(\d+) tokens=(\d+)", caplog.text)
    assert int(after) < int(before)


@pytest.mark.parametrize("settings", [{"strategy": "summarize"}, {"summary_wait": 20.0}, {"ahead": "off"}])
def test_a_turn_waits_where_that_is_wanted(settings: dict[str, Any]) -> None:
    with LlamaCppFake([MODEL], summariser(qa())) as fake, running_proxy(fake, **{**AUTO, **settings}) as proxy:
        assert Talk(proxy, turns=9).ask().headers["x-spillway-action"] == "compacted"
        assert WRITTEN in prompt(fake)


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_it_waits_no_longer_than_the_user_says(seconds: float) -> None:
    gate = Gate()
    with LlamaCppFake([MODEL], holding(gate)) as fake, running_proxy(fake, ahead="off", summary_wait=seconds) as proxy:
        talk = Talk(proxy, turns=9)
        assert talk.ask().headers["x-spillway-action"] == "compacted"
        wait_until(lambda: fake.cancelled == len(summaries(fake)) <= bool(seconds))  # on a busy machine none gets there in time


@pytest.mark.parametrize("slow", [False, True])
def test_a_remote_summary_is_paid_for_once(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on being written beside the answer where a turn has waited for long enough."""
    gate = Gate()
    if slow:
        monkeypatch.setattr("proxy.compaction.policy.WAIT", 0.05)
    else:
        gate.open()
    with OpenRouterFake([MODEL], holding(gate)) as fake, running_proxy(fake, **AUTO) as proxy:
        talk = Talk(proxy, turns=9)
        assert talk.ask().headers["x-spillway-action"] == "compacted"
        assert (WRITTEN in prompt(fake)) is not slow
        gate.open()
        wait_until(lambda: not any(task == "compaction" for task in tasks(proxy)))
        talk.ask()
        assert WRITTEN in prompt(fake)
        assert (len(summaries(fake)), fake.cancelled) == (2, 0)  # in both forms


def test_a_pause_waits_for_no_summary() -> None:
    gate = Gate()
    with LlamaCppFake([FakeModel("m", 1024)], holding(gate, walk(last=900))) as fake, running_proxy(fake, **AUTO) as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "Count."}], "stream": True}
        seen = read_stream(proxy.chat(body).content)
        assert seen.text.endswith("w900")
        assert summaries(fake) == []


def test_a_compaction_lasts_for_four_turns_however_long_the_answers() -> None:
    """The answer that the user has just read stays word for word."""

    def long(question: Question) -> Reply:
        return Reply(text=" ".join(f"{word}{len(question.messages)}" for word in ("so", "it", "is") * 80))

    model, apart = FakeModel("m", 4096), []
    with LlamaCppFake([model], summariser(long)) as fake, running_proxy(fake, recall="off") as proxy:
        talk, last = Talk(proxy, turns=1), 0
        for number in range(40):
            answer = talk.ask({"role": "user", "content": f"And what of {number}?"}, max_tokens=2000)
            if answer.headers["x-spillway-action"] == "compacted":
                apart.append(number - last)
                last = number
                assert talk.messages[-3]["content"] in prompt(fake)
        assert len(apart) > 4
        assert min(apart) >= 5
