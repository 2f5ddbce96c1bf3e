"""Billing lines and marks for caches are no part of a prompt."""

from typing import Any

import pytest

from proxy.addons.prompt_prefix import stabilised
from proxy.core.jsontext import dumps
from proxy.core.request import Request
from tests.fakes import FakeModel, OpenRouterFake
from tests.fakes.brains import echo
from tests.proxying import running_proxy

MARK = {"cache_control": {"type": "ephemeral"}}
LINE = "x-anthropic-billing-header: cc_version=2.1.330.7d4; cc_entrypoint=cli; cch=01fa2;"
USER = {"role": "user", "content": "hi"}


def request(messages: list[Any], **fields: Any) -> Request:
    body = {"model": "m", "messages": messages, **fields}
    return Request(body=body, model="m", raw=dumps(body))


@pytest.mark.parametrize(
    ("system", "left"),
    [
        (f"{LINE}\n\nYou help.", "You help."),
        ([{"type": "text", "text": LINE}, {"type": "text", "text": "You help."}], [{"type": "text", "text": "You help."}]),
        (LINE, None),
        ([{"type": "text", "text": LINE}], None),
    ],
)
def test_a_billing_line_is_left_out(system: Any, left: Any) -> None:
    done, found = stabilised(request([{"role": "system", "content": system}, USER]), takes_marks=False)
    assert done.messages == [*([] if left is None else [{"role": "system", "content": left}]), USER]
    assert (found, done.raw) == (["billing"], None)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "You help."}, USER], [{"role": "system", "content": f"You help.\n{LINE}"}, USER],
        [{"role": "user", "content": LINE}], [{"role": "system", "content": None}, USER],
        [{"role": "system", "content": []}, USER], [{"role": "system", "content": [1, None]}, USER], [],
    ],
)  # fmt: skip
def test_all_else_is_the_same_object(messages: list[Any]) -> None:
    asked = request(messages)
    done, found = stabilised(asked, takes_marks=False)
    assert (done is asked, found) == (True, [])


def marked() -> Request:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", **MARK}, **MARK}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "You help.", **MARK}]},
        {"role": "user", "content": [picture, {"type": "text", "text": "see", **MARK}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a", **MARK},
    ]
    return request(messages, tools=[{"type": "function", "function": {"name": "f"}, **MARK}])


def test_marks_are_dropped_for_backends_that_know_none() -> None:
    done, found = stabilised(marked(), takes_marks=False)
    assert (found, b"cache_control" in dumps(done.body)) == (["marks"], False)
    assert dumps(done.body) == dumps(marked().body).replace(b',"cache_control":{"type":"ephemeral"}', b"")


SECOND = [USER, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And?"}]
IN_PARTS = [*SECOND[:2], {"role": "user", "content": [{"type": "text", "text": "And?", **MARK}]}]


@pytest.mark.parametrize(
    ("messages", "model", "sent", "field"),
    [
        pytest.param(SECOND, "anthropic/claude-sonnet-5", SECOND, MARK["cache_control"], id="the request"),
        pytest.param(SECOND, "qwen/qwen3-max", IN_PARTS, None, id="the newest message"),
        pytest.param(IN_PARTS, "anthropic/claude-sonnet-5", IN_PARTS, None, id="the client's own"),
        pytest.param([USER], "anthropic/claude-sonnet-5", [USER], None, id="a single question"),
        pytest.param(SECOND, "openai/gpt-5.4", SECOND, None, id="cached anyway"),
    ],
)
def test_a_chat_is_marked_where_its_service_caches_nothing_else(
    messages: list[Any], model: str, sent: list[Any], field: Any
) -> None:
    with OpenRouterFake([FakeModel(model, 65_536)], echo) as backend, running_proxy(backend) as proxy:
        answer = proxy.chat({"model": model, "messages": messages})
        body = backend.chats()[-1].json
        assert (answer.status_code, body["messages"], body.get("cache_control")) == (200, sent, field)
