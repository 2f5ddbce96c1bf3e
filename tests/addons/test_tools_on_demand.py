"""Tools on demand: sixty tools in a small window, a line for each but those that are used, and the others looked up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from proxy.addons.tools_on_demand import NAME, NO_QUERY, NOTHING
from proxy.core.jsontext import dumps, loads
from proxy.core.request import text_of
from tests.attempts.test_searching import PATHS, SUMMARY, Seen, is_summary, names, says, sent
from tests.fakes import FAKES, FakeBackend, FakeModel, Question, Reply, ToolCall
from tests.proxying import Proxy, metric, running_proxy

pytestmark = pytest.mark.slow

WINDOW = 8192
LONG = "It says in detail what it does and what it is good for, whoever asks. "
OBJECTS = [
    *[
        *("account", "album", "budget", "calendar", "contact", "device", "email", "file", "folder", "group", "invoice"),
        *("lead", "meeting", "note", "order"),
    ]
]
VERBS = ["create", "delete", "list", "update"]


def tool(verb: str, thing: str) -> dict[str, Any]:
    """About 200 tokens, as those of MCP servers are."""
    fields = {
        f"{thing}_id": {"type": "string", "description": f"Which {thing}. {LONG}"},
        "limit": {"type": "integer", "description": f"How many. {LONG}"},
    }
    parameters = {"type": "object", "properties": fields, "required": [f"{thing}_id"]}
    about = f"{verb.capitalize()}s one {thing} of the user. {LONG * 2}"
    return {"type": "function", "function": {"name": f"{verb}_{thing}", "description": about, "parameters": parameters}}


TOOLS = [tool(verb, thing) for thing in OBJECTS for verb in VERBS]
ALL = {each["function"]["name"]: each for each in TOOLS}
HI = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hello, please see to it."}]
RIGHT = '{"invoice_id": "i7"}'
LOOK = ToolCall(NAME, '{"query": "delete an invoice"}', "own1")
CALL = ToolCall("delete_invoice", RIGHT, "c1")


@contextmanager
def staged(
    brain: Callable[[Question], Reply], kind: str = "llamacpp", *, tools: bool = True, window: int = WINDOW, **settings: Any
) -> Iterator[tuple[FakeBackend, Proxy]]:
    known = {"models": {"m": {"window": window, "tools": tools}}}
    fake = FAKES[kind]([FakeModel("m", window, tools=tools)], brain)
    with fake, running_proxy(fake, **{**known, **settings}) as proxy:
        yield fake, proxy
        assert fake.invalid_histories == []


def ask(proxy: Proxy, *, stream: bool = False, **fields: Any) -> Seen:
    seen = Seen(proxy, **{"stream": stream, "messages": HI, "tools": TOOLS, **fields})
    assert NAME not in seen.raw or "Told: " in seen.text
    return seen


def called(name: str, arguments: str, *, id: str = "c1") -> list[Any]:  # noqa: A002 - as in the API
    """A call in the client's history, with its result."""
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    made: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [made, {"role": "tool", "tool_call_id": id, "content": "done"}]


def lines(body: Any) -> str:
    """What the model is told of the tools that it can look up."""
    (finder,) = (each["function"]["description"] for each in body["tools"] if each["function"]["name"] == NAME)
    assert isinstance(finder, str)
    return finder


def test_sixty_tools_in_a_small_window_are_a_line_each() -> None:
    assert len(dumps(TOOLS)) > 4 * 0.9 * WINDOW
    with staged(says()) as (fake, proxy):
        seen = ask(proxy, stream=True)
        (body,) = sent(fake)
        first = names(body)
        assert len(dumps(body["tools"])) < WINDOW  # in bytes: a quarter of it in tokens
        assert "delete_invoice: Deletes one invoice of the user.\n" in lines(body)
        assert {name for name in ALL if f"- {name}: " in lines(body)} | set(first[1:]) == {*ALL}
        # What coding agents would live by comes as the client sent it.
        assert [each for each in body["tools"] if each in TOOLS] == [ALL[name] for name in first[1:]]
        assert {"list_account"} <= {*first} < {NAME, *ALL}
        assert seen.usage is not None
        outcome = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]
        assert outcome["shaped"]["on_demand"] > 5000
        (saved,) = metric(proxy, "spillway_shaped_tokens_total").values()
        assert saved == outcome["shaped"]["on_demand"]


