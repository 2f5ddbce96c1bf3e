"""Clients' own compactions: served whole, from what the client sent, and never twice for nothing."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.history.marks import EXTRACT
from tests.compacting import CLIENTS as PROGRAMS
from tests.core.test_client_compaction import CLAUDE, CODEX, OPENCODE, QWEN, QWEN_SYSTEM
from tests.dialects.asking import PATHS, question, read
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, ToolCall, qa, summariser
from tests.fakes.brains import facts
from tests.proxying import Proxy, metric, read_stream, running_proxy

MODEL = "fake-model"
WINDOW = 4096
OURS = "Write plain text of at most"
"""How Spillway asks for a summary."""
TOOL = {"name": "read", "description": "Reads a file. " * 40}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"file": {"type": "string"}}}


def talk(turns: int) -> list[dict[str, str]]:
    """A conversation of several windows, with a code in each turn."""
    made: list[dict[str, str]] = []
    for turn in range(turns):
        said = f"Remember: the code of c{turn} is K-{turn}. " + "There is more to be said about it. " * 25
        made += [{"role": "user", "content": said}, {"role": "assistant", "content": "Noted. " * 40}]
    return made


def messages(proxy: Proxy, history: list[dict[str, str]], ask: str, system: str, *, streamed: bool) -> str:
    body = {
        "model": MODEL,
        "max_tokens": 2000,
        "system": system,
        "tools": [{**TOOL, "input_schema": SCHEMA}],
        "messages": [*history, {"role": "user", "content": [{"type": "text", "text": ask}]}],
        "stream": streamed,
    }
    told = proxy.client.post("/v1/messages", json=body)
    assert told.status_code == 200
    if not streamed:
        return str(told.json()["content"][0]["text"])
    deltas = (each["delta"] for each in events(told.text) if each["type"] == "content_block_delta")
    return "".join(each.get("text", "") for each in deltas)


def responses(proxy: Proxy, history: list[dict[str, str]], ask: str, system: str, *, streamed: bool) -> str:
    lead = {"role": "developer", "content": system}
    given = [lead, *history, {"role": "user", "content": [{"type": "input_text", "text": ask}]}]
    told = proxy.client.post("/v1/responses", json={"model": MODEL, "input": given, "stream": streamed})
    assert told.status_code == 200
    if not streamed:
        return str(told.json()["output"][0]["content"][0]["text"])
    return str(completed(told.text)["output"][-1]["content"][0]["text"])


def events(stream: str) -> list[Any]:
    return [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]


def completed(stream: str) -> Any:
    last = events(stream)[-1]
    assert last["type"] == "response.completed", last
    return last["response"]


def chat(proxy: Proxy, history: list[dict[str, str]], ask: str, system: str, *, streamed: bool) -> str:
    given = [{"role": "system", "content": system}, *history, {"role": "user", "content": ask}]
    told = proxy.chat({"model": MODEL, "messages": given, "stream": streamed})
    assert told.status_code == 200
    if not streamed:
        return str(told.json()["choices"][0]["message"]["content"])
    return read_stream(told.content).text


def folded(proxy: Proxy, history: list[dict[str, str]], ask: str, system: str, *, streamed: bool) -> str:
    """As opencode sends it: the whole conversation in one message."""
    told = "\n\n".join(f"[{each['role']}]: {each['content']}" for each in history)
    before, after = ask.split("user: hello\nassistant: hi")
    return chat(proxy, [], f"{before}{told}{after}", system, streamed=streamed)


CODES = "You code."
CLIENTS: dict[str, tuple[Callable[..., str], str, str]] = {
    "claude": (messages, CLAUDE, CODES), "codex": (responses, CODEX, CODES), "qwen": (chat, QWEN, QWEN_SYSTEM),
    "opencode": (folded, OPENCODE, CODES),
}  # fmt: skip
every = pytest.mark.parametrize("client", CLIENTS)
both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


def compacts(question: Question) -> bool:
    """Whether Spillway asks, or one of the clients."""
    last = question.last_user
    return any(mark in last for mark in (OURS, "CHECKPOINT", "TEXT ONLY", "anchored", "scratchpad"))


def fake_with(brain: Any, window: int = WINDOW) -> LlamaCppFake:
    return LlamaCppFake([FakeModel(MODEL, window=window)], brain=brain)


@both
@every
def test_the_whole_history_is_read_in_pieces_if_it_must_be(client: str, streamed: bool) -> None:
    send, ask, system = CLIENTS[client]
    with fake_with(summariser(qa(), compacts)) as fake, running_proxy(fake) as proxy:
        said = send(proxy, talk(30), ask, system, streamed=streamed)
        known = facts([{"role": "assistant", "content": said}])
        assert known == {f"c{turn}": f"K-{turn}" for turn in range(30)}
        words, chats = ask.strip().split("\n")[-1], fake.chats()
        # Behind the pieces; an answer that fills the window is gone on with behind it.
        asked = max(at for at, each in enumerate(chats) if words in json.dumps(each.json["messages"][-1]))
        assert asked > 1
        assert "tools" not in chats[asked].json
        assert (fake.overflows, fake.invalid_histories) == (0, [])


def test_it_is_made_of_what_the_client_sent_and_not_of_a_summary() -> None:
    """Spillway's own summary has lost the newest codes; the history that the client still has not."""
    said_vaguely = "They talked about this and that for a while, and nothing of it was of any weight."
    vague = Reply(text=said_vaguely)
    honest = summariser(qa(), compacts)
    lost: list[bool] = [True]
    # What the user says itself, the block keeps whatever the model leaves out.
    sides = {"user": "assistant", "assistant": "user"}
    history = [{"role": "user", "content": "Go on."}, *({**m, "role": sides[m["role"]]} for m in talk(12))][:-1]
    with (
        fake_with(lambda question: vague if lost and compacts(question) else honest(question)) as fake,
        running_proxy(fake, recall="off") as proxy,
    ):
        asked = chat(proxy, history, "What is the code of c1?", CODES, streamed=False)
        assert asked == "I do not know the code for c1."
        lost.clear()
        said = chat(proxy, history, CODEX, CODES, streamed=False)
        assert facts([{"role": "assistant", "content": said}])["c1"] == "K-1"
        # What Spillway sends otherwise is as it was, and no part of it was made anew.
        before = len(fake.chats())
        chat(proxy, history, "What is the code of c1?", CODES, streamed=False)
        assert len(fake.chats()) == before + 1
        assert EXTRACT in fake.chats()[-1].content.decode()


