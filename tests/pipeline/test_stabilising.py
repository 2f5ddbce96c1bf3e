"""Billing lines and cache marks are stripped, and how much of each prompt was read again is told: through the real HTTP stack."""

import re
from typing import Any

import pytest

from tests.fakes import FakeModel, LlamaCppFake, OpenRouterFake, Question, Reply, VllmFake
from tests.fakes.waiting import wait_until
from tests.proxying import Proxy, metric, running_proxy

LINE = "x-anthropic-billing-header: cc_version=2.1.330.{version}; cc_entrypoint=cli; cch={cch};"
MARK = {"cache_control": {"type": "ephemeral"}}


def fine(_: Question) -> Reply:
    """A model of few words."""
    return Reply(text="fine")


def metrics(proxy: Proxy, name: str) -> dict[str, float]:
    """The values of a counter by its kind or why, or its only value under nothing."""
    found: dict[str, float] = {}
    for labels, value in metric(proxy, f"spillway_{name}_total").items():
        label = re.search(r'(?:kind|why)="(\w+)"', labels)
        found[label[1] if label else ""] = value
    return found


class Talk:
    """A client that sends all of its conversation with every turn."""

    def __init__(self, proxy: Proxy, **fields: Any) -> None:
        self.proxy = proxy
        self.fields = fields
        self.messages: list[dict[str, Any]] = []

    def turn(self, system: str, words: int = 30) -> Any:
        self.messages.append({"role": "user", "content": f"question {len(self.messages)} " + "word " * words})
        prompt = [{"role": "system", "content": system}, *self.messages]
        answer = self.proxy.chat({"model": "m", "messages": prompt, "max_tokens": 40, **self.fields})
        assert answer.status_code == 200, answer.text
        text = "fine" if self.fields.get("stream") else answer.json()["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": text})
        return answer


def messages_request(turn: int) -> dict[str, Any]:
    said = [{"role": "user", "content": [{"type": "text", "text": f"question {n}"}]} for n in range(turn)]
    answers = [{"role": "assistant", "content": "fine"}] * turn
    turns = [each for pair in zip(said, answers, strict=True) for each in pair]
    newest = {"role": "user", "content": [{"type": "text", "text": f"question {turn}", **MARK}]}
    line = LINE.format(version=f"{turn:03x}", cch=f"{turn * 4099:05x}")
    system = [{"type": "text", "text": line}, {"type": "text", "text": "You are Claude Code.", **MARK}]
    return {"model": "m", "max_tokens": 100, "system": system, "messages": [*turns, newest]}


def test_claude_codes_billing_line_is_another_one_in_every_request_and_no_prompt_shows_it() -> None:
    with LlamaCppFake([FakeModel("m", 8192)], fine) as fake, running_proxy(fake) as proxy:
        answers = [proxy.client.post("/v1/messages", json=messages_request(turn)) for turn in range(4)]
        prompts = [chat.json["messages"] for chat in fake.chats()]
        assert all(prompt[0] == {"role": "system", "content": "You are Claude Code."} for prompt in prompts)
        assert metrics(proxy, "stabilised")["billing"] == 4
        assert answers[-1].headers["x-spillway-cache"].startswith("repeated=")
        assert "why" not in answers[-1].headers["x-spillway-cache"]
        assert answers[-1].json()["usage"]["cache_read_input_tokens"] > 0


@pytest.mark.parametrize(("make", "kept"), [(LlamaCppFake, False), (VllmFake, False), (OpenRouterFake, True)])
def test_marks_for_caches_reach_only_backends_that_know_them(make: Any, kept: bool) -> None:
    with make([FakeModel("m", 8192)], brain=fine) as fake, running_proxy(fake) as proxy:
        content = [{"type": "text", "text": "hi", **MARK}]
        answer = proxy.chat({"model": "m", "messages": [{"role": "user", "content": content}]})
        assert answer.status_code == 200
        assert (b"cache_control" in fake.chats()[0].body) is kept
        assert metrics(proxy, "stabilised") == ({} if kept else {"marks": 1})


# What is told of it


def test_a_stream_tells_in_its_usage_and_the_log_what_was_repeated_and_reused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="spillway")
    with LlamaCppFake([FakeModel("m", 8192)], fine) as fake, running_proxy(fake) as proxy:
        talk = Talk(proxy, stream=True)
        first = talk.turn("You help.")
        assert first.headers["x-spillway-cache"].startswith("repeated=0, ")
        assert first.headers["x-spillway-cache"].endswith("why=first")
        second = talk.turn("You help.")
        repeated = int(second.headers["x-spillway-cache"].removeprefix("repeated=").partition(",")[0])
        usage = fake.chats()[-1]
        assert repeated > 30
        assert usage.json["stream"] is True
        told = f" repeated={repeated} "
        wait_until(lambda: any(told in (line := each.getMessage()) and " reused=" in line for each in caplog.records), 20)
        assert metrics(proxy, "repeated_tokens")[""] == repeated
        assert metrics(proxy, "reused_tokens")[""] > 0
        assert metrics(proxy, "prompt_tokens")[""] > repeated


def test_what_the_client_changed_is_told_apart() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    with LlamaCppFake([FakeModel("m", 8192)], fine) as fake, running_proxy(fake) as proxy:
        talk = Talk(proxy)

        def why(system: str = "You help.") -> str:
            told: str = talk.turn(system).headers["x-spillway-cache"]
            return told.partition("why=")[2]

        assert [why(), why(), why("You help a lot.")] == ["first", "", "system"]
        talk.fields["tools"] = [tool]
        assert why("You help a lot.") == "tools"
        talk.messages[2] = {"role": "user", "content": "another question"}
        told = talk.turn("You help a lot.").headers["x-spillway-cache"]
        assert told.endswith("why=edited")
        assert int(told.partition("repeated=")[2].partition(",")[0]) > 30