def test_where_only_a_refusal_tells_the_window_its_request_is_answered_too(stream: bool) -> None:
    """Copilot's agent mode in front of an unknown server (microsoft/vscode#320558)."""
    with staged(says(), "generic", models={}) as (fake, proxy):
        assert proxy.chat({"model": "m", "messages": HI, "tools": TOOLS, "stream": stream}).status_code == 200
        refused, answered = (len(dumps(request.json["tools"])) for request in fake.chats())
        assert answered < WINDOW < refused / 4


def test_of_more_tools_than_can_be_listed_the_rest_is_found_in_words() -> None:
    tools = [tool("mcp__server__create", f"thing_number_{n}") for n in range(500)] + [ALL["delete_invoice"]]
    with staged(says(Reply(tool_calls=[LOOK]), Reply(tool_calls=[CALL]))) as (fake, proxy):
        assert [call["name"] for call in ask(proxy, tools=tools).calls] == ["delete_invoice"]
        first = sent(fake)[0]
        assert len(dumps(first["tools"])) < 1.25 * WINDOW
        assert "- mcp__server__create_thing_number_0\n" in lines(first)
        assert lines(first).endswith(" more, to be looked up in words")


@pytest.mark.parametrize("kind", sorted({*FAKES} - {"openrouter"}))  # which repeats the role in every chunk
def test_a_tool_is_looked_up_and_called_inside_one_answer(kind: str, stream: bool) -> None:
    with staged(says(Reply(text="Let me see.", tool_calls=[LOOK]), Reply(tool_calls=[CALL])), kind) as (fake, proxy):
        seen = ask(proxy, stream=stream)
        assert (seen.text.strip(), seen.finish) == ("Let me see.", "tool_calls")
        assert [(call["name"], loads(call["arguments"])) for call in seen.calls] == [(CALL.name, loads(RIGHT))]
        first, second = sent(fake)
        found = second["tools"][len(first["tools"]) :]
        assert second["tools"][: len(first["tools"])] == first["tools"]
        assert found[0] == ALL["delete_invoice"]
        assert len(found) <= 5
        result = text_of(second["messages"][-1])
        assert "delete_invoice: Deletes one invoice" in result
        assert "invoice_id: string" in result
        (given,) = metric(proxy, "spillway_found_tools_total").values()
        assert given == len(found)


@pytest.mark.parametrize("path", PATHS)
def test_clients_of_other_dialects_get_the_call_as_well(path: str, stream: bool) -> None:
    definitions = {
        "/v1/responses": [{"type": "function", **each["function"]} for each in TOOLS],
        "/v1/messages": [
            {
                "name": each["function"]["name"],
                "description": each["function"]["description"],
                "input_schema": each["function"]["parameters"],
            }
            for each in TOOLS
        ],
        "/api/chat": TOOLS,
    }
    with staged(says(Reply(tool_calls=[LOOK]), Reply(tool_calls=[CALL]))) as (fake, proxy):
        history = {"input": HI} if path == "/v1/responses" else {"messages": HI[1:], "max_tokens": 200}
        body = {"model": "m", "stream": stream, "tools": definitions[path], **history}
        answer = proxy.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert NAME not in answer.text
        assert "delete_invoice" in answer.text
        assert len(sent(fake)) == 2