def test_all_of_what_a_response_was_stored_with_is_read() -> None:
    with fake_with(summariser(qa(), lambda _: True)) as fake, running_proxy(fake, recall="off") as proxy:
        body: dict[str, Any] = {"model": MODEL, "input": [*talk(30), {"role": "user", "content": "Go on."}]}
        stored = proxy.client.post("/v1/responses", json=body).json()["id"]
        before = len(fake.chats())
        answer = proxy.client.post(
            "/v1/responses", json={"model": MODEL, "previous_response_id": stored, "input": CODEX}
        ).json()
        said = answer["output"][-1]["content"][0]["text"]
        assert facts([{"role": "assistant", "content": said}]) == {f"c{turn}": f"K-{turn}" for turn in range(30)}
        assert "part 1 of" in json.dumps(fake.chats()[before].json)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_that_has_to_be_called_stays(choice: str) -> None:
    """As Cline has its summaries written as a call."""
    tool = {"type": "function", "function": {**TOOL, "parameters": SCHEMA}}
    given = [*talk(30), {"role": "user", "content": CLAUDE}]
    with fake_with(summariser(qa(), lambda _: True)) as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": MODEL, "messages": given, "tools": [tool], "tool_choice": choice})
        assert ("tools" in fake.chats()[-1].json) == (choice == "required")
        assert all(f"K-{turn}." in str([each.json for each in fake.chats()]) for turn in range(30))
        assert (fake.overflows, fake.invalid_histories) == (0, [])


