"""vLLM's own ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes import FakeModel, Reply, VllmFake, scripted
from tests.fakes.base import CHAT
from tests.fakes.reading import chunks, finishes, text
from tests.fakes.talking import ask, assistant, body, fetch, get, post, user

PARTIAL = (user("count"), assistant("w1 w2"))
FLAGS = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture
def fake() -> Iterator[VllmFake]:
    with VllmFake(window=500) as running:
        yield running


def error(response: httpx.Response) -> dict[str, Any]:
    return dict(response.json()["error"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_does_not_fit(fake: VllmFake, stream: bool) -> None:
    response = ask(fake, user("word " * 600), stream=stream)
    assert response.status_code == 400
    assert error(response) == {
        "message": (
            "This model's maximum context length is 500 tokens. However, your prompt contains at least 501 input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            "input prompt."
        ),
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }
    assert fake.overflows == 1


def test_characters_may_be_checked_first() -> None:
    with VllmFake(char_limit=1000) as fake:
        refused = error(ask(fake, user("word " * 201)))
        assert refused["param"] == "input_text"
        assert "contains 1005 characters (more than 1000 characters" in refused["message"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_of_no_tokens_is_refused(fake: VllmFake, name: str) -> None:
    """As the real one says it, under whichever name (0.32)."""
    refused = error(ask(fake, user("hi"), **{name: 0}))
    assert refused["message"] == "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    assert (refused["param"], refused["code"]) == ("max_tokens", 400)


def test_a_whole_answer_names_what_it_has_none_of_except_calls(fake: VllmFake) -> None:
    """As the real one does (0.32)."""
    message = ask(fake, user("hi")).json()["choices"][0]["message"]
    nothing = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
    assert message == {"role": "assistant", "content": message["content"], **nothing}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_may_be_longer_than_the_window_is_refused(fake: VllmFake, name: str) -> None:
    """As the real one says it (0.32)."""
    refused = error(ask(fake, user("hi"), **{name: 501}))
    assert refused == {
        "message": (
            f"{name}=501 cannot be greater than max_model_len=500. Please request fewer output tokens. "
            f"(parameter={name}, value=501)"
        ),
        "type": "BadRequestError",
        "param": name,
        "code": 400,
    }


@pytest.mark.parametrize(("less", "made"), [(0, 0), (1, 1), (10, 10)])
def test_max_tokens_is_clamped_to_the_room(fake: VllmFake, less: int, made: int) -> None:
    rest = 500 - fake.count(body(user(""))) - less
    whole = ask(fake, user("!" * rest), max_tokens=500).json()
    assert whole["usage"]["completion_tokens"] == made
    assert whole["choices"][0]["finish_reason"] == "length"


def test_a_trailing_answer_alone_is_a_finished_turn(fake: VllmFake) -> None:
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2).content)) == "w3"


def test_flags_continue_it(fake: VllmFake) -> None:
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2, **FLAGS).content)) == " w3"
    assert ask(fake, *PARTIAL, max_tokens=2, **FLAGS).json()["choices"][0]["message"]["content"] == " w3"
    echoed = ask(fake, *PARTIAL, max_tokens=2, echo=True, **FLAGS).json()
    assert echoed["choices"][0]["message"]["content"] == "w1 w2 w3"


@pytest.mark.parametrize(("strips", "said"), [(True, " w3"), (False, "w3")])
def test_white_space_at_the_seam(fake: VllmFake, strips: bool, said: str) -> None:
    fake.strips_prefix = strips
    partial = (user("count"), assistant("w1 w2 "))
    assert text(chunks(ask(fake, *partial, stream=True, max_tokens=2, **FLAGS).content)) == said


@pytest.mark.parametrize("flags", [{"continue_final_message": True}, FLAGS | {"add_generation_prompt": True}])
def test_both_flags_are_refused(fake: VllmFake, flags: dict[str, bool]) -> None:
    refused = error(ask(fake, *PARTIAL, **flags))
    assert "Cannot set both" in refused["message"]
    assert refused["code"] == 400


def test_a_template_may_drop_what_is_to_be_continued() -> None:
    with VllmFake([FakeModel("fake-model", template_drops_last=True)]) as fake:
        assert "the final message does not appear" in error(ask(fake, *PARTIAL, **FLAGS))["message"]


def test_running_counts(fake: VllmFake) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = chunks(ask(fake, stream=True, max_tokens=12, stream_options=options).content)
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 8, 9, 11, 12, 12]
    alone = chunks(
        ask(fake, stream=True, max_tokens=3, stream_options={"continuous_usage_stats": True}).content
    )
    assert not any("usage" in event for event in alone)


def test_the_last_delta_comes_with_the_reason_for_the_end(fake: VllmFake) -> None:
    """As 0.32 sends it, whose last chunk but usage is no empty one."""
    (last,) = chunks(ask(fake, stream=True, max_tokens=3).content)[-1]["choices"]
    assert last["delta"]["content"]
    assert last["finish_reason"] == "length"


def test_usage_may_be_forced() -> None:
    with VllmFake(force_usage=True) as fake:
        last = chunks(ask(fake, stream=True, max_tokens=3).content)[-1]
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)


def test_an_error_in_mid_stream_is_followed_by_done() -> None:
    with VllmFake(brain=scripted([Reply(text="one two", error="oh", after=1)])) as fake:
        content = ask(fake, stream=True).content
        events = chunks(content)
        assert events[-1]["error"]["type"] == "InternalServerError"
        assert content.endswith(b"data: [DONE]\n\n")
        assert finishes(events) == []


def test_keep_alive_comments() -> None:
    with VllmFake(comments=2, comment_every=3, tokens_per_chunk=1) as fake:
        content = ask(fake, stream=True, max_tokens=9).content
        assert content.startswith(b": keep-alive\n\n: keep-alive\n\ndata:")
        assert content.count(b": keep-alive\n\n") == 2 + 3


def test_tools_need_a_parser() -> None:
    with VllmFake(tool_parser=False) as fake:
        tool = {"type": "function", "function": {"name": "f"}}
        assert "--enable-auto-tool-choice" in error(ask(fake, tools=[tool]))["message"]
        assert ask(fake, tools=[tool], tool_choice="none", max_tokens=1).status_code == 200


def test_what_it_tells_of_itself(fake: VllmFake) -> None:
    listed = get(fake, "/v1/models")["data"][0]
    assert (listed["id"], listed["owned_by"], listed["max_model_len"]) == ("fake-model", "vllm", 500)
    assert get(fake, "/version") == {"version": "0.33.0"}
    assert fetch("GET", fake.url + "/health").content == b""
    unknown = ask(fake, model="other")
    assert (unknown.status_code, error(unknown)["type"], error(unknown)["param"]) == (
        404,
        "NotFoundError",
        "model",
    )


def test_exact_counts(fake: VllmFake) -> None:
    request = body(user("hello there"))
    counted = post(fake, "/tokenize", {**request, "return_token_strs": True})
    assert (counted["count"], counted["max_model_len"]) == (fake.count(request), 500)
    prompt = post(fake, f"{CHAT}/render", request)["prompt"]
    assert "".join(counted["token_strs"]) == prompt
    assert post(fake, "/detokenize", {"tokens": counted["tokens"]}) == {"prompt": prompt}
    assert post(fake, "/tokenize", {"model": "fake-model", "prompt": "hello"})["count"] == 2
    assert post(fake, "/v1/messages/count_tokens", request)["input_tokens"] == fake.count(request)
