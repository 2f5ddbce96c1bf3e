"""Corners of the stream session: rare orders of events, and what must not be lost in them."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.backends.profile import Continuation
from proxy.compaction.asking import Summariser
from proxy.compaction.continuation import Partial, SummarisedStart, continuation, shorten_partial
from proxy.stream.events import ChunkReceived, Pause, Reopened, ResumeFailed, State
from proxy.stream.seam import seam_for
from proxy.stream.watch import Watch
from tests.stream.support import (
    DONE,
    FAR,
    answer,
    chunk,
    commands,
    ending,
    fed,
    frame,
    opening,
    read,
    said,
    sent,
    session,
    session_of,
    stream,
    usage,
    words,
)
from tests.stream.test_withholding import call

CLOSE = Watch(window=200, pause_point=120, resumable=True)
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith slipped quickly in."
SHARED_FULL = frame({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}})


def test_a_withheld_word_is_not_lost_to_a_tool_call_after_it() -> None:
    """A backend that can't be cancelled: the last word before a call near the bound."""
    watch = Watch(window=200, pause_point=180, resumable=True, cancels=False)
    of = session_of(watch, answer(100, lambda text: 1))
    of.answer.attempt.bound = 60
    text = [f" w{n}" for n in range(40)]
    body = opening() + b"".join(map(said, text)) + call("{}") + ending("tool_calls") + DONE
    client = read(sent(commands(of, body)))
    assert client.text == "".join(text)
    assert len(client.calls) == 2


def test_white_space_survives_an_attempt_that_was_cleared_before_it_spoke() -> None:
    text = " ".join(f"w{n}" for n in range(60))
    of = session(CLOSE)
    out = commands(of, stream(words(text)))
    half = of.answer.text
    rest = text[len(half) :].lstrip()
    quoted = Reopened(60, quote=half[-300:], exact=False)
    out += fed(of, quoted)
    out += commands(of, opening(name="two") + SHARED_FULL + DONE)
    assert out[-1] == Pause("cleared")
    out += fed(of, quoted)
    out += commands(of, stream(words(rest)[:20], name="three"))
    assert read(sent(out)).text == half + " " + "".join(words(rest)[:20])


def test_white_space_survives_an_attempt_that_only_thought() -> None:
    first = stream(words(TEXT[:100] + "\n\nNext " + TEXT))
    watch = replace(CLOSE, pause_point=100 + len(words(TEXT[:100])))
    of = session(watch)
    out = commands(of, first)
    half = of.answer.text
    assert half == TEXT[:100], half
    quoted = Reopened(60, quote=half[-300:], exact=False)
    out += fed(of, quoted)
    thoughts = b"".join(frame(chunk({"reasoning_content": f" t{n}"}, name="two")) for n in range(80))
    out += commands(of, opening(name="two") + thoughts)
    assert isinstance(out[-1], Pause)
    out += fed(of, quoted)
    out += commands(of, stream(["Next", " day"], name="three"))
    assert read(sent(out)).text == half + "\n\nNext day"


def test_an_answer_begun_anew_that_ends_within_the_copy_is_not_doubled() -> None:
    text = " ".join(f"w{n}" for n in range(400))
    of = session(Watch(window=1000, pause_point=450, resumable=True))
    out = commands(of, stream(words(text)))
    half = of.answer.text
    assert len(half) > 1000
    out += fed(of, Reopened(800, quote=half[-300:], exact=False))
    out += commands(of, stream(words(text)[:200], "length", name="two", more=usage(800, 200, name="two")))
    assert isinstance(out[-1], Pause)
    assert read(sent(out)).text == half


def test_a_copy_that_is_taken_out_is_counted_all_the_same() -> None:
    text = " ".join(f"w{n}" for n in range(400))
    of = session(Watch(window=1000, pause_point=450, resumable=True))
    commands(of, stream(words(text)))
    fed(of, Reopened(300, echo=of.answer.text, quote=of.answer.text[-300:], exact=False))
    fed(of, ChunkReceived(b"".join(map(said, words(text)[:100]))))
    assert of.answer.attempt.completion_tokens >= 100


def test_a_thought_continued_by_prefill_is_not_closed() -> None:
    half = "<think>so the user wants a poem and it should"
    seam = seam_for(Reopened(100, echo=half, quote=half, exact=False), half, "")
    out = seam.feed(" rhyme and be short.\n</think>\n\nRain in May.") + seam.flush()
    assert out == " rhyme and be short.\n</think>\n\nRain in May."


