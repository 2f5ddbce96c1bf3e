"""Tool calls near the pause point, and words before a bound: held back until they are whole."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from proxy.stream.events import ChunkReceived, CutOff, Finish, Pause, Reopened, ResumeFailed
from proxy.stream.watch import Watch
from tests.stream.support import (
    DONE,
    Attempt,
    Client,
    Send,
    chunk,
    commands,
    conversation,
    ending,
    fed,
    frame,
    one_answer,
    opening,
    read,
    said,
    sent,
    session,
    sizes,
    usage,
    words,
)

WATCH = Watch(window=200, pause_point=180, resumable=True)
"""With a prompt of 100 tokens a call has room for 92 tokens, which are letters here."""


def call(arguments: str, *, index: int = 0, name: str = "one", pieces: int = 1) -> bytes:
    """A call as llama.cpp streams it: id and name first, then the arguments in pieces."""
    first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": "f", "arguments": ""}}
    size = max(1, len(arguments) // pieces)
    parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    deltas = [first, *({"index": index, "function": {"arguments": part}} for part in parts)]
    return b"".join(frame(chunk({"tool_calls": [delta]}, name=name)) for delta in deltas)


def arguments(client: Client) -> dict[int, str]:
    out: dict[int, str] = {}
    for piece in client.calls:
        out[piece["index"]] = out.get(piece["index"], "") + piece["function"]["arguments"]
    return out


def test_far_from_the_pause_point_a_call_passes_piece_by_piece() -> None:
    of = session(Watch(window=100_000, pause_point=90_000, resumable=True))
    body = opening() + call('{"a": 1}', pieces=4)
    assert not of.answer.calls
    assert sent(commands(of, body + ending("tool_calls") + DONE)) == body + ending("tool_calls") + DONE
    (made,) = of.answer.calls
    assert (made.name, made.arguments) == ("f", '{"a": 1}')


@given(sizes)
def test_a_call_that_fits_comes_late_and_unchanged(pieces: list[int]) -> None:
    body = opening() + said("Let me see.") + call("x" * 60, pieces=6) + ending("tool_calls") + usage(100, 72) + DONE
    of = session(WATCH)
    early = sent(commands(session(WATCH), body[: body.index(b'finish_reason":"tool')], pieces))
    assert b"tool_calls" not in early
    assert commands(of, body, pieces) == [Send(body), Finish()]


def test_a_call_that_does_not_fit_is_asked_for_again() -> None:
    half = call("x" * 120, pieces=4)
    again = opening(name="two") + call("x" * 120, name="two") + ending("tool_calls", name="two") + DONE
    of = session(WATCH)
    out = commands(of, opening() + said("Well.") + half)
    assert out[-1] == Pause("pause point")
    assert (of.answer.text, of.answer.calls) == ("Well.", [])
    out += fed(of, Reopened(40))
    out += commands(of, again)
    client = read(sent(out))
    one_answer(client, "Well.", "tool_calls")
    assert arguments(client) == {0: "x" * 120}
    assert of.answer.delivered_tokens < of.answer.completion_tokens


def test_parallel_calls_are_asked_for_again_together() -> None:
    first = opening() + call("a" * 30) + call("b" * 90, index=1, pieces=3)
    again = call("a" * 30, name="two") + call("b" * 90, index=1, name="two") + ending("tool_calls", name="two")
    client = read(conversation(session(WATCH), first, Attempt(again + DONE, Reopened(20))))
    assert arguments(client) == {0: "a" * 30, 1: "b" * 90}
    one_answer(client, "", "tool_calls")


def test_what_was_said_after_the_call_began_is_taken_back_with_it() -> None:
    first = opening() + said("One.") + call("a" * 30) + said(" Two.") + call("b" * 90, index=1)
    of = session(WATCH)
    commands(of, first)
    assert of.answer.text == "One."


@pytest.mark.parametrize("end", ["none", "length", "error", "cut"])
def test_half_a_call_never_reaches_the_client(end: str) -> None:
    """Whatever ends the answer: no more room, an error, a broken connection."""
    watch = replace(WATCH, vain_resumes=0)
    of = session(watch)
    body = opening() + said("Well.") + call("x" * 50, pieces=5)
    if end == "none":
        out = commands(of, body)
    elif end == "length":
        out = commands(of, body + ending("length") + usage(100, 100) + DONE)
    elif end == "error":
        out = commands(of, body + frame({"error": {"message": "boom"}}))
    else:
        out = [*fed(of, ChunkReceived(body)), *fed(of, CutOff("gone"))]
    client = read(sent(out))
    assert client.calls == []
    assert (client.text, client.done) == ("Well.", 1)
    assert client.finishes == (["length"] if end == "length" else [])


def test_a_call_that_nobody_goes_on_with_ends_for_its_length() -> None:
    of = session(WATCH)
    out = [*commands(of, opening() + call("x" * 120, pieces=4)), *fed(of, ResumeFailed())]
    client = read(sent(out))
    assert (client.calls, client.finishes, client.done) == ([], ["length"], 1)


def test_a_bound_of_the_client_ends_a_call_as_the_backend_ended_it() -> None:
    body = opening() + call("x" * 40, pieces=4) + ending("length") + usage(100, 41) + DONE
    assert sent(commands(session(replace(WATCH, max_tokens=41)), body)) == body


def test_a_whole_call_after_a_silence_is_one_frame() -> None:
    """Ollama."""
    whole: dict[str, Any] = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 80}}
    body = opening() + frame(chunk({"tool_calls": [whole]})) + ending("tool_calls") + DONE
    assert sent(commands(session(WATCH), body)) == body


def test_a_whole_call_in_the_chunk_that_ends_the_answer_is_not_withheld() -> None:
    whole: dict[str, Any] = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 85}}
    body = opening() + frame(chunk({"tool_calls": [whole]}, "tool_calls"))
    assert sent(commands(session(WATCH), body + DONE)) == body + DONE


# -- where a stream can't be left

BILLED = Watch(window=1000, pause_point=900, cancels=False, resumable=True)
TEXT = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"


@given(sizes)
def test_a_word_that_a_bound_cuts_is_said_by_the_next_attempt(pieces: list[int]) -> None:
    cut = TEXT[: TEXT.index("rteen")]
    first = [*words(cut)[:-1], " th", "i"]
    of = session(BILLED)
    of.answer.attempt.bound = len(first)
    body = opening() + b"".join(map(said, first)) + ending("length") + usage(100, len(first)) + DONE
    out = commands(of, body, pieces)
    assert out[-1] == Pause("window full")
    assert of.answer.text == cut[: cut.index(" thi")]
    rest = TEXT[len(of.answer.text) :].lstrip()
    more = opening(name="two") + said(rest, name="two") + ending(name="two") + DONE
    out += fed(of, Reopened(50, quote=of.answer.text, exact=False))
    out += commands(of, more, pieces)
    one_answer(read(sent(out)), TEXT)


def test_a_word_that_is_whole_after_all_is_sent() -> None:
    pieces = words(TEXT)
    for end in (ending() + DONE, ending("length") + usage(100, len(pieces)) + DONE):
        of = session(replace(BILLED, max_tokens=len(pieces)))
        of.answer.attempt.bound = len(pieces)
        body = opening() + b"".join(map(said, pieces)) + end
        assert sent(commands(of, body)) == body