def test_the_list_only_grows_also_behind_a_restart_and_without_a_call(tmp_path: Path) -> None:
    history, bodies = [*HI], []
    store = f"sqlite:///{tmp_path}/spillway.sqlite3"
    for query, reply in (
        ("delete_invoice list_note", Reply(text="Done nothing.")),  # looked up, and not called
        ("", Reply(tool_calls=[ToolCall("update_lead", '{"lead_id": "1"}', "c1")])),
        ("create_email", Reply(text="Well.")),
        ("", Reply(text="Yes.")),
    ):
        looks = [Reply(tool_calls=[ToolCall(NAME, dumps({"query": query}).decode(), "own")])] if query else []
        with staged(says(*looks, reply), store=store) as (fake, proxy):
            ask(proxy, messages=history)
            bodies += sent(fake)
        history += (
            called("update_lead", '{"lead_id": "1"}')
            if reply.tool_calls
            else [{"role": "assistant", "content": str(reply.text)}]
        )
        history += [] if reply.tool_calls else [{"role": "user", "content": "And now?"}]
    grown = [names(body) for body in bodies]
    for before, after in pairwise(bodies):
        assert after["tools"][: len(before["tools"])] == before["tools"]
    assert grown[-1][len(grown[0]) :] == ["delete_invoice", "list_note", "update_lead", "create_email"]


def test_a_call_of_a_tool_with_no_more_than_a_line_is_mended_by_its_schema(stream: bool) -> None:
    guessed = ToolCall("list_note", '{"note_id": 7, "limit": "3"}', "c1")
    with staged(says(Reply(tool_calls=[guessed]))) as (fake, proxy):
        seen = ask(proxy, stream=stream)
        assert (seen.finish, len(sent(fake))) == ("tool_calls", 1)
        assert '"delta":{}' not in seen.raw.partition("tool_calls")[0]
        assert [loads(call["arguments"]) for call in seen.calls] == [{"note_id": "7", "limit": 3}]


@pytest.mark.parametrize("wrong", ['{"id": "i7"}', '{"invoice_id": "i7", "force": true}', "{}"])
def test_one_that_can_not_be_mended_is_made_once_more_with_the_schema(wrong: str, stream: bool) -> None:
    other = ToolCall("list_note", '{"note_id": "n"}', "c2")
    first = Reply(text="So.", tool_calls=[ToolCall("delete_invoice", wrong, "c1"), other], finish="tool_calls")
    with staged(says(first, Reply(tool_calls=[CALL, other]))) as (fake, proxy):
        seen = ask(proxy, stream=stream)
        assert (seen.text.strip(), seen.finish) == ("So.", "tool_calls")
        assert [call["name"] for call in seen.calls] == ["delete_invoice", "list_note"]
        assert loads(seen.calls[0]["arguments"]) == loads(RIGHT)
        before, after = sent(fake)
        assert after["tools"] == [*before["tools"], ALL["delete_invoice"]]
        assert "invoice_id: string" in text_of(after["messages"][-1])
        assert list(metric(proxy, "spillway_found_tools_total")) == ['{backend="llamacpp",model="m",why="called"}']


def test_a_call_that_outgrows_the_window_while_it_is_held_is_made_once_more(stream: bool) -> None:
    written = dumps({"invoice_id": "word " * 3300}).decode()
    tokens = "some words " * 900

    def brain(question: Question) -> Reply:
        return SUMMARY if is_summary(question) else Reply(text="So it is.", tool_calls=[ToolCall(CALL.name, written)])

    with staged(brain) as (fake, proxy):
        before = [*called("list_note", '{"note_id": "n"}'), {"role": "user", "content": tokens}]
        history = [HI[0], *before, {"role": "assistant", "content": "ok " * 900}, HI[1]]
        seen = ask(proxy, stream=stream, messages=history)
        assert (seen.text, seen.finish) == ("So it is.", "tool_calls")
        assert [call["arguments"] for call in seen.calls] == [written]
        assert len(sent(fake)) > 1


def test_who_calls_it_wrongly_again_gets_the_call_through() -> None:
    wrong = Reply(tool_calls=[ToolCall("delete_invoice", "{}", "c1")])
    with staged(says(wrong, wrong)) as (fake, proxy):
        assert [call["arguments"] for call in ask(proxy).calls] == ["{}"]
        assert len(sent(fake)) == 2


