"""Anthropic's diagnosis of why a prompt was not read from the cache, by its SDK."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from proxy.dialects.messages.diagnosing import diagnosis, print_of
from tests.fakes import LlamaCppFake, scripted
from tests.proxying import running_proxy
from tests.sdks import anthropic_sdk, closed

__all__ = ["closed"]

MODEL = "fake-model"
both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
READ: Any = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
FIRST: Any = [{"role": "user", "content": "One. " * 50}]
ON: Any = [*FIRST, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Two."}]


def answer(
    client: anthropic.Anthropic, *, streamed: bool, messages: Any, previous: str | None, **fields: Any
) -> Any:
    asked: Any = {"model": MODEL, "max_tokens": 50, "messages": messages, **fields}
    asked["diagnostics"] = {"previous_message_id": previous}
    if not streamed:
        return client.beta.messages.create(**asked)
    with client.beta.messages.stream(**asked) as stream:
        return stream.get_final_message()


@both
def test_what_differs_from_the_request_before_is_told(streamed: bool) -> None:
    with LlamaCppFake(brain=scripted(["Yes."] * 9)) as fake, running_proxy(fake) as proxy:
        client = anthropic_sdk(proxy)
        first = answer(client, streamed=streamed, messages=FIRST, previous=None)
        assert first.diagnostics is None
        second = answer(client, streamed=streamed, messages=ON, previous=first.id)
        assert second.diagnostics is None, "it goes on from the first"
        edited = [{"role": "user", "content": "Other. " * 50}, *ON[1:]]
        for fields, kind in (
            ({"messages": edited}, "messages_changed"),
            ({"messages": ON, "tools": [READ]}, "tools_changed"),
            ({"messages": ON, "system": "Be brief."}, "system_changed"),
        ):
            reason = answer(
                client, streamed=streamed, previous=second.id, **fields
            ).diagnostics.cache_miss_reason
            assert reason.type == kind
            assert reason.cache_missed_input_tokens > 50
        lost = answer(client, streamed=streamed, messages=ON, previous="msg_0")
        assert lost.diagnostics.cache_miss_reason.type == "previous_message_not_found"
        other = answer(anthropic_sdk(proxy, "another"), streamed=streamed, messages=ON, previous=second.id)
        assert other.diagnostics.cache_miss_reason.type == "previous_message_not_found", "it is another key's"


def test_nothing_is_told_to_who_does_not_ask() -> None:
    with LlamaCppFake(brain=scripted(["Yes."])) as fake, running_proxy(fake) as proxy:
        asked = {"model": MODEL, "max_tokens": 50, "messages": FIRST}
        assert "diagnostics" not in proxy.client.post("/v1/messages", json=asked).json()


def test_marks_for_caches_make_no_difference() -> None:
    marked = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    bare = {"type": "text", "text": "Be brief."}
    before = print_of(
        {"model": MODEL, "system": [marked], "messages": [{"role": "user", "content": [marked]}]}
    )
    now = {"model": MODEL, "system": [bare], "messages": [{"role": "user", "content": [bare]}, 5]}
    assert diagnosis(before, now) is None
    assert diagnosis(before, {**now, "thinking": {"type": "disabled"}}) == {"type": "unavailable"}
    assert diagnosis({"head": "x"}, now) == {"type": "previous_message_not_found"}
