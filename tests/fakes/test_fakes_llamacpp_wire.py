"""What the demo and the fake llama-server have in common is what the real one says."""

import json
from typing import Any

import pytest

from tests.engine.fixtures import WINDOW, engine, walk_engine
from tests.engine.server import Engine
from tests.fakes import llamacpp_wire as wire
from tests.fakes.model import Refused

__all__ = ["engine", "walk_engine"]

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "a"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def parts(*kinds: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": kind, kind: {"url": "data:,"}} for kind in kinds]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": 5},
        {"messages": ["hello"]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [USER, {"role": "assistant"}]},
        {"messages": [parts("image_url")]},
        {"messages": [parts("input_audio")]},
        {"messages": [parts("file")]},
        {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
        {"messages": [USER], "n": 2},
        {"messages": [USER], "n": 0},
        {"messages": [USER], "max_tokens": -2},
        {"messages": [USER], "n_predict": -5},
        {"messages": [USER, SAID], "continue_final_message": True},
        {"messages": [USER, SAID], "continue_final_message": True, "add_generation_prompt": True},
        {"messages": [USER, SAID, SAID]},
        {"messages": [USER, {**SAID, "tool_calls": [CALL]}]},
    ],
    ids=json.dumps,
)
def test_refusals(walk_engine: Engine, body: dict[str, Any]) -> None:
    answer = walk_engine.post(CHAT, {"max_tokens": 1, **body})
    with pytest.raises(Refused) as refused:
        wire.check_body({"max_tokens": 1, **body})
    assert (refused.value.status, refused.value.body) == (answer.status_code, answer.json())


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"messages": []}, 1),
        ({"messages": [{"role": "user", "content": None}]}, 1),
        ({"messages": [USER, SAID], "continue_final_message": True, "add_generation_prompt": False}, 1),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, 1),
        ({"messages": [USER, {"role": "assistant", "tool_calls": []}]}, 1),
        ({"messages": [USER], "n": 1, "max_tokens": 0}, 1),
        ({"messages": [USER], "max_tokens": True}, 1),
        ({"messages": [USER], "max_tokens": 2.0}, 2),
        ({"messages": [USER], "max_tokens": 9, "max_completion_tokens": 3}, 3),
    ],
    ids=json.dumps,
)
def test_what_is_not_refused(walk_engine: Engine, body: dict[str, Any], limit: int) -> None:
    asked = {"max_tokens": 1, **body}
    wire.check_body(asked)
    assert walk_engine.post(CHAT, asked).json()["usage"]["completion_tokens"] == wire.limit(asked) == limit


def test_a_prompt_that_is_too_long(walk_engine: Engine) -> None:
    answer = walk_engine.post(CHAT, {"messages": [{"role": "user", "content": "w " * 9000}]})
    tokens = answer.json()["error"]["n_prompt_tokens"]
    assert (answer.status_code, answer.json()) == (400, wire.window_exceeded(tokens, WINDOW))


def test_objects_have_no_field_that_the_real_ones_lack(walk_engine: Engine) -> None:
    properties, (slot,) = walk_engine.get("/props"), walk_engine.get("/slots")
    (listed,) = walk_engine.get("/v1/models")["data"]
    told = wire.properties("walk", WINDOW)
    assert told.keys() <= properties.keys()
    for name in ("default_generation_settings", "modalities", "chat_template_caps"):
        assert told[name].keys() <= properties[name].keys()
    assert told["default_generation_settings"]["n_ctx"] == properties["default_generation_settings"]["n_ctx"]
    assert wire.slot(0, WINDOW).items() <= slot.items()
    assert wire.model_object("walk", listed["created"]).items() <= listed.items()
    assert wire.timings(1, 1).keys() <= walk_engine.chat([USER], max_tokens=1)["timings"].keys()
