"""Clients' own compactions: served whole, from what the client sent, and never twice for nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.history.marks import EXTRACT
from tests.core.test_client_compaction import CLAUDE, CODEX, OPENCODE, QWEN, QWEN_SYSTEM
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, ToolCall, qa, summariser
from tests.fakes.brains import FACT, facts
from tests.proxying import Proxy, read_stream, running_proxy

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
    "claude": (messages, CLAUDE, CODES),
    "codex": (responses, CODEX, CODES),
    "qwen": (chat, QWEN, QWEN_SYSTEM),
    "opencode": (folded, OPENCODE, CODES),
}
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


def test_one_that_fits_is_sent_as_it_is() -> None:
    with fake_with(summariser(qa(), compacts), window=65_536) as fake, running_proxy(fake) as proxy:
        messages(proxy, talk(12), CLAUDE, CODES, streamed=True)
        (only,) = fake.chats()
        assert len(only.json["messages"]) == 26
        assert only.json["tools"]


@pytest.mark.slow
@every
def test_one_that_repeats_is_answered_from_the_stored_one(client: str) -> None:
    send, ask, system = CLIENTS[client]
    with fake_with(summariser(qa(), compacts)) as fake, running_proxy(fake) as proxy:
        first = send(proxy, talk(20), ask, system, streamed=True)
        asked = len(fake.chats())
        for streamed in (True, False):
            assert send(proxy, talk(20), ask, system, streamed=streamed) == first
        assert len(fake.chats()) == asked
        # Another history, or another's, is no repetition.
        assert send(proxy, talk(19), ask, system, streamed=True) != first
        assert len(fake.chats()) > asked
        asked = len(fake.chats())
        proxy.client.headers["authorization"] = "Bearer other"
        assert send(proxy, talk(20), ask, system, streamed=True) == first
        assert len(fake.chats()) > asked


@pytest.mark.parametrize("said", ["Sorry, I cannot do that.", CODEX, "Noted. " * 40, ""])
def test_what_is_no_summary_is_not_told_again(said: str) -> None:
    with fake_with(lambda _: Reply(text=said), window=32_768) as fake, running_proxy(fake) as proxy:
        for _ in range(2):
            chat(proxy, talk(3), CODEX, CODES, streamed=False)
        assert len(fake.chats()) == 2


@pytest.mark.parametrize("turns", [0, 1])
def test_one_that_would_win_nothing_is_the_stored_one_and_what_happened_since(turns: int) -> None:
    with fake_with(summariser(qa(), compacts)) as fake, running_proxy(fake) as proxy:
        first = chat(proxy, talk(20), CODEX, CODES, streamed=True)
        asked = len(fake.chats())
        goes_on = f"Another language model started to solve this problem and produced a summary: {first}"
        history = [{"role": "user", "content": goes_on}, {"role": "assistant", "content": "I open the door."}]
        history += [{"role": "user", "content": "Now the window."}] * turns
        again = chat(proxy, history, CODEX, CODES, streamed=True)
        assert len(fake.chats()) == asked
        assert again.startswith(first)
        assert "I open the door." in again
        assert ("Now the window." in again) is bool(turns)
        # Much that is new is read by the model.
        much = [*history, *talk(3)]
        final = chat(proxy, much, CODEX, CODES, streamed=True)
        assert len(fake.chats()) > asked
        assert facts([{"role": "assistant", "content": final}])["c19"] == "K-19"
        response = proxy.chat({"model": MODEL, "messages": [*history, {"role": "user", "content": CODEX}]})
        assert response.headers["x-spillway-action"] in ("repeated", "forwarded", "compacted")


class Codex:
    """Told a small window, it compacts behind every turn whose usage is near that; by itself it has no brake."""

    def __init__(self, proxy: Proxy, window: int, fixed: str) -> None:
        self.proxy, self.limit = proxy, int(window * 0.9)
        self.lead = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": fixed}]},
            user("<environment_context>\n<cwd>/x</cwd>\n</environment_context>"),
        ]
        self.said = [user("Remember: the code of alpha is X-17. Count with the shell until you are told to stop.")]
        self.items: list[Any] = [*self.lead, *self.said]
        self.compactions = 0

    def turn(self) -> str:
        """One request; what it calls is run. What it says, if it says anything."""
        tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]
        output, tokens = self._ask(self.items, tools=tools)
        self.items += output
        calls = [item for item in output if item["type"] == "function_call"]
        for call in calls:
            self.items.append({"type": "function_call_output", "call_id": call["call_id"], "output": "1 2 3 4 5"})
        if tokens >= self.limit:
            self.compact()
        return "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])

    def compact(self) -> None:
        output, _ = self._ask([*self.items, user(CODEX)])
        summary = output[-1]["content"][0]["text"]
        prefix = "Another language model started to solve this problem and produced a summary of its thinking process."
        self.items = [*self.lead, *self.said, user(f"{prefix}\n{summary}")]
        self.compactions += 1

    def _ask(self, items: list[Any], **fields: Any) -> tuple[list[Any], int]:
        body = {"model": MODEL, "input": items, "stream": True, "store": False, **fields}
        told = self.proxy.client.post("/v1/responses", json=body)
        assert told.status_code == 200, told.text
        response = completed(told.text)
        return response["output"], response["usage"]["total_tokens"]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.92])
def test_a_codex_that_compacts_behind_every_turn_costs_little(share: float) -> None:
    """What is fixed in its prompt alone is nearly all of the window that it was told, or half of it."""
    window, steps = 16_384, 20
    calls = 0

    def brain(question: Question) -> Reply:
        nonlocal calls
        if not question.tools:
            return qa()(question)
        calls += 1
        if calls > steps:
            return Reply(text=f"{facts(question.messages)}")
        return Reply(text=f"Step {calls}.", tool_calls=[ToolCall("shell", "{}")])

    fixed = "w " * int(window * share)
    asks = summariser(brain, lambda question: OURS in question.last_user or "CHECKPOINT" in question.last_user)
    with fake_with(asks, window=window) as fake, running_proxy(fake) as proxy:
        codex = Codex(proxy, window, fixed)
        said = ""
        for _ in range(steps + 1):
            said = codex.turn()
        assert "X-17" in said
        assert (fake.overflows, fake.invalid_histories) == (0, [])
        written = len(fake.chats()) - calls
        if share > 0.8:
            assert codex.compactions > steps * 0.9
        assert written <= codex.compactions / 4 + 2
        assert FACT.search(json.dumps(codex.items))
