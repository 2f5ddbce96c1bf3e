"""Answers whose bound a backend would refuse: the client gets them all the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeModel, GenericFake, VllmFake, summariser, walk
from tests.fakes.tokens import FakeTokenizer
from tests.proxying import read_stream, running_proxy

WINDOW = 1024
LONG = 3000
"""Tokens of an answer, about a third as many words."""
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
SMALLER = f"max_tokens={LONG} cannot be greater than max_model_len={WINDOW}. Please request fewer output tokens."


def model() -> FakeModel:
    return FakeModel("m", WINDOW)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_vllm_is_not_asked_for_an_answer_that_it_would_refuse(name: str) -> None:
    with VllmFake([model()], summariser(walk())) as fake, running_proxy(fake) as proxy:
        whole = proxy.chat({**ASKED, name: LONG}).json()
        seen = read_stream(proxy.chat({**ASKED, name: LONG, "stream": True}).content)
        assert whole["usage"]["completion_tokens"] == LONG
        said = whole["choices"][0]["message"]["content"]
        assert seen.text[: len(said) - 20] == said[:-20]  # its last word may be cut
        assert seen.finishes == [whole["choices"][0]["finish_reason"]] == ["length"]
        assert fake.overflows == 0
        assert all(request.json[name] <= WINDOW for request in fake.chats() if name in request.json)


@pytest.mark.parametrize("size", [1, 7, (1, 1, 40)])
def test_a_paused_answer_is_as_long_as_it_may_be_however_many_tokens_a_delta_holds(size: int | tuple[int, ...]) -> None:
    """Of a model whose vocabulary nobody knows: estimated, it would end so many tokens too early, or too late."""
    with VllmFake([model()], summariser(walk()), tokens_per_chunk=size) as fake:
        with running_proxy(fake) as proxy:
            seen = read_stream(proxy.chat({**ASKED, "max_tokens": LONG, "stream": True}).content)
        assert (seen.finishes, seen.errors) == (["length"], [])
        assert FakeTokenizer(fake.letters).count(seen.text) == LONG


def test_a_bound_that_fits_goes_out_as_it_came() -> None:
    with VllmFake([model()], walk(last=5)) as fake, running_proxy(fake) as proxy:
        assert proxy.chat({**ASKED, "max_tokens": WINDOW}).status_code == 200
        assert fake.chats()[0].json["max_tokens"] == WINDOW


def test_where_nothing_told_that_it_is_vllm_its_refusal_does() -> None:
    """Behind a gateway, for one."""
    error = {"message": SMALLER, "type": "BadRequestError", "param": "max_tokens", "code": 400}
    with GenericFake([model()], summariser(walk()), window_field="context_length") as fake:
        fake.fail_next(400, {"error": error})
        with running_proxy(fake) as proxy:
            seen = read_stream(proxy.chat({**ASKED, "stream": True, "max_tokens": LONG}).content)
        assert (seen.finishes, seen.errors) == (["length"], [])
        assert len(seen.text.split()) > WINDOW // 2
        assert fake.chats()[1].json["max_tokens"] <= WINDOW
