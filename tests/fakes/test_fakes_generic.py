"""A plain OpenAI-like server, and the paths beside chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import FakeModel, GenericFake
from tests.fakes.reading import chunks, text, usage
from tests.fakes.talking import ask, assistant, body, fetch, get, user


@pytest.fixture
def fake() -> Iterator[GenericFake]:
    with GenericFake(window=500) as running:
        yield running


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_does_not_fit(fake: GenericFake, stream: bool) -> None:
    response = ask(fake, user("word " * 600), stream=stream)
    size = fake.count(body(user("word " * 600)))
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": (
            "This model's maximum context length is 500 tokens. However, your messages resulted in "
            f"{size} tokens. Please reduce the length of the messages."
        ),
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


def test_max_tokens_may_count() -> None:
    with GenericFake(window=500, counts_max_tokens=True) as fake:
        size = fake.count(body())
        assert ask(fake, max_tokens=500 - size).status_code == 200
        refused = ask(fake, max_tokens=501 - size)
        assert f"you requested 501 tokens ({size} in the messages" in refused.json()["error"]["message"]


def test_a_trailing_answer_is_a_finished_turn(fake: GenericFake) -> None:
    assert text(chunks(ask(fake, user("go"), assistant("w1"), stream=True, max_tokens=2).content)) == "w2"


def test_unknown_fields_may_be_refused() -> None:
    with GenericFake(strict=True) as fake:
        refused = ask(fake, continue_final_message=True)
        assert refused.status_code == 400
        assert "continue_final_message" in refused.json()["error"]["message"]
        assert ask(fake, max_tokens=1).status_code == 200


def test_it_may_leave_usage_out_and_say_nothing_of_overflow() -> None:
    with GenericFake(window=500, stream_usage=False, empty_overflow=True) as fake:
        events = chunks(ask(fake, stream=True, max_tokens=1, stream_options={"include_usage": True}).content)
        assert usage(events) is None
        refused = ask(fake, user("word " * 600), stream=True)
        assert (refused.status_code, refused.content) == (200, b"")
        assert ask(fake, user("word " * 600)).status_code == 400


@pytest.mark.parametrize(
    ("field", "told"),
    [("", {}), ("context_length", {"context_length": 500}), ("meta.n_ctx", {"meta": {"n_ctx": 500}})],
)
def test_the_list_may_tell_the_window(field: str, told: dict[str, Any]) -> None:
    with GenericFake([FakeModel("one", 500)], window_field=field) as fake:
        entry = get(fake, "/v1/models")["data"][0]
        assert {key: value for key, value in entry.items() if key in told} == told
        assert get(fake, "/v1/models/one") == entry
        assert set(entry) - set(told) == {"id", "object", "created", "owned_by"}


def test_unknown_paths_and_bad_bodies(fake: GenericFake) -> None:
    assert fetch("GET", fake.url + "/props").status_code == 404
    assert fetch("POST", fake.url + "/v1/chat/completions", content=b"[1").status_code == 400
