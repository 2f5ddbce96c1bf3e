"""A stream in which a call leaks into the text: however its bytes are cut, wherever it is paused."""

import json
from collections.abc import Sequence
from itertools import count

import pytest

from proxy.dialects.chat.answers import ChatWriter
from proxy.emulation.reader import WrittenCallReader
from proxy.stream.answer import Answer
from proxy.stream.events import ChunkReceived, Finish, Pause, Reopened, State, UpstreamEnded
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch
from tests.emulation.outputs import TAGGED, offer
from tests.emulation.test_leaks import LEAKED, SHOWN
from tests.stream.support import DONE, FAR, commands, fed, said, sent, stream, usage, words

OFFER = offer()
CUTS: list[Sequence[int]] = [(), (3,), (40, 300), (1000,)]
PIECES = 5
"""Characters of a piece."""


def session(watch: Watch = FAR, prompt: int = 100) -> StreamSession:
    ids, of = count(), Answer(prompt, lambda text: len(text) // 4 + 1)

    def calls() -> WrittenCallReader:
        return WrittenCallReader(OFFER, lambda: f"call_{next(ids)}", emulated=False, text_before=of.text)

    return StreamSession(watch, of, ChatWriter(), calls)


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECES] for at in range(0, len(text), PIECES)]


def told(data: bytes) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Text, calls and finish reasons, as a client reads them."""
    text, calls, finishes = "", [], []
    for line in data.split(b"\n"):
        chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {"choices": []}
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            made = choice["delta"].get("tool_calls") or ()
            calls += [(call["function"]["name"], call["function"]["arguments"]) for call in made]
            finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, calls, finishes


@pytest.mark.parametrize("name", LEAKED)
def test_every_cut_of_the_bytes_gives_the_same_call(name: str) -> None:
    text, left, calls = LEAKED[name]
    data = stream(pieces(text))
    seen = set()
    for sizes in CUTS:
        of = session()
        out = commands(of, data, sizes)
        assert isinstance(out[-1], Finish)
        seen.add(sent(out))
        assert (of.answer.text, of.answer.attempt.finish) == (left, "tool_calls")
    (got,) = seen
    assert told(got) == (left, calls, ["tool_calls"])
    assert got.endswith(DONE)


@pytest.mark.parametrize("name", SHOWN)
def test_every_cut_of_what_is_shown_gives_the_same_bytes(name: str) -> None:
    data = stream(pieces(SHOWN[name]))
    for sizes in CUTS:
        assert sent(commands(session(), data, sizes)) == data


def test_the_usage_behind_a_call_still_comes() -> None:
    got = sent(commands(session(), stream(pieces(TAGGED), more=usage(100, 40))))
    assert told(got)[2] == ["tool_calls"]
    assert got.count(b'"completion_tokens":40') == 1


def test_frames_that_hold_no_mark_pass_unread() -> None:
    of = session()
    prose = words("The first wheel stands still, and the second one too; only the third of them turns. " * 5)
    fed(of, ChunkReceived(stream(prose[:3]).removesuffix(DONE).rpartition(b"data: ")[0]))
    frames = [said(word) for word in prose[3:]]
    assert sent(fed(of, ChunkReceived(b"".join(frames)))) == b"".join(frames)


def test_a_call_that_comes_behind_a_pause_is_read_back() -> None:
    watch = Watch(window=1000, pause_point=130, resumable=True)
    of, text = session(watch), words("I look at each of the wheels in turn. " * 9)
    out = commands(of, stream(text))
    assert isinstance(out[-1], Pause)
    before = of.answer.text
    fed(of, Reopened(100))
    out += commands(of, stream([" They turn.\n", *pieces(TAGGED)], name="two"))
    assert isinstance(out[-1], Finish)
    left, calls, finishes = told(sent(out))
    assert left == f"{before} They turn.\n"
    assert (len(calls), finishes) == (1, ["tool_calls"])


def test_a_pause_in_the_middle_of_one_keeps_its_beginning_from_the_client() -> None:
    """The model is asked to go on where the text ends that was sent, and writes the call again."""
    watch = Watch(window=140, pause_point=110, resumable=True)
    of = session(watch)
    text = "I look it up.\n"
    out = commands(of, stream([text, *pieces(TAGGED.replace("Paris", "Paris " * 99))]))
    assert isinstance(out[-1], Pause)
    assert of.answer.text == text
    fed(of, Reopened(20))
    out += commands(of, stream(pieces(TAGGED), name="two"))
    assert told(sent(out))[0].rstrip() == text.rstrip()
    assert told(sent(out))[2] == ["tool_calls"]


def test_a_body_that_breaks_off_in_one_leaves_it_text() -> None:
    of = session()
    data = stream(pieces(TAGGED)).removesuffix(DONE).rpartition(b"data: ")[0]
    out = [*fed(of, ChunkReceived(data)), *fed(of, UpstreamEnded())]
    assert of.state is State.DONE
    assert of.failed
    assert told(sent(out).partition(b'data: {"error"')[0])[:2] == (TAGGED, [])