def test_it_is_read_though_the_model_has_written_no_summary_so_far() -> None:
    """One that calls a tool wherever it may reads a part well all the same."""
    honest, calls = summariser(qa(), compacts), Reply(tool_calls=[ToolCall("read", "{}")])

    def brain(asked: Question) -> Reply:
        return calls if OURS in asked.last_user else honest(asked)

    with fake_with(brain) as fake, running_proxy(fake, strategy="summarize") as proxy:
        for number in range(2):
            chat(proxy, talk(12 + number)[2 * number :], "Go on.", CODES, streamed=False)
        assert sum(metric(proxy, "spillway_summaries_total").values()) == 4  # all in vain
        # What a user says itself is kept without a model.
        sides = {"user": "assistant", "assistant": "user"}
        history = [{"role": "user", "content": "Go on."}, *({**m, "role": sides[m["role"]]} for m in talk(30))][:-1]
        said = chat(proxy, history, CODEX, CODES, streamed=False)
        assert facts([{"role": "assistant", "content": said}]) == {f"c{turn}": f"K-{turn}" for turn in range(30)}


def test_one_that_fits_is_sent_as_it_is() -> None:
    with fake_with(summariser(qa(), compacts), window=65_536) as fake, running_proxy(fake) as proxy:
        messages(proxy, talk(12), CLAUDE, CODES, streamed=True)
        (only,) = fake.chats()
        assert len(only.json["messages"]) == 26
        assert only.json["tools"]


TURNS = [("Go on. " * 40, f"Remember: the code of c{n} is K-{n}. " + "There is more to be said. " * 30) for n in range(30)]


def sent_by(proxy: Proxy, path: str, given: list[dict[str, Any]], *, stream: bool) -> Any:
    """Send a request in a dialect; what leads a Messages request is a field of its own."""
    lead = {"system": given[0]["content"]} if path == "/v1/messages" and given[0]["role"] == "system" else {}
    body = question(path, stream=stream, messages=given[len(lead) :], **lead)
    return proxy.client.post(path, json=body)


@pytest.mark.parametrize(
    ("name", "path", "stream"),
    [
        *((name, PATHS[n % 4], n % 8 < 4) for n, name in enumerate(PROGRAMS)),
        *(("goose", path, stream) for path in PATHS for stream in (True, False)),
    ],
)
@pytest.mark.rows(10)
def test_all_of_it_is_answered_from_wherever_it_is(name: str, path: str, stream: bool) -> None:
    given = PROGRAMS[name](TURNS)
    path = path if given[-1]["role"] == "user" else PATHS[0]  # Messages has no system's words at its end
    model = FakeModel("m", window=WINDOW)
    honest, vague = summariser(qa(), lambda _: True), Reply(text="They talked for a while, of this and that.")
    fake = LlamaCppFake([model], lambda asked: vague if OURS in asked.last_user else honest(asked))
    with fake, running_proxy(fake) as proxy:
        answer = sent_by(proxy, path, given, stream=stream)
        assert answer.status_code == 200, answer.text
        seen = read(path, answer.content, stream=stream)
        assert seen.error is None
        assert facts([{"role": "assistant", "content": seen.text}]) == {f"c{n}": f"K-{n}" for n in range(30)}
        assert "x-spillway-left-out" not in answer.headers
        assert (fake.overflows, fake.invalid_histories) == (0, [])
        before = len(fake.chats())
        sent_by(proxy, path, given, stream=stream)
        assert len(fake.chats()) == before + 1, "who gives up waiting asks once more, and it is not read again"


@pytest.mark.parametrize("name", ["goose", "langchain memory", "roo"])
def test_what_can_not_be_read_whole_is_told(name: str) -> None:
    """A model that breaks off in one part, and a history longer than all that is read."""
    broken = [Reply(error="out of memory")]
    inner = summariser(qa(), lambda _: True)

    def brain(asked: Question) -> Reply:
        return broken[0] if "stands part 2 " in asked.last_user else inner(asked)

    with LlamaCppFake([FakeModel("m", window=WINDOW)], brain=brain) as fake, running_proxy(fake) as proxy:
        body = {"model": "m", "messages": PROGRAMS[name](TURNS)}
        told = proxy.chat(body).json()["usage"]["spillway"]["left_out"]
        assert 0 < told["tokens"] < told["of"]
        broken[0] = Reply(text="nothing")
        body["messages"] = PROGRAMS[name](TURNS * 12)
        answer = proxy.chat(body)
        assert answer.status_code == 200
        assert int(answer.headers["x-spillway-left-out"]) > WINDOW
