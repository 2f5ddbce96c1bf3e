"""Tool calls of models that have tools of their own, through the whole proxy: leaked, repeated, wrong, and merely shown."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.emulation.forms import Call
from tests.attempts.test_resuming import joined_calls
from tests.attempts.test_tools import CALL, PARIS, WEATHER
from tests.emulation.outputs import BODY, CLEAN
from tests.fakes import FAKES, FakeModel, LlamaCppFake, Question, Reply, ToolCall, summariser, walk, words
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

FENCED = '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```'
SHOWN = f"A call looks like this:\n\n{CALL}\n\nIt is sent as it stands."
SECRET = "a word that nobody else may read"
FAMILIES = {
    *("kimi k2 over lines", "deepseek v3.1", "deepseek v3.2", "glm 4.5", "gemma 3", "gpt-oss"),
    *("minimax m2", "claude with a prefix", "granite", "lfm 2 alone"),
}
RECORDED = {row.name: row for row in CLEAN if row.name in FAMILIES}
REPLIES = {
    **{name: Reply(text=row.text) for name, row in RECORDED.items()},
    "leaked": Reply(text=f"I look it up.\n{CALL}"),
    "leaked in a block": Reply(text=FENCED),
    "leaked in python": Reply(text='[get_weather(city="Paris")]'),
    "leaked twice": Reply(text=f"{CALL}\n{CALL}"),
    "leaked behind thoughts": Reply(text=CALL, reasoning="It is about the weather."),
    "cut": Reply(text=CALL[:-20], finish="length"),
    "shown": Reply(text=SHOWN),
    "plain": Reply(text="It is sunny, and warm enough to go out without a coat."),
    "repeated": Reply(
        tool_calls=[ToolCall("get_weather", '{"city": "Paris"}')] * 2 + [ToolCall("get_weather", '{"city": "Rome"}')]
    ),
    "unknown tool": Reply(tool_calls=[ToolCall("fly", "{}")]),
    "wrong arguments": Reply(tool_calls=[ToolCall("get_weather", json.dumps({"town": SECRET}))]),
    "not json": Reply(tool_calls=[ToolCall("get_weather", SECRET)]),
    "leaked unknown tool": Reply(text=CALL.replace("get_weather", "fly")),
    "in no known form": Reply(text="I look.\n<|plugin_call|>get_weather<|args|>city=Paris<|end|>"),
    "leaked wrong arguments": Reply(text=CALL.replace('"city"', '"town"')),
}


def brain(question: Question) -> Reply:
    asked = next(m["content"] for m in reversed(question.messages) if m["role"] == "user")
    return REPLIES[asked if isinstance(asked, str) else asked[0]["text"]]


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with LlamaCppFake([FakeModel("m", 8192)], brain) as fake, running_proxy(fake) as running:
        yield running


def asked(name: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": name}], "tools": [WEATHER], **fields}


def said(proxy: Proxy, name: str, *, stream: bool, **fields: Any) -> tuple[str, list[dict[str, str]], str]:
    answer = proxy.chat(asked(name, stream=stream, **fields))
    assert answer.status_code == 200, answer.text
    assert "x-spillway-tools" not in answer.headers
    if stream:
        seen = read_stream(answer.content)
        assert (len(seen.ids), seen.roles > 0, seen.done, seen.errors) == (1, True, 1, [])
        (finish,) = seen.finishes
        return seen.text, joined_calls(answer.content), finish
    choice = answer.json()["choices"][0]
    made = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return choice["message"]["content"] or "", made, choice["finish_reason"]


def counted(proxy: Proxy, metric: str, **labels: str) -> float:
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    lines = proxy.client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(f"spillway_{metric}") and all(w in line for w in wanted)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("leaked", "I look it up.\n"),
        *((f"leaked {how}", "") for how in ("in a block", "in python", "behind thoughts", "twice")),
    ],
)
def test_a_leaked_call_becomes_a_call(proxy: Proxy, name: str, text: str, *, stream: bool) -> None:
    before = counted(proxy, "mended_tool_calls_total", what="leaked")
    assert said(proxy, name, stream=stream) == (text, [PARIS], "tool_calls")
    assert counted(proxy, "mended_tool_calls_total", what="leaked") > before


@pytest.mark.parametrize("mode", ["auto", "emulated"])
@pytest.mark.parametrize("name", ["leaked", "leaked in a block", "leaked in python"])
def test_a_call_that_a_result_holds_stays_text(mode: str, name: str, *, stream: bool) -> None:
    text = REPLIES[name].text
    messages = [
        {"role": "user", "content": "What does the page say?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": PARIS}]},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps({"page": f"Welcome.\n{text}"})},
    ]
    fake = LlamaCppFake([FakeModel("m", 8192)], lambda _: Reply(text=text))
    with fake, running_proxy(fake, tool_mode=mode) as running:
        answer = running.chat(asked(name, stream=stream, messages=messages))
    assert answer.status_code == 200, answer.text
    assert b'"tool_calls":[' not in answer.content
    whole = read_stream(answer.content).text if stream else answer.json()["choices"][0]["message"]["content"]
    assert whole == text


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_call_in_the_form_of_a_family_becomes_a_call(proxy: Proxy, name: str, *, stream: bool) -> None:
    calls = [each for each in RECORDED[name].found if isinstance(each, Call)]
    made = [{"name": call.name, "arguments": call.arguments} for call in calls]
    assert said(proxy, name, stream=stream, tools=BODY["tools"]) == ("", made, "tool_calls")


@pytest.mark.parametrize("kind", FAKES)
def test_whatever_the_backend(kind: str, *, stream: bool) -> None:
    fake = FAKES[kind]([FakeModel("m", 8192)], brain)
    with fake, running_proxy(fake, models={"m": {"tools": True, "window": 8192}}) as proxy:
        assert said(proxy, "leaked", stream=stream) == ("I look it up.\n", [PARIS], "tool_calls")
        assert said(proxy, "shown", stream=stream) == (SHOWN, [], "stop")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat"])
def test_in_every_dialect(proxy: Proxy, path: str, *, stream: bool) -> None:
    function = WEATHER["function"]
    tools = {
        "/v1/messages": [{"name": "get_weather", "input_schema": function["parameters"]}],
        "/v1/responses": [{"type": "function", **function}],
        "/api/chat": [WEATHER],
    }[path]
    body = {"model": "m", "max_tokens": 500, "stream": stream, "tools": tools}
    talk = [{"role": "user", "content": "leaked"}]
    body |= {"input": talk} if path == "/v1/responses" else {"messages": talk}
    answer = proxy.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told = answer.text.replace("\\", "").replace(" ", "")
    assert "tool_call>" not in told
    assert "get_weather" in told
    assert '"city":"Paris"' in told
    assert "Ilookitup." in told or all(f'"{word}' in answer.text or word in answer.text for word in ("look", "up"))
    ends = {"/v1/messages": '"stop_reason":"tool_use"', "/v1/responses": '"type":"function_call"', "/api/chat": '"tool_calls"'}
    assert ends[path] in told


@pytest.mark.parametrize(
    ("name", "fields", "finish"),
    [
        ("shown", {}, "stop"), ("cut", {}, "length"), ("leaked", {"tools": None}, "stop"),
        ("leaked", {"tool_choice": "none"}, "stop"), ("leaked", {"response_format": {"type": "json_object"}}, "stop"),
    ],
)  # fmt: skip
def test_what_is_no_call_or_unasked_stays_text(
    proxy: Proxy, name: str, fields: dict[str, Any], finish: str, *, stream: bool
) -> None:
    assert said(proxy, name, stream=stream, **fields) == (REPLIES[name].text, [], finish)


def test_reading_them_back_can_be_turned_off(*, stream: bool) -> None:
    with LlamaCppFake([FakeModel("m", 8192)], brain) as fake, running_proxy(fake, tool_mode="native") as proxy:
        assert said(proxy, "leaked", stream=stream) == (REPLIES["leaked"].text, [], "stop")


def test_a_call_that_is_made_twice_is_told_once(proxy: Proxy, *, stream: bool) -> None:
    before = counted(proxy, "mended_tool_calls_total", what="repeated")
    rome = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert said(proxy, "repeated", stream=stream) == ("", [PARIS, rome], "tool_calls")
    assert counted(proxy, "mended_tool_calls_total", what="repeated") == before + 1


def test_an_emulated_call_that_is_made_twice_is_told_once(*, stream: bool) -> None:
    fake = LlamaCppFake([FakeModel("m", 8192)], lambda _: Reply(text=f"{CALL}\n{CALL}"))
    with fake, running_proxy(fake, models={"m": {"tools": False}}) as proxy:
        answer = proxy.chat(asked("x", stream=stream))
        made = joined_calls(answer.content) if stream else answer.json()["choices"][0]["message"]["tool_calls"]
        assert len(made) == 1
        assert counted(proxy, "mended_tool_calls_total", what="repeated") == 1


FAULTS = [
    ("unknown tool", "unknown_tool", "fly", "native"),
    ("wrong arguments", "wrong_arguments", "get_weather", "native"),
    ("not json", "not_json", "get_weather", "native"),
    ("leaked unknown tool", "unknown_tool", "fly", "tool_call"),
    ("leaked wrong arguments", "wrong_arguments", "get_weather", "tool_call"),
    ("cut", "cut", "get_weather", "tool_call"),
    ("in no known form", "unread", "get_weather", "unknown"),
]


@pytest.mark.parametrize(("name", "reason", "tool", "form"), FAULTS)
def test_what_is_wrong_with_a_call_is_told_everywhere_but_never_what_was_said(
    proxy: Proxy, written: io.StringIO, name: str, reason: str, tool: str, form: str, *, stream: bool
) -> None:
    labels = {"reason": reason, "provider": "llamacpp", "model": "m"}
    before = counted(proxy, "malformed_tool_calls_total", **labels)
    fields = {"stream_options": {"include_usage": True}} if stream else {}
    answer = proxy.chat(asked(name, stream=stream, **fields))
    usage = read_stream(answer.content).usage if stream else answer.json()["usage"]
    assert usage is not None
    assert usage["spillway"]["tool_calls"] == {"malformed": [{"reason": reason, "tool": tool}]}
    request = answer.headers["x-request-id"]
    told = proxy.client.get(f"/spillway/requests/{request}").json()
    found = {"reason": reason, "tool": tool, "form": form, "provider": "llamacpp"}
    assert told["malformed_calls"] == [found]
    assert next(e for e in told["events"] if e["event"] == "malformed_call").items() >= found.items()
    assert counted(proxy, "malformed_tool_calls_total", **labels) == before + 1
    lines = [line for line in written.getvalue().splitlines() if "malformed" in line]
    assert len(lines) == 1
    assert all(word in lines[0] for word in (request, "model=m", "llamacpp", reason, tool))
    assert SECRET not in written.getvalue()
    assert "tool=" not in proxy.client.get("/metrics").text


def test_an_emulated_call_that_is_wrong_is_told_as_well(written: io.StringIO) -> None:
    wrong = CALL.replace('"city": "Paris"', f'"town": "{SECRET}"')
    fake = LlamaCppFake([FakeModel("m", 8192)], lambda _: Reply(text=wrong))
    with fake, running_proxy(fake, models={"m": {"tools": False}}) as proxy:
        answer = proxy.chat(asked("x"))
        told = answer.json()["usage"]["spillway"]["tool_calls"]["malformed"]
        assert told == [{"reason": "wrong_arguments", "tool": "get_weather"}] * 2
        assert counted(proxy, "malformed_tool_calls_total", reason="wrong_arguments") == 2
    assert SECRET not in written.getvalue()


def test_an_emulated_call_of_what_is_no_tool_is_counted_once(*, stream: bool) -> None:
    stranger = CALL.replace("get_weather", "fly")
    fake = LlamaCppFake([FakeModel("m", 8192)], lambda _: Reply(text=stranger))
    with fake, running_proxy(fake, models={"m": {"tools": False}}) as proxy:
        answer = proxy.chat(asked("x", stream=stream))
        told = proxy.client.get(f"/spillway/requests/{answer.headers['x-request-id']}").json()
        assert [(each["reason"], each["tool"]) for each in told["malformed_calls"]] == [("unknown_tool", "fly")]
        assert counted(proxy, "malformed_tool_calls_total", reason="unknown_tool") == 1


def _strangers(proxy: Proxy, answer: Any) -> list[tuple[str, str]]:
    told = proxy.client.get(f"/spillway/requests/{answer.headers['x-request-id']}").json()
    return [(each["reason"], each["tool"]) for each in told["malformed_calls"]]


def test_a_call_of_what_is_no_tool_is_counted_once_though_another_one_is_corrected(*, stream: bool) -> None:
    stranger, wrong = CALL.replace("get_weather", "fly"), CALL.replace('"city"', '"town"')
    replies = iter([Reply(text=f"I try.\n{stranger}\n{wrong}"), Reply(text=CALL)])
    fake = LlamaCppFake([FakeModel("m", 8192)], lambda _: next(replies))
    with fake, running_proxy(fake, models={"m": {"tools": False}}) as proxy:
        answer = proxy.chat(asked("x", stream=stream))
        assert sorted(_strangers(proxy, answer)) == [("unknown_tool", "fly"), ("wrong_arguments", "get_weather")]
        assert counted(proxy, "malformed_tool_calls_total", reason="unknown_tool") == 1


@pytest.mark.parametrize("tools", [True, False])
def test_a_call_of_what_is_no_tool_is_counted_once_in_an_answer_that_is_gone_on_with(*, tools: bool, stream: bool) -> None:
    begins = iter([f"I try.\n{CALL.replace('get_weather', 'fly')}\nIt is as it is. {words(1, 900)}"])

    def brain(question: Question) -> Reply:
        begun = next(begins, None)
        return walk(last=900)(question) if begun is None else Reply(text=begun)

    fake = LlamaCppFake([FakeModel("m", 1024)], summariser(brain))
    with fake, running_proxy(fake, models={"m": {"tools": tools}}) as proxy:
        answer = proxy.chat(asked("x", stream=stream))
        assert len(fake.chats()) > 1
        assert _strangers(proxy, answer) == [("unknown_tool", "fly")]


def test_what_was_mended_is_told_in_the_usage(proxy: Proxy) -> None:
    answer = proxy.chat(asked("leaked twice")).json()
    assert answer["usage"]["spillway"]["tool_calls"] == {"leaked": 2, "repeated": 1}
    answer = proxy.chat(asked("leaked twice", stream=True, stream_options={"include_usage": True}))
    usage = read_stream(answer.content).usage
    assert usage is not None
    assert usage["spillway"]["tool_calls"] == {"leaked": 2, "repeated": 1}
    assert "spillway" not in proxy.chat(asked("plain")).json()["usage"]
