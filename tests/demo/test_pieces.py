"""The demo model's tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.demo.pieces import pieces, prompt_tokens

TEXT = st.text(max_size=200)


@given(TEXT)
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


@given(TEXT)
def test_no_token_is_empty(text: str) -> None:
    assert all(pieces(text))


def test_a_long_run_of_one_kind_of_character_stays_linear() -> None:
    assert len(pieces(" " * 100_000)) == 100_000
    assert len(pieces("a" * 100_002)) == 16_667


@given(st.lists(TEXT, max_size=5), TEXT)
def test_every_message_adds_tokens(texts: list[str], more: str) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    assert prompt_tokens([*messages, {"role": "user", "content": more}]) > prompt_tokens(messages)


def test_tools_and_tool_calls_count() -> None:
    message = {"role": "assistant", "content": None}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert prompt_tokens([message], [{"type": "function"}]) > prompt_tokens([message])
    assert prompt_tokens([{**message, "tool_calls": [call]}]) > prompt_tokens([message])
