"""Chunks and bodies of chat completions: read, and written again with nothing but the wanted change."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from proxy.core import sse
from proxy.core.jsontext import loads
from proxy.core.piece import Identity, Piece
from proxy.dialects.chat.answers import ChatWriter, is_torn, piece_of, read_completion, read_frame
from tests.stream.support import DONE, chunk, frame, odd_chunks, said

WRITER = ChatWriter()
OWN = Identity("own", 7, "asked", {"system_fingerprint": "fp"})
STAMP = {"id": "own", "created": 7, "model": "asked", "system_fingerprint": "fp"}


def renamed(chunk: dict[str, Any], *, role_sent: bool) -> dict[str, Any]:
    written: dict[str, Any] = loads(sse.data_of(WRITER.relay(piece_of(chunk, b"x"), OWN, role_sent=role_sent)) or b"{}")
    return written


def part_of(chunk: dict[str, Any], *, role_sent: bool = True) -> dict[str, Any] | None:
    written: dict[str, Any] | None = loads(sse.data_of(WRITER.part(piece_of(chunk, b"x"), OWN, role_sent=role_sent)) or b"null")
    return written


# -- reading


@pytest.mark.parametrize("mark", [DONE, b"data:  [DONE] \n\n"])
def test_the_end_mark(mark: bytes) -> None:
    assert read_frame(mark) == Piece(frame=mark, done=True)
    assert not read_frame(b'data: "[DONE]"\n\n').done


@pytest.mark.parametrize(
    ("last", "torn"),
    [(each, False) for each in (said("a"), b"data: [DONE]", b": comm", b"", b'data: {"a":1}', b"event: x")]
    + [(b"data: x\n\n", False)]
    + [(each, True) for each in (b'data: {"a', b"data: {", b"data: ", b"data: x\n", b"data: [DO")],
)
def test_a_last_frame_is_torn_or_not(last: bytes, torn: bool) -> None:
    assert is_torn(last) is torn


def test_open_is_what_lacks_its_blank_line() -> None:
    for out in ([], [b""], [DONE], [said("a"), b"\n"], [said("a"), b""], [b"data: x\r\n\r\n"]):
        assert not sse.is_open(out)
    for out in ([b"data: x"], [b"data: x\n"], [DONE, b": c", b""]):
        assert sse.is_open(out)


def test_what_is_no_answer_is_left_out() -> None:
    for data in (b"", b'{"a"', b"null", b'""', b": ping", b"[1]", b"5", b'{"type":5}', b"{}"):
        piece = read_frame(b"data: " + data + b"\n\n")
        assert (piece.frame, piece.form, piece.error) == (b"", None, None)
    assert read_frame(b"event: ping\n\n") == read_frame(b"id: 3\n\n") == Piece(aside=True)
    assert read_frame(b": x\n\n").frame == b": x\n\n"


# -- what a backend must not send


@pytest.mark.parametrize(
    "fields",
    [{"event": {"type": "execute"}}, {"event": None}, {"selected_model_id": "m"}, {"type": "response.output_text.delta"}],
)
def test_privileged_fields_are_taken_out_and_nothing_else(fields: dict[str, Any]) -> None:
    assert read_frame(frame(chunk({"content": "a"}, **fields))).frame == frame(chunk({"content": "a"}))
    assert read_frame(frame({**fields, "x": 1})) == Piece(), "nothing is left that a client could use"
    error = {"error": {"message": "x"}}
    assert read_frame(frame({**fields, **error})).frame == frame(error)


@pytest.mark.parametrize(
    "odd",
    [
        b'data:{ "choices" : [] , "usage":{}}\r\n\r\n',
        *map(frame, ({"error": {"message": ""}, "type": "error"}, {"choices": [{"event": 1, "delta": {}}]})),
    ],
)
def test_frames_without_any_stay_as_they_came(odd: bytes) -> None:
    assert read_frame(odd).frame is odd


def test_one_line_of_several_is_not_obeyed_alone() -> None:
    assert read_frame(b'data: [\r\ndata:{"type":"response.x"}\r\ndata: ]\r\n\r\n') == Piece()
    assert read_frame(b'data: {"a":1}\ndata: {"event":1}\n\n').frame == b""
    assert read_frame(b'data: {"error":\ndata: {"event":1}\ndata: }\n\n').error["event"] == 1


# -- writing


@given(odd_chunks())
def test_any_chunk_is_rewritten_or_left_out(value: dict[str, Any]) -> None:
    for role_sent in (False, True):
        renamed(value, role_sent=role_sent)
        part = part_of(value, role_sent=role_sent)
        piece = piece_of(value, b"")
        if part is not None:
            assert part["id"] == "own"
            assert part["choices"][0]["finish_reason"] is None
        if piece.alone and (role_sent or not piece.role):
            assert part is not None
            assert part["choices"][0]["delta"][piece.alone] == piece.text or piece.thought
        if piece.text:
            changed = WRITER.relay(replace(piece, text=piece.text + "!"), None, role_sent=False)
            assert read_frame(changed).text == piece.text + "!"


def test_renaming_changes_the_identity_only() -> None:
    value = chunk({"role": "assistant", "content": "a"}, "stop", provider="P", usage={"x": 1})
    assert renamed(value, role_sent=False) == {**value, **STAMP}
    assert renamed({"x": 1}, role_sent=True) == {"x": 1}


def test_the_role_of_the_first_choice_is_sent_once() -> None:
    value = chunk({"role": "assistant", "content": "a"})
    value["choices"].append({"index": 1, "delta": {"role": "assistant"}})
    choices = renamed(value, role_sent=True)["choices"]
    assert [each["delta"] for each in choices] == [{"content": "a"}, {"role": "assistant"}]


def test_a_part_is_the_text_without_its_surroundings() -> None:
    value = chunk({"role": "assistant", "content": "a", "refusal": None, "tool_calls": []}, "stop", usage={"x": 1})
    part, first = part_of(value), part_of(value, role_sent=False)
    assert part is not None
    assert first is not None
    assert part["choices"] == [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]
    assert "usage" not in part
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    for empty in ({}, {"content": ""}, {"role": "assistant"}):
        assert part_of(chunk(empty, "stop")) is None
    assert part_of({"choices": []}) is part_of({}) is None


@pytest.mark.parametrize(
    "value",
    [
        chunk({"content": "a", "reasoning": "b"}), chunk({"content": "a", "tool_calls": [{"index": 0}]}),
        chunk({"content": "a"}, "stop"), chunk({"content": "a"}, usage={"prompt_tokens": 5}), chunk({"content": ["a"]}),
        chunk({"refusal": "a"}), {"choices": [*chunk({"content": "a"})["choices"], {"index": 1}]},
    ],
)  # fmt: skip
def test_text_with_anything_beside_it_is_not_alone(value: dict[str, Any]) -> None:
    assert piece_of(value, b"").alone == ""


def test_text_alone() -> None:
    assert piece_of(chunk({"role": "assistant", "content": "a"}), b"").alone == "content"
    assert piece_of(chunk({"content": None, "reasoning": "b"}), b"").alone == "reasoning"


# -- bodies


def completed(raw: bytes) -> bytes:
    completion = read_completion(raw)
    assert completion is not None
    return WRITER.body(completion, completion.choices, completion.usage)


@pytest.mark.parametrize("raw", [b'{"choices":[{"message":{}}]}', b'{"choices":[ ]}', b'{"choices":null}', b'{"error":{}}'])
def test_a_body_of_another_form_stays_as_it_came(raw: bytes) -> None:
    assert completed(raw) is raw
