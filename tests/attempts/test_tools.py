"""Tools for models that have none, through the whole proxy."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.attempts.test_resuming import history, joined_calls
from tests.fakes import (
    FAKES,
    Brain,
    FakeBackend,
    FakeModel,
    LlamaCppFake,
    OllamaFake,
    OpenRouterFake,
    Question,
    Reply,
    VllmFake,
    summariser,
)
from tests.histories import function
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

WEATHER = function("get_weather", "The weather in a city. Ask for one city at a time.", ["city"], city="string", days="integer")
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARIS = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
EMULATED = {"models": {"m": {"tools": False}}}


def says(*replies: str) -> Any:
    """Says these in turn, and goes on where it is told to; then it says the last one again and again."""
    left = list(replies)

    def brain(question: Question) -> Reply:
        text = left.pop(0) if len(left) > 1 else left[0]
        return Reply(text=text.removeprefix(question.prefix))

    return brain


def calls_of(proxy: Proxy, *, stream: bool, **fields: Any) -> tuple[str | None, list[dict[str, str]], str]:
    body = {"model": "m", "messages": ASK, "tools": [WEATHER], "stream": stream, **fields}
    answer = proxy.chat(body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-spillway-tools"] == "emulated"
    if stream:
        seen = read_stream(answer.content)
        assert (len(seen.ids), seen.done, seen.errors) == (1, 1, [])
        (finish,) = seen.finishes
        return seen.text.rstrip() or None, joined_calls(answer.content), finish
    choice = answer.json()["choices"][0]
    message = choice["message"]
    made = [call["function"] for call in message.get("tool_calls") or ()]
    return (message["content"] or "").rstrip() or None, made, choice["finish_reason"]


@contextmanager
def emulating(brain: Brain, window: int = 8192, kind: str = "llamacpp") -> Iterator[tuple[FakeBackend, Proxy]]:
    with FAKES[kind]([FakeModel("m", window)], brain) as fake, running_proxy(fake, **EMULATED) as proxy:
        yield fake, proxy


@pytest.mark.parametrize("kind", FAKES)
def test_a_call_that_is_written_becomes_a_call(kind: str, stream: bool) -> None:
    fake = FAKES[kind]([FakeModel("m", 8192, tools=False)], says(f"Let me look.\n\n{CALL}"))
    settings = {"models": {"m": {"tools": False, "window": 8192}}}
    with fake, running_proxy(fake, **settings) as proxy:
        assert calls_of(proxy, stream=stream) == ("Let me look.", [PARIS], "tool_calls")
        sent = fake.chats()[-1].json
        assert not {"tools", "tool_choice"} & set(sent)
        assert "get_weather" in sent["messages"][0]["content"]
        assert sent["messages"][-1] == ASK[-1]


@pytest.mark.parametrize("kind", ["ollama", "openrouter", "vllm"])
def test_a_refusal_is_answered_at_once_and_remembered(kind: str, stream: bool) -> None:
    model = FakeModel("m", 8192, tools=False)
    fake: FakeBackend
    if kind == "ollama":
        fake = OllamaFake([model], says(CALL), lists_capabilities=False)
    elif kind == "openrouter":
        fake = OpenRouterFake([model], says(CALL))
    else:
        fake = VllmFake([FakeModel("m", 8192)], says(CALL), tool_parser=False)
    with fake, running_proxy(fake) as proxy:
        for _ in range(2):
            assert calls_of(proxy, stream=stream) == (None, [PARIS], "tool_calls")
        assert sum("tools" in request.json for request in fake.chats()) <= 1
        told = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]
        assert told["tools"]["value"] is False
        assert told["emulated_calls"]["tool_call"]["called"] == 2


def test_calls_and_results_go_back_as_text() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *ASK, *loop_turn([PARIS], "Sunny, 21 degrees.")]
    with emulating(says("It is sunny.")) as (fake, proxy):
        assert calls_of(proxy, stream=True, messages=messages) == ("It is sunny.", [], "stop")
        sent = fake.chats()[-1].json["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "user"]
        assert sent[0]["content"].startswith("Be brief.")
        assert '"city": "Paris"' in sent[2]["content"]
        assert "Sunny, 21 degrees." in sent[3]["content"]
        assert all("tool_calls" not in m for m in sent)


def tagged(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


BROKEN = CALL.replace('"city": "Paris"', '"town": "Paris"')
UNTAGGED = [
    '{"name": "get_time", "color": "red", "size": 3}',
    '[\n  {"id": 1, "name": "home"},\n  {"id": 2, "name": "get_time"}\n]',
    '{"plan":\n  {"name": "get_time", "arguments": {}}\n}',
]
TIME, PAY = function("get_time", zone="string"), function("pay", amount="integer")
NAMED = {"type": "function", "function": {"name": "get_weather"}}
BAD = {"malformed": 2, "retried": 1, "lost": 1}


class Row(NamedTuple):
    replies: Sequence[str]
    text: str | None
    made: list[dict[str, str]]
    ledger: dict[str, dict[str, int]]
    """What is told of the model's calls, by their form."""
    fields: dict[str, Any] = {}  # noqa: RUF012 - only read
    kind: str = "llamacpp"

    @property
    def asked(self) -> int:
        return 1 + sum(form.get("retried", 0) for form in self.ledger.values())


