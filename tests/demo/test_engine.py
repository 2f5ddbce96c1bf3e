"""The demo's limits: what it refuses, and where it stops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo.model import WINDOW, RequestRefused, generate, prompt_tokens


def body(*contents: str, last_role: str = "user", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in contents]
    messages[-1]["role"] = last_role
    return {"messages": messages, **more}


def filled(tokens: int) -> dict[str, Any]:
    """A body whose prompt has exactly so many tokens."""
    return body("." * (tokens - prompt_tokens(body(""))))


def test_a_prompt_of_one_token_less_than_the_window_is_answered_with_one_token() -> None:
    answer = generate(filled(WINDOW - 1))
    assert answer.prompt == WINDOW - 1
    assert len(answer.tokens) == 1
    assert answer.finish_reason == "length"


def test_a_prompt_as_long_as_the_window_is_refused_with_the_numbers() -> None:
    with pytest.raises(RequestRefused) as refused:
        generate(filled(WINDOW))
    assert refused.value.status == 400
    assert "request (4096 tokens) exceeds the available context size (4096 tokens)" in str(refused.value)
    assert refused.value.fields == {"type": "exceed_context_size_error", "n_prompt_tokens": 4096, "n_ctx": 4096}


def test_an_answer_that_fills_the_window_ends_for_length_with_the_window_full() -> None:
    answer = generate(body("count to 3000"))
    assert answer.finish_reason == "length"
    assert answer.prompt + len(answer.tokens) == WINDOW


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"max_tokens": 5}, 5), ({"max_tokens": 5, "max_completion_tokens": 7}, 7), ({"max_tokens": 0}, 1)],
)
def test_the_clients_bound_is_kept(limits: dict[str, Any], expected: int) -> None:
    answer = generate(body("hello", **limits))
    assert len(answer.tokens) == expected
    assert answer.finish_reason == "length"


@given(st.integers(1, 400))
def test_an_answer_in_two_parts_is_the_answer_in_one(cut: int) -> None:
    request = body("count to 150")
    whole = "".join(generate(request).tokens)
    first = "".join(generate({**request, "max_tokens": cut}).tokens)
    partial = [*request["messages"], {"role": "assistant", "content": first}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    second = generate({"messages": partial, **flags})
    assert second.prefill == first
    assert first + "".join(second.tokens) == whole
