"""Any request, well or badly made, through the whole stack: an answer or a clear error, and no history upstream that is not one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from typing_extensions import override

from proxy.wire import sse
from tests.fakes import (
    FakeBackend,
    FakeModel,
    LlamaCppFake,
    Question,
    Reply,
    ToolCall,
    asks_summary,
    check_history,
    summariser,
)
from tests.fakes.http import Exchange
from tests.fakes.model import Refused
from tests.faults.requests import half_valid, valid
from tests.proxying import Proxy, running_proxy

WINDOW = 1024
OWN_FLAWS = ("there is no user message", "the assistant says nothing", "several system messages", "arguments")
"""What is wrong with a history that nobody can mend for the client."""
BOUND = 20.0


class Validating(LlamaCppFake):
    """Refuses what it can't read, as servers do that check types, instead of going to pieces."""

    @override
    async def _answer(self, exchange: Exchange) -> None:
        try:
            if exchange.request.path.endswith("/chat/completions"):
                _check_types(exchange.json_object())
            await super()._answer(exchange)
        except Refused as refused:
            await self.refuse(exchange, refused)
        except (TypeError, AttributeError, ValueError, KeyError, IndexError, OverflowError) as error:
            if exchange.started:
                raise
            text = f"[json.exception.type_error.302] {error!r}"
            await exchange.answer(400, self.error(400, text, "invalid_request_error"))


def _check_types(body: dict[str, Any]) -> None:
    stop = body.get("stop")
    if not isinstance(body.get("n", 1), int) or not all(
        isinstance(each, str) for each in ([stop] if isinstance(stop, str) else stop or ())
    ):
        raise TypeError("options")
    for tool in body.get("tools") or ():
        if not isinstance(tool["function"]["name"], str):
            raise TypeError("tool")
    for message in body["messages"]:
        if not isinstance(message["role"], str) or not isinstance(message.get("content"), str | list | None):
            raise TypeError(message["role"])
        if not all(
            isinstance(part, dict) for part in message.get("content") or () if not isinstance(part, str)
        ):
            raise TypeError("parts")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["name"] + call["function"]["arguments"] + call["id"], str):
                raise TypeError("call")


def brain(question: Question) -> Reply:
    """Calls the first tool it is offered every other time."""
    name = question.tools[0]["function"].get("name") if question.tools else None
    if isinstance(name, str) and name and len(question.messages) % 2:
        return Reply(text="Let me see.", tool_calls=[ToolCall(name, '{"a": 1}')])
    return Reply(reasoning="Hm." if len(question.messages) % 3 == 0 else "", text="That is fine, I think.")


@dataclass(frozen=True)
class Stack:
    proxy: Proxy
    fake: FakeBackend

    def send(self, body: Any) -> tuple[httpx.Response, list[Any]]:
        """The response, and the requests for an answer that reached the backend, in order."""
        del self.fake.requests[:]
        response = self.proxy.client.post(
            "/v1/chat/completions",
            content=encoded(body),
            headers={"content-type": "application/json"},
            timeout=BOUND,
        )
        asked = [request.json for request in self.fake.chats()]
        return response, [each for each in asked if not _for_summary(each)]


def encoded(value: Any) -> bytes:
    """JSON with integers of any size, as clients may send them."""
    return json.dumps(value, ensure_ascii=False).encode()


def _for_summary(body: Any) -> bool:
    return isinstance(body, dict) and asks_summary(Question(messages=body.get("messages") or []))


@pytest.fixture(scope="module", params=["tools", "no tools"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    model = FakeModel("m", WINDOW, tools=request.param == "tools", vision=True)
    with Validating([model], summariser(brain), keep=64) as fake, running_proxy(fake) as proxy:
        yield Stack(proxy, fake)


def assert_clear(response: httpx.Response, *, told_by: FakeBackend) -> None:
    """A whole answer or one error, in the shape that clients read; a 500 only if it is the backend's own."""
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        assert response.status_code == 200
        assert_stream(response.content)
        return
    told = response.json()
    if response.status_code == 200 and "error" not in told:
        for choice in told["choices"]:
            assert isinstance(choice["finish_reason"], str)
            assert choice["message"]["role"] == "assistant"
        return
    assert response.status_code < 500 or response.status_code in {each.status for each in told_by.chats()}, (
        told
    )
    error = told["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert {"type", "code"} <= set(error)


def assert_stream(body: bytes) -> None:
    data = [each for each in map(sse.data_of, sse.frames(body)) if each is not None]
    assert data.count(b"[DONE]") == 1
    assert body.rstrip().endswith(b"data: [DONE]")
    events = [orjson.loads(each) for each in data[:-1]]
    errors = [event["error"] for event in events if "error" in event]
    choices = [choice for event in events for choice in event.get("choices", ())]
    finished = [choice["index"] for choice in choices if choice.get("finish_reason")]
    assert len(errors) + bool(finished) == 1
    assert len(finished) == len(set(finished))
    assert len({event["id"] for event in events if "id" in event}) <= 1


def _flaws(body: Any) -> set[str]:
    """What is wrong with a history: by what it is, as far as a client may do it, else by what it says."""
    found = [flaw.text for flaw in check_history(body["messages"]) if flaw.severity == "error"]
    return {next((each for each in OWN_FLAWS if each in flaw), flaw) for flaw in found}


def said_by_user(messages: Any) -> list[bytes]:
    return [encoded(m.get("content")) for m in messages if m.get("role") == "user"]


@given(body=valid())
def test_a_well_typed_request(stack: Stack, body: dict[str, Any]) -> None:
    sent = copy.deepcopy(body)
    response, forwarded = stack.send(body)
    assert body == sent
    assert_clear(response, told_by=stack.fake)
    own = _flaws(body)
    for each in forwarded:
        assert _flaws(each) <= own & set(OWN_FLAWS)
    if response.status_code != 200 or not stack.fake.models[0].tools:
        return
    asked, (got, *_) = said_by_user(body["messages"]), [said_by_user(each["messages"]) for each in forwarded]
    newest = asked[-1]
    # What was recalled may stand in front of it.
    assert any(one.endswith(newest[1:]) for one in got), "the newest question is not what it was"
    for one in set(asked):
        assert got.count(one) <= asked.count(one), "a message of the user's came twice"
    if len(encoded(body)) < WINDOW and b"image_url" not in encoded(body["messages"]):
        # No more bytes than the window has tokens: nothing is shortened. What images weigh is only estimated.
        assert [one for one in got if one in asked] == asked, "a message of the user's was lost"


@given(body=half_valid())
def test_a_badly_typed_request(stack: Stack, body: Any) -> None:
    response, _ = stack.send(body)
    assert_clear(response, told_by=stack.fake)


def test_it_all_works_after_that(stack: Stack) -> None:
    response, _ = stack.send({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    assert response.status_code == 200
