"""Anthropic's threads, by its SDK: the conversation is kept here, and each turn sends only what is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaMessage

from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, ToolCall
from tests.proxying import Proxy, running_proxy
from tests.sdks import anthropic_sdk as sdk
from tests.sdks import closed

__all__ = ["closed"]

MODEL = "fake-model"
READ: Any = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
BETA = ["message-threads-2026-08-12"]
both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


def brain(question: Question) -> Reply:
    if question.messages[-1].get("content") == "Read it.":
        return Reply(text="I look.", reasoning="Hm.", tool_calls=[ToolCall("read", '{"file":"a"}')])
    return Reply(text=f"Answer to {question.last_user}")


@pytest.fixture(scope="module")
def both_sides() -> Iterator[tuple[LlamaCppFake, Proxy]]:
    with LlamaCppFake([FakeModel(MODEL, window=32_768)], brain=brain) as fake, running_proxy(fake) as proxy:
        yield fake, proxy


def turn(thread: Any, said: Any, *, streamed: bool) -> BetaMessage:
    message = {"role": "user", "content": said}
    if not streamed:
        answer: BetaMessage = thread.send(message)
        return answer
    with thread.stream(message) as stream:
        streamed_answer: BetaMessage = stream.get_final_message()
        return streamed_answer


def roles(body: Any) -> list[str]:
    return [message["role"] for message in body["messages"]]


@both
def test_a_thread_goes_on_with_all_that_was_said(
    both_sides: tuple[LlamaCppFake, Proxy], streamed: bool
) -> None:
    fake, proxy = both_sides
    thread = sdk(proxy).beta.messages.thread(
        model=MODEL, max_tokens=200, system="Be brief.", tools=[READ], thinking={"type": "adaptive"}
    )
    begun = len(fake.chats())
    called = turn(thread, "Read it.", streamed=streamed)
    use = next(block for block in called.content if block.type == "tool_use")
    turn(thread, [{"type": "tool_result", "tool_use_id": use.id, "content": "Text."}], streamed=streamed)
    turn(thread, "And now?", streamed=streamed)
    assert thread.previous_message_id is not None
    asked = [chat.json for chat in fake.chats()[begun:]]
    assert len(asked) == 3, "no turn was sent once more"
    assert roles(asked[2]) == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert asked[2]["messages"][:4] == asked[1]["messages"][:4], "the prompt only grows"
    assert asked[2]["messages"][2]["tool_calls"][0]["function"] == {
        "name": "read",
        "arguments": '{"file":"a"}',
    }
    assert asked[2]["messages"][2]["content"] == "I look."
    assert asked[2]["tools"] == asked[0]["tools"]


def test_a_client_whose_thread_is_not_kept_sends_the_whole_of_it(
    both_sides: tuple[LlamaCppFake, Proxy],
) -> None:
    fake, proxy = both_sides
    mine = sdk(proxy)
    first = mine.beta.messages.create(
        model=MODEL,
        max_tokens=50,
        messages=[{"role": "user", "content": "One"}],
        thread={"type": "create"},
        betas=BETA,
    )
    unthreaded = mine.beta.messages.create(
        model=MODEL, max_tokens=50, messages=[{"role": "user", "content": "One"}]
    )
    on: Any = {
        "model": MODEL,
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "Two"}],
        "betas": BETA,
    }
    for client, previous in (
        (mine, "msg_0"),
        (mine, unthreaded.id),
        (sdk(proxy, "another key"), first.id),
    ):
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.beta.messages.create(**on, thread={"type": "continue", "previous_message_id": previous})
        assert caught.value.body["error"]["details"] == {"error_code": "thread_not_found"}  # type: ignore[index]
    forks = [
        mine.beta.messages.create(**on, thread={"type": "continue", "previous_message_id": first.id})
        for _ in range(2)
    ]
    assert forks[0].id != forks[1].id
    assert roles(fake.chats()[-1].json) == ["user", "assistant", "user"]


def test_what_a_thread_keeps_can_not_be_changed_on_the_way(
    both_sides: tuple[LlamaCppFake, Proxy],
) -> None:
    fake, proxy = both_sides
    client = sdk(proxy)
    system: Any = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.330.a1b; cc_entrypoint=cli;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    asked: Any = {
        "model": MODEL,
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "On"}],
        "betas": BETA,
    }
    first = client.beta.messages.create(**asked, system=system, tools=[READ], thread={"type": "create"})
    on: Any = {"thread": {"type": "continue", "previous_message_id": first.id}}
    again: list[Any] = [
        {"system": system[:1]},
        {"system": [system[0], {"type": "text", "text": "Be brief."}], "tools": [READ]},
    ]
    for fields in again:
        client.beta.messages.create(**asked, **on, **fields)
        assert fake.chats()[-1].json["messages"][0] == {"role": "system", "content": "Be brief."}
        assert len(fake.chats()[-1].json["tools"]) == 1
    others: list[Any] = [{"system": "Be long."}, {"tools": [{**READ, "name": "other"}]}]
    for other in others:
        with pytest.raises(anthropic.BadRequestError, match="differing field") as caught:
            client.beta.messages.create(**asked, **on, **other)
        assert caught.value.body["error"]["details"] == {"error_code": "thread_fingerprint_mismatch"}  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="`thread` must be"):
        client.beta.messages.create(**asked, thread={"type": "other"})  # type: ignore[call-overload]
