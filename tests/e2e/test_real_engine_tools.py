"""Tool loops on the real engine: with tools of the model's own, and with tools that Spillway emulates.

The echo model repeats the newest message, so each result holds the call that comes next, and Spillway is `repeating` where
it reads calls. Where tools are emulated, the model repeats the tags around the result too.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from tests.engine.cache import cached_model
from tests.engine.fixtures import WINDOW, StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway, Spillway, StartSpillway
from tests.engine.tap import Tap
from tests.engine.walking import user
from tests.proxying import UNREDUCED

pytestmark = pytest.mark.engine

REFUSAL = "exceeds the available context size"
WORDS = cached_model(ModelSpec()).words
"""About a thousand, each of them one token."""
DONE = "That was the last page."


def tool(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"page": {"type": "integer"}, "topic": {"type": "string"}},
        "required": ["page", "topic"],
        "additionalProperties": False,
    }
    function = {"name": name, "description": "Fetch a page.", "strict": True, "parameters": parameters}
    return {"type": "function", "function": function}


def arguments(number: int) -> dict[str, Any]:
    return {"page": number, "topic": " ".join(WORDS[3 * number : 3 * number + 2])}


def call(number: int, name: str = "fetch") -> str:
    written = json.dumps({"name": name, "arguments": arguments(number)})
    return f"<tool_call>\n{written}\n</tool_call>"


FIRST = user(f"Fetch the first page. {call(1)}")


@dataclass
class Client:
    """The openai package in a loop with the tool `fetch`, whose pages have `length` words."""

    url: str
    key: str
    model: str
    rounds: int
    length: int = 5
    ids: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    """How each answer says that its tools reached the model."""
    actions: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """What it sent."""
    answers: list[bytes] = field(default_factory=list)
    """What it got."""

    def loop(self, streamed: Sequence[bool]) -> str:
        history = [FIRST]
        hooks: dict[str, Any] = {"request": [self._sent], "response": [self._got]}
        with (
            openai.DefaultHttpxClient(event_hooks=hooks, trust_env=False) as http,
            openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0, http_client=http) as client,
        ):
            for number in range(self.rounds):
                message = self._ask(client, history, stream=streamed[number % len(streamed)])
                (made,) = message.tool_calls
                assert (made.function.name, made.type) == ("fetch", "function")
                assert json.loads(made.function.arguments) == arguments(number + 1)
                self.ids.append(made.id)
                kept = message.model_dump(include={"role", "content"})
                function = {"name": made.function.name, "arguments": made.function.arguments}
                kept["tool_calls"] = [{"id": made.id, "type": "function", "function": function}]
                history += [kept, {"role": "tool", "tool_call_id": made.id, "content": self._fetch(number + 1)}]
            message = self._ask(client, history, stream=streamed[self.rounds % len(streamed)], calls=False)
            assert not message.tool_calls
            assert len(set(self.ids)) == self.rounds
            return str(message.content)

    def _fetch(self, page: int) -> str:
        if page == self.rounds:
            return DONE
        start = 200 + page * self.length
        text = " ".join(WORDS[n % len(WORDS)] for n in range(start, start + self.length))
        return f"Page {page} says: {text}. {call(page + 1)}"

    def _ask(self, client: openai.OpenAI, history: list[Any], *, stream: bool, calls: bool = True) -> Any:
        asked: dict[str, Any] = {"model": self.model, "messages": history, "tools": [tool("fetch")]}
        if stream:
            # The package's own accumulator: it is strict about ids, roles and indexes.
            options: Any = {"include_usage": True}
            with client.chat.completions.stream(**asked, stream_options=options) as events:
                completion: Any = events.get_final_completion()
        else:
            completion = client.chat.completions.create(**asked)
        (choice,) = completion.choices
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        assert completion.usage is not None
        return choice.message

    def _sent(self, request: Any) -> None:
        self.bodies.append(request.read())

    def _got(self, response: Any) -> None:
        self.answers.append(response.read())
        self.tools.append(response.headers.get("x-spillway-tools", "native"))
        # Headers may go out while the history is still being shortened; the end of the answer knows.
        final = re.findall(rb'"action":"(\w+)"', self.answers[-1])
        self.actions.append(final[-1].decode() if final else response.headers["x-spillway-action"])


def told_of(proxy: Spillway, model: str) -> Any:
    told = httpx.get(f"{proxy.url}/spillway/models", trust_env=False).json()
    return told["backends"][0]["models"][model]


@pytest.fixture
def untooled(engine: StartEngine) -> Engine:
    """The echo model with a chat template that knows nothing of tools: the engine drops them in silence."""
    return engine(ModelSpec(mode="echo", tools=False), alias="untooled")


@pytest.fixture(params=["native", "emulated"])
def either(request: pytest.FixtureRequest) -> Engine:
    """The echo model with tools of its own, and without."""
    found: Engine = request.getfixturevalue("echo_engine" if request.param == "native" else "untooled")
    return found


# -- ten rounds


@pytest.mark.heavy
def test_tools_of_the_models_own_pass_byte_for_byte(echo_tap: Tap, spillway: StartSpillway) -> None:
    proxy = spillway([echo_tap.url])
    for streamed in (False, True):
        client = Client(proxy.v1, "k", "echo", rounds=10)
        assert client.loop([streamed]) == DONE
        assert set(client.tools) == {"native"}
        assert set(client.actions) <= UNREDUCED
        echo_tap.wait_for((1 + streamed) * 11)
        seen = echo_tap.chats()[-11:]
        assert [exchange.asked for exchange in seen] == client.bodies
        assert [exchange.answered for exchange in seen] == client.answers
    assert told_of(proxy, "echo")["emulated_calls"] == {}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.rows(1)
def test_tools_of_a_model_without_any(untooled: Engine, proxy_of: SharedSpillway, streamed: bool) -> None:
    """Nothing is set: the engine tells that the template has no place for tools."""
    proxy = proxy_of(untooled, repeating=True)
    before = told_of(proxy, "untooled")["emulated_calls"].get("tool_call", {"called": 0})
    client = Client(proxy.v1, proxy.key, "untooled", rounds=9)
    assert client.loop([streamed]) == f"<tool_result tool_name='fetch'>{DONE}</tool_result>"
    assert set(client.tools) == {"emulated"}
    told = told_of(proxy, "untooled")
    assert (told["tools"]["value"], told["tools"]["origin"]) == (False, "llama.cpp, chat template")
    assert told["emulated_calls"]["tool_call"]["called"] == before["called"] + 9
    metrics = httpx.get(f"{proxy.url}/metrics", trust_env=False).text
    assert 'spillway_emulated_tool_calls_total{backend="' in metrics


def test_a_setting_has_tools_emulated(echo_tap: Tap, spillway: StartSpillway) -> None:
    proxy = spillway([echo_tap.url], repeating=True, models={"echo": {"tools": False}})
    client = Client(proxy.v1, "k", "echo", rounds=3)
    assert DONE in client.loop([False, True])
    assert set(client.tools) == {"emulated"}
    for exchange in echo_tap.chats():
        sent = json.loads(exchange.asked)
        assert "tools" not in sent
        assert {message["role"] for message in sent["messages"]} <= {"system", "user", "assistant"}
        assert "- fetch: Fetch a page.\n  page: integer\n  topic: string" in sent["messages"][0]["content"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.rows(1)
def test_a_tool_is_looked_up_and_called_inside_one_answer(echo_tap: Tap, spillway: StartSpillway, streamed: bool) -> None:
    """What it is told of the tool holds the call; the engine's grammar takes none of a tool that is not defined."""
    tools = [*(tool(f"other_{number}") for number in range(59)), tool("fetch")]
    tools[-1]["function"]["description"] = f"Try {call(1)}"
    look = json.dumps({"name": "find_tools", "arguments": {"query": "fetch"}})
    proxy = spillway([echo_tap.url], repeating=True)
    with openai.OpenAI(base_url=proxy.v1, api_key="k", max_retries=0) as client:
        asked: Any = {"model": "echo", "messages": [user(f"<tool_call>\n{look}\n</tool_call>")], "tools": tools}
        if streamed:
            with client.chat.completions.stream(**asked) as events:
                completion: Any = events.get_final_completion()
        else:
            completion = client.chat.completions.create(**asked)
    (made,) = completion.choices[0].message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments)) == ("fetch", arguments(1))
    echo_tap.wait_for(2)
    first, second = (json.loads(exchange.asked)["tools"] for exchange in echo_tap.chats())
    assert [each["function"]["name"] for each in second] == ["find_tools", "fetch"]
    assert first == second[:1]


