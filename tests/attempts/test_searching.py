"""A search of the conversation that the model calls: answered inside the same answer, unseen by the client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.attempts.calls import NO_MORE
from proxy.core.history.marks import RECALLED
from proxy.core.jsontext import dumps, loads
from proxy.core.request import text_of
from proxy.recall.block import NAME, NO_QUERY, NOTHING_LOST
from tests.attempts.test_resuming import joined_calls
from tests.attempts.test_tools import WEATHER
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, Question, Reply, ToolCall
from tests.pipeline.test_recalling import FACT, WINDOW, long_chat
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

ASK = "Thank you. And now for the secret!"
"""Says nothing that the fact has in it: the ranking finds nothing, the model has to search."""
PAST = long_chat(ASK)
LOOK = "Let me look."
CALL = ToolCall("get_weather", '{"city": "Paris"}', "client1")


def search(query: str = "Mathilda's hedgehogs", name: str = NAME, id: str = "own1") -> ToolCall:  # noqa: A002 - as in the API
    return ToolCall(name, dumps({"query": query}).decode(), id)


def is_summary(question: Question) -> bool:
    return "ummari" in text_of(question.messages[-1])


SUMMARY = Reply(text="They talked about many things, none of which matters much for what follows now.")


def says(*replies: Reply) -> Callable[[Question], Reply]:
    """Says these in turn, then what it was told last."""
    left = list(replies)

    def brain(question: Question) -> Reply:
        if is_summary(question):
            return SUMMARY
        if left:
            return left.pop(0)
        return Reply(text=f"Told: {text_of(question.messages[-1])}")

    return brain


@contextmanager
def staged(
    brain: Callable[[Question], Reply], kind: str = "llamacpp", *, tools: bool = True, **settings: Any
) -> Iterator[tuple[FakeBackend, Proxy]]:
    known = {"models": {"m": {"window": WINDOW, "tools": tools}}}
    fake = FAKES[kind]([FakeModel("m", WINDOW, tools=tools)], brain)
    with fake, running_proxy(fake, **{**known, "recall": "tool", **settings}) as proxy:
        yield fake, proxy
        assert fake.invalid_histories == []


def sent(fake: FakeBackend) -> list[Any]:
    bodies = [request.json for request in fake.chats()]
    return [body for body in bodies if "ummari" not in text_of(body["messages"][-1])]


def names(body: Any) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools") or ()]


class Seen:
    def __init__(self, proxy: Proxy, *, stream: bool, **fields: Any) -> None:
        wish = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = proxy.chat({"model": "m", "messages": PAST, **wish, **fields})
        assert answer.status_code == 200, answer.text
        self.raw = answer.text
        if stream:
            seen = read_stream(answer.content)
            assert (len(seen.ids), seen.done, seen.roles, seen.errors) == (1, 1, 1, [])
            (self.finish,) = seen.finishes
            self.text, self.usage = seen.text, seen.usage
            self.calls = joined_calls(answer.content)
        else:
            whole = answer.json()
            (choice,) = whole["choices"]
            self.finish, self.usage = choice["finish_reason"], whole["usage"]
            self.text = choice["message"]["content"] or ""
            self.calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        if "<tool_result" not in self.text:  # a brain that reads its prompt out
            assert NAME not in self.raw


@pytest.mark.parametrize("kind", FAKES)
def test_what_the_model_searches_for_it_finds_inside_the_same_answer(kind: str, stream: bool) -> None:
    with staged(says(Reply(text=LOOK, tool_calls=[search()])), kind) as (fake, proxy):
        seen = Seen(proxy, stream=stream)
        assert seen.text.startswith(f"{LOOK}\n\nTold: ")
        assert FACT in seen.text
        assert (seen.finish, seen.calls) == ("stop", [])
        first, second = sent(fake)
        assert RECALLED not in str(first)
        assert names(first) == names(second) == [NAME]
        assert second["messages"][: len(first["messages"])] == first["messages"]
        made, result = second["messages"][len(first["messages"]) :]
        assert made["content"] == LOOK
        assert [call["function"]["name"] for call in made["tool_calls"]] == [NAME]
        assert (result["role"], result["tool_call_id"]) == ("tool", made["tool_calls"][0]["id"])
        assert f"- (answer) {FACT}" in result["content"]
        assert seen.usage is not None
        assert seen.usage["spillway"]["searches"] == 1
        # Summed over both: what was spent on the call is paid for, too.
        assert seen.usage["completion_tokens"] > len(seen.text.split()) + 5
        assert seen.usage["total_tokens"] == seen.usage["prompt_tokens"] + seen.usage["completion_tokens"]
        assert "spillway_searches_total{backend=" in proxy.client.get("/metrics").text


def test_tools_that_are_text_hold_it_too(stream: bool) -> None:
    written = f'<tool_call>\n{{"name": "{NAME}", "arguments": {{"query": "hedgehogs"}}}}\n</tool_call>'
    with staged(says(Reply(text=f"{LOOK}\n\n{written}")), tools=False) as (fake, proxy):
        seen = Seen(proxy, stream=stream, tools=[WEATHER])
        assert seen.text.startswith(LOOK)
        assert seen.text.removeprefix(LOOK).lstrip().startswith("Told: ")
        assert FACT in seen.text
        assert (seen.finish, seen.calls) == ("stop", [])
        first, second = sent(fake)
        assert NAME in text_of(first["messages"][0])
        assert second["messages"][: len(first["messages"])] == first["messages"]
        made, result = second["messages"][len(first["messages"]) :]
        assert (made["role"], result["role"]) == ("assistant", "user")
        assert NAME in made["content"]
        assert FACT in result["content"]


def test_of_several_calls_the_search_comes_first_and_the_clients_are_made_once_more(stream: bool) -> None:
    with staged(
        says(Reply(text=LOOK, tool_calls=[search(), CALL, search("bicycles", id="own2")]), Reply(tool_calls=[CALL]))
    ) as (fake, proxy):
        seen = Seen(proxy, stream=stream, tools=[WEATHER])
        assert (seen.text.strip(), seen.finish) == (LOOK, "tool_calls")
        assert [call["name"] for call in seen.calls] == ["get_weather"]
        made, one, two = sent(fake)[1]["messages"][-3:]
        assert [call["id"] for call in made["tool_calls"]] == ["own1", "own2"]
        assert (one["tool_call_id"], two["tool_call_id"]) == ("own1", "own2")
        assert names(sent(fake)[0]) == ["get_weather", NAME]


def test_a_search_behind_a_call_of_the_clients_is_left_out(stream: bool) -> None:
    with staged(says(Reply(tool_calls=[CALL, search()]))) as (fake, proxy):
        seen = Seen(proxy, stream=stream, tools=[WEATHER])
        assert seen.finish == "tool_calls"
        assert [call["name"] for call in seen.calls] == ["get_weather"]
        assert len(sent(fake)) == 1


def test_who_only_ever_searches_is_told_that_it_is_enough_and_then_ended(stream: bool) -> None:
    with staged(lambda q: SUMMARY if is_summary(q) else Reply(tool_calls=[search()])) as (fake, proxy):
        seen = Seen(proxy, stream=stream)
        assert (seen.text.strip(), seen.calls, seen.finish) == ("", [], "length")
        results = [text_of(message) for message in sent(fake)[-1]["messages"] if message["role"] == "tool"]
        assert len(results) == 4
        assert (results[-1], NO_MORE in results[:-1]) == (NO_MORE, False)
        # What one search has found the next one does not repeat.
        assert sum(FACT in result for result in results) == 1


@pytest.mark.parametrize("arguments", ["{}", "no json", '{"query": 5}', '{"query": " "}', "[]"])
def test_what_can_not_be_read_is_told_to_the_model(arguments: str, stream: bool) -> None:
    with staged(says(Reply(tool_calls=[ToolCall(NAME, arguments, "x")]))) as (fake, proxy):
        assert NO_QUERY in Seen(proxy, stream=stream).text
        made = sent(fake)[1]["messages"][-2]["tool_calls"][0]["function"]
        assert isinstance(loads(made["arguments"]), dict)


def test_while_nothing_was_taken_out_there_is_nothing_to_find() -> None:
    with staged(says(Reply(tool_calls=[search()]))) as (_, proxy):
        assert NOTHING_LOST in Seen(proxy, stream=True, messages=PAST[-1:]).text


def test_the_name_is_none_of_the_clients() -> None:
    theirs: Any = WEATHER["function"]
    taken = {**WEATHER, "function": {**theirs, "name": NAME}}
    own = ToolCall(NAME, '{"city": "Paris"}', "theirs")
    with staged(says(Reply(tool_calls=[own]))) as (fake, proxy):
        answer = proxy.chat({"model": "m", "messages": PAST, "tools": [taken]}).json()
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == NAME
        assert names(sent(fake)[0]) == [NAME, f"{NAME}_2"]


def test_the_tools_are_the_same_on_every_turn() -> None:
    with staged(says()) as (fake, proxy):
        messages = PAST[:1]
        for _ in range(3):
            Seen(proxy, stream=True, messages=messages, tools=[WEATHER])
            messages = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "On."}]
        Seen(proxy, stream=False, messages=PAST, tools=[WEATHER], tool_choice="none")
        assert len({dumps(body["tools"]) for body in sent(fake)}) == 1


@pytest.mark.parametrize(
    ("settings", "fields", "headers"),
    [
        ({"recall": "auto"}, {}, {}),
        ({"recall": "off"}, {}, {}),
        ({}, {"response_format": {"type": "json_object"}}, {}),
        ({}, {"n": 2}, {}),
        ({}, {"logprobs": True}, {}),
        ({}, {"messages": [{"role": "user", "content": "### Task:\nFind a title."}]}, {}),
        ({}, {}, {"x-task": "title_generation"}),
        ({}, {"messages": [*PAST, {"role": "assistant", "content": "It is"}]}, {}),
        ({"tools": False}, {}, {}),
    ],
)
def test_it_is_not_offered(settings: Any, fields: Any, headers: Any) -> None:
    with staged(says(), **settings) as (fake, proxy):
        body = {"model": "m", "messages": PAST[-1:], **fields}
        proxy.chat(body, **headers)
        assert NAME not in str(sent(fake)[-1])


def test_one_model_may_have_it_alone() -> None:
    models = {"m": {"recall": "tool", "window": WINDOW, "tools": True}}
    with staged(says(Reply(tool_calls=[search()])), recall="off", models=models) as (_, proxy):
        assert FACT in Seen(proxy, stream=True).text


def test_a_model_that_refuses_tools_is_asked_without_it() -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], says())
    with fake, running_proxy(fake, recall="tool", models={"m": {"window": WINDOW}}) as proxy:
        fake.fail_next(500, {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}})
        Seen(proxy, stream=True, messages=PAST[-1:])
        Seen(proxy, stream=True, messages=PAST[-1:])
        assert [names(body) for body in sent(fake)] == [[NAME], [], []]


def test_an_answer_that_outgrows_the_window_after_a_search_goes_on() -> None:
    words = [f" w{n}" for n in range(900)]

    def brain(question: Question) -> Reply:
        if is_summary(question):
            return SUMMARY
        if question.messages[-1]["role"] != "tool" and not question.prefix:
            return Reply(text=LOOK, tool_calls=[search()])
        done = question.prefix.split()
        first = int(done[-1][1:]) + 1 if done and done[-1][1:].isdigit() else 0
        return Reply(text=iter(words[first:]), exact=True)

    with staged(brain, status="off") as (fake, proxy):
        seen = Seen(proxy, stream=True)
        assert seen.text.split() == [*LOOK.split(), *"".join(words).split()]
        assert len(sent(fake)) > 2
        assert all(LOOK not in text_of(body["messages"][-1]) for body in sent(fake)[2:])


@pytest.mark.parametrize("finish", ["tool_calls", "length"])
def test_a_call_that_is_cut_off_reaches_nobody(finish: str) -> None:
    half = ToolCall(NAME, '{"query": "hedge', "own1")
    with staged(says(Reply(text=LOOK, tool_calls=[half], finish=finish), Reply(text=" Well.")), status="off") as (_, proxy):
        for stream in (True, False):
            seen = Seen(proxy, stream=stream, max_tokens=300)
            assert seen.calls == []


def test_a_connection_that_breaks_in_a_search_shows_none_of_it() -> None:
    broken = Reply(text=LOOK, tool_calls=[search()], cut=True, after=12)
    with staged(says(broken)) as (_, proxy):
        answer = proxy.chat({"model": "m", "messages": PAST, "stream": True})
        assert NAME not in answer.text
        assert "error" in answer.text


PATHS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": [{"role": m["role"], "content": m["content"]} for m in PAST]},
    "/v1/messages": {"messages": PAST, "max_tokens": 200},
    "/api/chat": {"messages": PAST},
}


@pytest.mark.parametrize("path", PATHS)
def test_clients_of_other_dialects_see_none_of_it_either(path: str, stream: bool) -> None:
    with staged(says(Reply(text=LOOK, tool_calls=[search()]))) as (fake, proxy):
        body = {"model": "m", "stream": stream, **PATHS[path]}
        answer = proxy.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert NAME not in answer.text
        assert "own1" not in answer.text
        assert len(sent(fake)) == 2
        assert FACT in text_of(sent(fake)[1]["messages"][-1])