ROWS = {
    "broken once": Row([f"Well. {BROKEN}", CALL], "Well.", [PARIS], {"tool_call": {"called": 1, "malformed": 1, "retried": 1}}),
    "broken, in a window nobody knows": Row(
        [BROKEN, CALL], None, [PARIS], {"tool_call": {"called": 1, "malformed": 1, "retried": 1}}, kind="generic"
    ),
    "broken for good": Row([BROKEN], BROKEN, [], {"tool_call": BAD}),
    "repaired": Row(
        [CALL.replace('"Paris"}', '"Paris", "days": "3",}')],
        None,
        [{"name": "get_weather", "arguments": '{"city": "Paris", "days": 3}'}],
        {"tool_call": {"called": 1, "repaired": 1}},
    ),
    **{
        f"missing, {name}": Row(
            ["It is sunny, I guess.", CALL], "It is sunny, I guess.", [PARIS],
            {"none": {"malformed": 1, "retried": 1}, "tool_call": {"called": 1}}, {"tool_choice": choice},
        )
        for name, choice in {"required": "required", "named": NAMED}.items()
    },
    "nothing may be called": Row([CALL], CALL, [], {}, {"tool_choice": "none"}),
    **{f"json, {n}": Row([text], text, [], {}, {"tools": [TIME]}) for n, text in enumerate(UNTAGGED)},
    **{
        f"arguments elsewhere, {n}": Row(
            [tagged(f'{{"name": "get_time", {where}}}')], None, [{"name": "get_time", "arguments": '{"zone": "UTC"}'}],
            {"tool_call": {"called": 1}}, {"tools": [TIME]},
        )
        for n, where in enumerate(['"zone": "UTC"', '"input": {"zone": "UTC"}', '"params": {"zone": "UTC"}'])
    },
    "a number that a stop string may have cut": Row(
        [tagged('{"name": "pay", "arguments": {"amount": 1200}}')], '<tool_call>\n{"name": "pay", "arguments": {"amount": 12',
        [], {"tool_call": BAD}, {"tools": [PAY], "stop": ["00"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_call_is_made_or_asked_for_again_or_stays_text(name: str, stream: bool) -> None:
    row = ROWS[name]
    with emulating(says(*row.replies), kind=row.kind) as (fake, proxy):
        seen = calls_of(proxy, stream=stream, **row.fields)
        assert seen == (row.text, row.made, "tool_calls" if row.made else "stop")
        assert len(fake.chats()) == row.asked
        told = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"].get("emulated_calls", {})
        assert told == row.ledger


def test_a_broken_call_is_asked_for_behind_the_prompt_that_it_came_of() -> None:
    with emulating(says(BROKEN, CALL)) as (fake, proxy):
        calls_of(proxy, stream=False)
        first, again = fake.chats()
        assert first.json["messages"] == again.json["messages"][:-2]
        assert "city" in again.json["messages"][-1]["content"]
        assert 'form="tool_call",model="m",outcome="retried"} 1.0' in proxy.client.get("/metrics").text


@pytest.mark.parametrize(
    ("settings", "native"),
    [
        ({"tool_mode": "native", **EMULATED}, True), ({"tool_mode": "hybrid"}, True), ({"tool_mode": "emulated"}, False),
        ({"tool_mode": "emulated", "models": {"m": {"tools": True}}}, True),
        ({"models": {"m": {"tool_mode": "emulated"}}}, False),
    ],
)  # fmt: skip
def test_the_user_says_how_tools_reach_models(settings: dict[str, Any], *, native: bool) -> None:
    with LlamaCppFake([FakeModel("m", 8192)], says("Hm.")) as fake, running_proxy(fake, **settings) as proxy:
        proxy.chat({"model": "m", "messages": ASK, "tools": [WEATHER]})
        assert ("tools" in fake.chats()[-1].json) is native


# -- near the end of the window


@pytest.mark.parametrize("kind", ["llamacpp", "lmstudio", "vllm"])
@pytest.mark.rows(2)
def test_an_emulated_call_that_does_not_fit_is_asked_for_again(kind: str, stream: bool) -> None:
    """The same outcome as with tools of the model's own."""
    wanted = json.dumps({"city": "word " * 900})
    written = "I write it.\n" + tagged(f'{{"name": "get_weather", "arguments": {wanted}}}')
    with emulating(summariser(says(written)), 2048, kind) as (fake, proxy):
        made = calls_of(proxy, stream=stream, messages=history(140, 8))
        assert made == ("I write it.", [{"name": "get_weather", "arguments": wanted}], "tool_calls")
        assert len(fake.chats()) >= 3


def test_a_call_that_ends_with_its_answer_is_counted_once() -> None:
    """The last chunk has the end of the call, the reason for the end and the count of both."""
    arguments = json.dumps({"city": "word " * 900})
    written = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    with VllmFake([FakeModel("m", 2048)], summariser(says(written))) as fake:
        with running_proxy(fake, **EMULATED) as proxy:
            body = {"model": "m", "messages": history(140, 8), "tools": [WEATHER]}
            used = proxy.chat(body).json()["usage"]["completion_tokens"]
        first, *_, last = fake.chats()
    assert last.json["stream_options"]["continuous_usage_stats"]
    reported = [int(each.response.rpartition(b'"completion_tokens":')[2].partition(b",")[0]) for each in (first, last)]
    assert used == sum(reported)


def said(words: str, times: int) -> str:
    """A text that does not repeat itself: answers that do are ended."""
    return "".join(f"{words} {number}. " for number in range(times))


def test_an_answer_that_talks_on_behind_its_call_until_the_window_is_full_ends_with_the_call(stream: bool) -> None:
    """It has been gone on with before, so that its end is Spillway's own."""
    text = f"{said('I write', 200)}\n{CALL}\n{said('The result may be', 600)}"
    with emulating(summariser(says(text)), 2048, "vllm") as (fake, proxy):
        made = calls_of(proxy, stream=stream, messages=history(140, 8))
        assert len(fake.chats()) >= 3
        assert made[1:] == ([PARIS], "tool_calls")


@pytest.mark.rows(1)
def test_a_long_tool_loop_in_a_small_window(stream: bool) -> None:
    """Sixty rounds, each result a tenth of the window: no overflow, every call right, results compacted."""
    rounds = 60

    def brain(question: Question) -> Reply:
        last = str(question.messages[-1]["content"])
        number = int(last.rpartition("round ")[2].partition(" ")[0]) if "round " in last else 0
        done = number >= rounds
        text = "All done." if done else CALL.replace("Paris", f"city {number + 1}")
        return Reply(text=text.removeprefix(question.prefix))

    with emulating(summariser(brain), 2048) as (fake, proxy):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go through all cities."}]
        for number in range(1, rounds + 1):
            call = {"name": "get_weather", "arguments": f'{{"city": "city {number}"}}'}
            assert calls_of(proxy, stream=stream, messages=messages) == (None, [call], "tool_calls")
            messages += loop_turn([call], f"Cloudy here, {'word ' * 150}round {number} ")
        assert calls_of(proxy, stream=stream, messages=messages) == ("All done.", [], "stop")
        assert fake.overflows == 0


def loop_turn(made: Sequence[dict[str, str]], result: str) -> list[dict[str, Any]]:
    """What a client adds to its history for calls and their results."""
    calls = [{"id": f"c{n}", "type": "function", "function": call} for n, call in enumerate(made)]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def test_explain_tells_how_tools_reach_the_model() -> None:
    body = {"model": "m", "messages": ASK, "tools": [WEATHER]}
    with LlamaCppFake([FakeModel("m", 8192)]) as fake:
        with running_proxy(fake) as proxy:
            told = proxy.client.post("/spillway/explain", json=body).json()
            assert told["tools"] == {"mode": "native"}
        with running_proxy(fake, **EMULATED) as proxy:
            told = proxy.client.post("/spillway/explain", json=body).json()
            assert told["tools"]["mode"] == "emulated"
            assert 0 < told["tools"]["protocol_tokens"] < told["prompt_tokens"]
            assert "get_weather" in told["messages"][0]["content"]
            body["tools"] = []
            assert proxy.client.post("/spillway/explain", json=body).json()["tools"] is None


def test_a_history_of_calls_without_tools_is_rewritten_too() -> None:
    """A client that stops offering tools still sends what was called."""
    messages = [*ASK, *loop_turn([PARIS], "Sunny."), {"role": "user", "content": "Thanks. And now?"}]
    with emulating(says("Now it rains.")) as (fake, proxy):
        answer = proxy.chat({"model": "m", "messages": messages})
        assert answer.json()["choices"][0]["message"]["content"] == "Now it rains."
        assert [m["role"] for m in fake.chats()[-1].json["messages"]] == ["user", "assistant", "user", "user"]