# -- more than a window of rounds


@pytest.mark.heavy
def test_a_loop_of_several_windows(either: Engine, spillway: StartSpillway) -> None:
    # The model repeats what the newest message begins with, so the summary is not to be in front of the newest result.
    proxy = spillway([either.url], repeating=True, stabilise=False)
    refused = either.process.text().count(REFUSAL)
    client = Client(proxy.v1, "k", either.model, rounds=16, length=60)
    assert DONE in client.loop([True, False])
    assert client.actions.count("compacted") >= 3, client.actions
    assert sum(action in UNREDUCED for action in client.actions) >= 8, client.actions
    assert either.process.text().count(REFUSAL) == refused
    history = json.loads(client.bodies[-1])["messages"]
    whole = either.post("/tokenize", {"content": json.dumps(history)}).json()["tokens"]
    assert len(whole) > 1.5 * WINDOW


# -- the end of the window


@pytest.mark.heavy
def test_a_call_that_does_not_fit_is_written_once_more(either: Engine, spillway: StartSpillway) -> None:
    """The window fills in the middle of the arguments: none of them is with the client, and the call is asked for again.

    By a proxy of its own: what others have taught about counting their words would have it shorten the prompt first.
    """
    (history, wanted), stream = nearly_full(550), either.model == "untooled"
    proxy = spillway([either.url], repeating=True)
    answer = proxy.chat(history, model=either.model, tools=[tool("fetch")], stream=stream)
    assert made_in(answer.frames) == [("fetch", wanted)]
    assert answer.text.strip() == "I fetch it."
    assert (answer.reasons, len(answer.ids), answer.done) == (["tool_calls"], 1, int(stream))
    assert pauses(proxy) == 1