def test_behind_a_call_of_the_clients_a_wrong_one_waits() -> None:
    calls = [ToolCall("list_file", '{"file_id": "f"}', "c1"), ToolCall("delete_invoice", "{}", "c2")]
    with staged(says(Reply(tool_calls=calls))) as (fake, proxy):
        assert [call["name"] for call in ask(proxy, stream=True).calls] == ["list_file"]
        assert len(sent(fake)) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [("{}", NO_QUERY), ('{"query": "zzz"}', NOTHING), ('{"names": ["delete_invoice", "list_note"]}', "list_note")],
)
def test_what_it_is_told_of_a_query(arguments: str, told: str) -> None:
    with staged(says(Reply(tool_calls=[ToolCall(NAME, arguments, "x")]))) as (_, proxy):
        assert told in ask(proxy).text


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "delete_invoice"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "delete_invoice"}}]}},
    ],
)  # fmt: skip
def test_a_tool_that_the_client_picks_is_defined(choice: dict[str, Any]) -> None:
    with staged(says(Reply(tool_calls=[CALL]))) as (fake, proxy):
        ask(proxy, tool_choice=choice)
        assert sent(fake)[0]["tools"][-1] == ALL["delete_invoice"]


@pytest.mark.parametrize("looks", [True, False])
def test_tools_that_are_text_are_looked_up_as_well(looks: bool, stream: bool) -> None:
    def written(name: str, arguments: str) -> Reply:
        return Reply(text=f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')

    first = written(*((NAME, '{"query": "delete_invoice"}') if looks else ("delete_invoice", '{"id": 7}')))
    with staged(says(first, written("delete_invoice", '{"invoice_id": 7}')), tools=False) as (fake, proxy):
        seen = ask(proxy, stream=stream)
        assert (seen.text.strip(), seen.finish) == ("", "tool_calls")
        assert [loads(call["arguments"]) for call in seen.calls] == [{"invoice_id": "7"}]
        one, two = sent(fake)
        assert two["messages"][: len(one["messages"])] == one["messages"]
        assert "- delete_invoice: Deletes one invoice" in text_of(two["messages"][-1])
        assert "invoice_id: string" not in text_of(one["messages"][0])
        ask(proxy, messages=[*HI, *called("delete_invoice", RIGHT), *HI[1:]])
        assert "invoice_id: string" in text_of(sent(fake)[2]["messages"][0])


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"policy": "standard", "window": 3 * WINDOW}, {}),
        ({}, {"tools": TOOLS[:7]}),
        ({"window": 3 * WINDOW}, {"response_format": {"type": "json_object"}}),
        ({"window": 3 * WINDOW}, {"n": 2}),
        ({"window": 8 * WINDOW}, {}),
    ],
)
def test_nothing_is_looked_up(settings: Any, fields: Any) -> None:
    with staged(says(), **settings) as (fake, proxy):
        proxy.chat({"model": "m", "messages": HI, "tools": TOOLS, **fields})
        body = sent(fake)[0]
        assert names(body) == [each["function"]["name"] for each in fields.get("tools", TOOLS)]
        shortened = "response_format" in fields or "n" in fields
        assert (body["tools"][0] != TOOLS[0]) is shortened


def test_a_tool_of_the_clients_that_has_the_name_keeps_it() -> None:
    theirs = {"type": "function", "function": {"name": NAME, "description": LONG * 9, "parameters": {"type": "object"}}}
    with staged(says(Reply(tool_calls=[ToolCall(NAME, "{}", "t1")]))) as (fake, proxy):
        answer = proxy.chat({"model": "m", "messages": HI, "tools": [*TOOLS, theirs]}).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == NAME
        assert names(sent(fake)[0])[0] == f"{NAME}_2"


def test_it_goes_with_the_search_of_the_conversation() -> None:
    with staged(says(Reply(tool_calls=[LOOK])), recall="tool") as (fake, proxy):
        ask(proxy)
        one, two = map(names, sent(fake))
        assert one[:2] == [NAME, "search_conversation"]
        assert two[: len(one)] == one