def test_a_shortened_thought_between_tags_is_still_a_thought() -> None:
    thought = "<think>" + " ".join(f"idea{n}" for n in range(2000))
    flow = shorten_partial(
        thought, SummarisedStart(), room=300, by=Summariser(window=4096, tokens=200, overhead=0.0, same_model=True),
        cost=lambda messages: [len(m["content"]) / 4 for m in messages],
    )  # fmt: skip
    next(flow)
    short = ""
    try:
        flow.send("The user wants ideas numbered from zero upwards, and so far many of them were listed.")
    except StopIteration as stop:
        short = stop.value
    assert Partial(text=short).in_thought
    asked = continuation([{"role": "user", "content": "go"}], Partial(text=short), Continuation.FLAGS)
    assert "<think>" in asked.messages[-1]["content"]


def test_empty_attempts_after_a_cleared_one_come_to_an_end() -> None:
    of = session(CLOSE)
    out = commands(of, opening() + said("One") + said(" two") + SHARED_FULL)
    assert out[-1] == Pause("cleared")
    for _ in range(20):
        fed(of, Reopened(60, bound=64))
        out = commands(of, opening(name="two") + ending("length", name="two") + usage(60, 0, name="two") + DONE)
        if of.state is State.DONE:
            return
    pytest.fail("an attempt that says nothing is repeated for ever")


def test_the_end_of_an_answer_does_not_wait_for_the_connection_to_close() -> None:
    of = session(replace(FAR, strip_usage=True))
    body = stream(words(TEXT), more=usage(100, 20))
    out = sent(fed(of, ChunkReceived(body)))
    client = read(out)
    assert (client.finishes, client.done) == (["stop"], 1)


def test_of_several_choices_the_end_of_one_does_not_hold_up_the_others() -> None:
    of = session(Watch(window=1000, pause_point=900, strip_usage=True))

    def choice(index: int, text: str = "", finish: str | None = None) -> bytes:
        value = chunk({"content": text} if text else {}, finish)
        value["choices"][0]["index"] = index
        return frame(value)

    fed(of, ChunkReceived(opening() + choice(0, "yes") + choice(1, "well") + choice(0, "", "stop")))
    out = sent(fed(of, ChunkReceived(choice(1, " then"))))
    assert b" then" in out


def test_usage_is_shown_although_the_last_attempt_was_left() -> None:
    of = session(replace(CLOSE, show_usage=True))
    out = commands(of, stream(words(TEXT * 3), more=usage(100, 20)))
    out += fed(of, ResumeFailed())
    client = read(sent(out))
    assert (client.finishes, len(client.usages)) == (["length"], 1)


@pytest.mark.parametrize("index", [[0], {"a": 1}])
def test_an_index_of_any_kind_breaks_nothing(index: Any) -> None:
    of = session(FAR)
    commands(of, opening() + frame(chunk({"tool_calls": [{"index": index, "function": {"arguments": "x"}}]})))


def test_a_call_before_one_that_is_corrected_is_not_lost() -> None:
    """Parallel calls near the pause point: the second was malformed and is asked for again."""
    watch = Watch(window=2000, pause_point=1800, resumable=True)
    of = session_of(watch, answer(100, lambda text: 1))
    out = fed(of, ChunkReceived(opening() + call('{"a": 1}')))
    of.state = State.PAUSED
    out += fed(of, Reopened(150, corrects=True))
    again = call('{"b": 2}', index=1, name="two") + ending("tool_calls", name="two") + DONE
    out += fed(of, ChunkReceived(again))
    client = read(sent(out))
    assert {piece["index"] for piece in client.calls} == {0, 1}
    assert client.finishes == ["tool_calls"]


def test_a_call_that_is_taken_back_takes_no_earlier_one_with_it() -> None:
    watch = Watch(window=2000, pause_point=1800, resumable=True)
    of = session_of(watch, answer(100, lambda text: 1))
    fed(of, ChunkReceived(opening() + call('{"a": 1}')))
    of.state = State.PAUSED
    fed(of, Reopened(150, corrects=True))
    many = b"".join(
        frame(chunk({"tool_calls": [{"index": 1, "function": {"arguments": "x"}}]}, name="two")) for _ in range(1900)
    )
    out = fed(of, ChunkReceived(call("{", index=1, name="two") + many))
    assert isinstance(out[-1], Pause)
    assert len(of.answer.calls) == 1


def test_a_later_prompt_refused_inside_the_stream_is_no_error_for_the_client() -> None:
    of = session(CLOSE)
    out = commands(of, stream(words(TEXT * 3)))
    half = of.answer.text
    out += fed(of, Reopened(110))
    refusal = frame({"error": {"message": "prompt is too long: 300 tokens > 200 maximum", "code": 400}})
    out += commands(of, refusal + DONE)
    if of.state is State.PAUSED:
        out += fed(of, ResumeFailed())
    client = read(sent(out))
    assert (client.text, client.finishes, client.errors, client.done) == (half, ["length"], [], 1)