def nearly_full(words: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A history, and the arguments of a call in its newest message of so many words: together nearly a window."""
    wanted = {"page": 1, "topic": " ".join(WORDS[400 : 400 + words])}
    written = json.dumps({"name": "fetch", "arguments": wanted})
    history = []
    for number in range(8):
        said = " ".join(WORDS[number:310:5])  # never in the order in which the call has them
        history += [user(f"Part {number}: {said}"), {"role": "assistant", "content": f"Noted, part {number}."}]
    history.append(user(f"I fetch it.\n<tool_call>\n{written}\n</tool_call>"))
    return history, wanted


def made_in(frames: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Names and arguments of the calls in an answer, streamed or not."""
    calls: dict[int, list[str]] = {}
    for choice in (choice for frame in frames for choice in frame.get("choices", ())):
        said = choice.get("delta", choice.get("message"))
        for index, part in enumerate(said.get("tool_calls") or ()):
            own = calls.setdefault(part.get("index", index), ["", ""])
            own[0] += part["function"].get("name") or ""
            own[1] += part["function"].get("arguments") or ""
    return [(name, json.loads(text)) for name, text in calls.values()]


def pauses(proxy: Spillway) -> float:
    lines = httpx.get(f"{proxy.url}/metrics", trust_env=False).text.split("\n")
    return sum(float(line.split()[-1]) for line in lines if line.startswith("spillway_pauses_total{"))


@pytest.mark.heavy
def test_a_call_that_fits_is_written_once(untooled: Engine, spillway: StartSpillway) -> None:
    """By a proxy of its own, as above."""
    history, wanted = nearly_full(440)
    proxy = spillway([untooled.url], repeating=True)
    history[-1] = user(history[-1]["content"].partition("\n")[2])  # the answer begins with the call
    answer = proxy.chat(history, model="untooled", tools=[tool("fetch")], stream=True)
    assert made_in(answer.frames) == [("fetch", wanted)]
    assert (answer.text, answer.reasons) == ("", ["tool_calls"])
    assert answer.action in UNREDUCED
    assert pauses(proxy) == 0


# -- what a client may ask of tools

# Of two calls in one form the echo model would repeat the second only: they begin alike.
SECOND = f"<function=store>{json.dumps(arguments(8), separators=(',', ':'))}</function>"
TWO = f"{call(7)}\nAfter that:\n{SECOND}"
FETCH, STORE = ("fetch", arguments(7)), ("store", arguments(8))


@pytest.mark.parametrize(
    ("fields", "said", "made", "text"),
    [
        ({}, TWO, [FETCH, STORE], "After that:"),
        ({"tool_choice": "none"}, TWO, [], TWO),
        ({"tool_choice": "required"}, call(7), [FETCH], ""),
        ({"tool_choice": {"type": "function", "function": {"name": "store"}}}, TWO, [STORE], f"{call(7)}\nAfter that:"),
        ({"parallel_tool_calls": False}, TWO, [FETCH], "After that:"),
    ],
    ids=["auto", "none", "required", "named", "one only"],
)
def test_the_choice_of_the_client(
    untooled: Engine, proxy_of: SharedSpillway, fields: dict[str, Any], said: str, made: list[Any], text: str
) -> None:
    proxy = proxy_of(untooled, repeating=True)
    for stream in (False, True):
        tools = [tool("fetch"), tool("store")]
        answer = proxy.chat([user(said)], model="untooled", tools=tools, stream=stream, **fields)
        assert made_in(answer.frames) == made
        # The rule of the moment stands behind the message that the echo model repeats.
        own, rule, _ = answer.text.partition("[For this answer: ")
        assert own.strip() == text
        assert bool(rule) is bool(fields)
        assert answer.reasons == ["tool_calls" if made else "stop"]
