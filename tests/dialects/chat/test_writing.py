from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from proxy.core import sse
from proxy.core.piece import Identity
from proxy.dialects.chat import ChatReader, ChatWriter
from proxy.dialects.chat.reading import object_of, piece_of
from tests.stream.support import chunk, frame, odd_chunks

WRITER = ChatWriter()
OWN = Identity("own", 7, "asked", {"system_fingerprint": "fp"})


def renamed(chunk: dict[str, Any], identity: Identity, *, role_sent: bool) -> dict[str, Any]:
    """The chunk under an identity."""
    made = WRITER.relay(piece_of(chunk, frame(chunk)), identity, role_sent=role_sent)
    return object_of(sse.data_of(made)) or {}


def part_of(chunk: dict[str, Any], identity: Identity, *, role_sent: bool) -> dict[str, Any] | None:
    made = WRITER.part(ChatReader().read(frame(chunk)), identity, role_sent=role_sent)
    return object_of(sse.data_of(made))


def text_alone(chunk: dict[str, Any], *, role_sent: bool) -> tuple[str, str] | None:
    """Field and text of a chunk that says one piece of text and nothing new beside it; None for others."""
    piece = piece_of(chunk, b"")
    if not piece.alone or (piece.role and not role_sent):
        return None
    return piece.alone, piece.text or piece.thought


@given(odd_chunks())
def test_any_chunk_is_rewritten_or_left_out(value: dict[str, Any]) -> None:
    for role_sent in (False, True):
        renamed(value, OWN, role_sent=role_sent)
        part = part_of(value, OWN, role_sent=role_sent)
        alone = text_alone(value, role_sent=role_sent)
        if part is not None:
            assert part["id"] == "own"
            assert part["choices"][0]["finish_reason"] is None
            assert "event" not in part
        if alone is not None:
            assert part is not None
            assert part["choices"][0]["delta"][alone[0]] == alone[1]
    piece = piece_of(value, b"")
    if piece.text:
        changed = WRITER.relay(replace(piece, text=piece.text + "!"), None, role_sent=False)
        assert ChatReader().read(changed).text == piece.text + "!"


def test_renaming_changes_the_identity_only() -> None:
    value = chunk({"role": "assistant", "content": "a"}, "stop", provider="P", usage={"x": 1})
    assert renamed(value, OWN, role_sent=False) == {
        **value, "id": "own", "created": 7, "model": "asked", "system_fingerprint": "fp",
    }  # fmt: skip
    assert renamed({"x": 1}, OWN, role_sent=True) == {"x": 1}


def test_the_role_of_the_first_choice_is_said_once() -> None:
    value = chunk({"role": "assistant", "content": "a"})
    value["choices"].append({"index": 1, "delta": {"role": "assistant"}})
    choices = renamed(value, OWN, role_sent=True)["choices"]
    assert choices[0]["delta"] == {"content": "a"}
    assert choices[1]["delta"] == {"role": "assistant"}


def test_a_part_is_what_was_said() -> None:
    value = chunk({"role": "assistant", "content": "a", "refusal": None, "tool_calls": []}, "stop", usage={"x": 1})
    part = part_of(value, OWN, role_sent=True)
    assert part is not None
    assert part["choices"] == [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]
    assert "usage" not in part
    first = part_of(value, OWN, role_sent=False)
    assert first is not None
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "value", [chunk({}), chunk({"content": ""}), chunk({"role": "assistant"}), chunk({}, "stop"), {"choices": []}, {}]
)
def test_what_says_nothing_is_no_part(value: dict[str, Any]) -> None:
    assert part_of(value, OWN, role_sent=True) is None


@pytest.mark.parametrize(
    "value",
    [
        chunk({"content": "a", "reasoning": "b"}),
        chunk({"content": "a", "tool_calls": [{"index": 0}]}),
        chunk({"content": "a"}, "stop"),
        chunk({"content": "a"}, usage={"prompt_tokens": 5}),
        chunk({"content": ["a"]}),
        chunk({"refusal": "a"}),
        {"choices": [*chunk({"content": "a"})["choices"], {"index": 1}]},
    ],
)
def test_text_with_anything_beside_it_is_not_alone(value: dict[str, Any]) -> None:
    assert text_alone(value, role_sent=True) is None


def test_text_alone() -> None:
    assert text_alone(chunk({"role": "assistant", "content": "a"}), role_sent=True) == ("content", "a")
    assert text_alone(chunk({"role": "assistant", "content": "a"}), role_sent=False) is None
    assert text_alone(chunk({"content": None, "reasoning": "b"}), role_sent=True) == ("reasoning", "b")
