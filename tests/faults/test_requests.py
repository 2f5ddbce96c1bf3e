"""Any request that is well typed, through the whole stack: an answer or a clear error, and no history upstream that is not one."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given

from proxy.core import sse
from proxy.core.history.marks import FENCE
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, Question, Reply, ToolCall, asks_summary, check_history, summariser
from tests.faults.requests import valid
from tests.proxying import Proxy, running_proxy

WINDOW = 1024
OWN_FLAWS = ("there is no user message", "the assistant says nothing", "several system messages", "arguments")
"""What is wrong with a history that nobody can mend for the client."""
BOUND = 20.0


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
        del self.fake.requests[:]
        response = self.proxy.client.post(
            "/v1/chat/completions", content=encoded(body), headers={"content-type": "application/json"}, timeout=BOUND
        )
        asked = [request.json for request in self.fake.chats()]
        return response, [each for each in asked if not _for_summary(each)]


def encoded(value: Any) -> bytes:
    """JSON with integers of any size, as clients may send them."""
    return json.dumps(value, ensure_ascii=False).encode()


def _for_summary(body: Any) -> bool:
    question = Question(messages=(isinstance(body, dict) and body.get("messages")) or [])
    return asks_summary(question) or question.last_user.startswith(FENCE)  # a message too large to be sent is read in parts


@pytest.fixture(scope="module", params=["tools", "no tools"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    model = FakeModel("m", WINDOW, tools=request.param == "tools", vision=True)
    with LlamaCppFake([model], summariser(brain), keep=64) as fake, running_proxy(fake) as proxy:
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
    assert response.status_code < 500 or response.status_code in {each.status for each in told_by.chats()}, told
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
