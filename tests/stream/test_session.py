from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.jsontext import loads
from proxy.core.piece import Identity, Piece
from proxy.dialects.chat.answers import ChatWriter, read_frame
from proxy.stream.events import (
    LEGAL,
    AnswerReceived,
    ChunkReceived,
    CutOff,
    Finish,
    Pause,
    Reopened,
    ResumeFailed,
    Retry,
    State,
    StreamEvent,
    UpstreamEnded,
)
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch
from tests.stream.support import (
    DONE,
    FAR,
    Attempt,
    Send,
    bodies,
    chunk,
    commands,
    conversation,
    cut,
    ending,
    fed,
    frame,
    lines,
    odd_chunks,
    one_answer,
    opening,
    read,
    relayed,
    said,
    sent,
    session,
    sizes,
    stream,
    usage,
    words,
)

CLOSE = Watch(window=200, pause_point=120, resumable=True)
"""With a prompt of 100 tokens there is room for 20 until the pause."""
TEXT = (
    "It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith, his chin nuzzled "
    "into his breast, slipped quickly through the glass doors of Victory Mansions."
)
HEAD = "".join(words(TEXT)[:20])
"""What is said of it until the pause, a token a word."""
REST = TEXT[len(HEAD) :]


def plain_chunks() -> st.SearchStrategy[dict[str, Any]]:
    texts = st.text(max_size=12)
    said_ = texts.map(lambda text: chunk({"content": text}))
    thought = texts.map(lambda text: chunk({"reasoning_content": text}))
    ended = st.sampled_from([chunk({}, "stop"), chunk({"content": None}), chunk({"role": "assistant"})])
    return said_ | thought | ended


# -- bytes and reads


whole_frames = st.lists(lines(plain_chunks()), max_size=12).map(b"".join)


@given(whole_frames, sizes)
@example(b"".join(map(said, ["a\u2028b", "\x85", "字", "😀", '"', "\\", "\n"])), [1])
def test_what_needs_nothing_passes_byte_for_byte_however_it_is_read(body: bytes, sizes: list[int]) -> None:
    body = opening() + body + ending() + DONE
    assert relayed(FAR, body, sizes) == relayed(FAR, body) == relayed(Watch(), body) == body


@pytest.mark.no_cover
@given(bodies(odd_chunks()), sizes, st.sampled_from([Watch(strip_usage=True), FAR, CLOSE]), st.booleans())
def test_any_stream_in_any_pieces_gives_the_same_commands(body: bytes, sizes: list[int], watch: Watch, adopted: bool) -> None:
    whole, pieces = session(watch), session(watch)
    if adopted:
        whole.adopt(Identity("own", 1, "m"))
        pieces.adopt(Identity("own", 1, "m"))
    assert commands(whole, body) == commands(pieces, body, sizes or [1])
    assert whole.answer.text == pieces.answer.text
    assert whole.answer.completion_tokens == pieces.answer.completion_tokens


@pytest.mark.no_cover
@given(bodies(odd_chunks()), bodies(odd_chunks()), sizes)
def test_any_further_attempt_in_any_pieces_too(body: bytes, more: bytes, sizes: list[int]) -> None:
    def client(pieces: list[int]) -> bytes:
        of = session(CLOSE)
        first = stream(words(TEXT))
        return conversation(of, first, Attempt(opening(name="two") + body, Reopened(100, echo=HEAD)), sizes=pieces)

    assert client([]) == client(sizes or [1])


@given(st.lists(st.text(max_size=6), max_size=30), sizes)
def test_every_character_is_accounted_for(pieces: list[str], sizes: list[int]) -> None:
    of = session(count=lambda _: 1)
    out = sent(commands(of, stream(pieces), sizes))
    assert of.answer.text == read(out).text == "".join(pieces)
    assert of.answer.completion_tokens == len([piece for piece in pieces if piece])


def test_a_stream_is_read_in_linear_time() -> None:
    of = session(Watch())
    body = stream(["x" * 200_000])
    out = [command for piece in cut(body, [7]) for command in fed(of, ChunkReceived(piece))]
    assert sent(out) == body


# -- pausing


@pytest.mark.parametrize("sizes", [[], [1], [7], [1000]])
def test_the_pause_falls_right_at_the_pause_point(sizes: list[int]) -> None:
    of = session(CLOSE)
    out = commands(of, stream(words(TEXT)), sizes)
    assert out[-1] == Pause("pause point")
    assert of.answer.completion_tokens == 20
    assert read(sent(out)).text == of.answer.text == HEAD
    assert of.state is State.PAUSED


def test_a_pause_waits_for_the_end_of_a_word_but_not_for_ever() -> None:
    of = session(CLOSE)
    assert commands(of, opening() + said("x") * 200)[-1] == Pause("pause point")
    assert 20 < of.answer.completion_tokens < 60


def test_a_frame_of_many_tokens_is_counted_as_many() -> None:
    """Speculative decoding and intervals of vLLM put several tokens into one delta."""
    of = session(CLOSE, count=lambda text: len(text.split()))
    out = commands(of, opening() + said(" a b c d e f g") * 10)
    assert out[-1] == Pause("pause point")
    assert of.answer.completion_tokens == 21


def test_running_counts_of_the_backend_are_believed() -> None:
    """vLLM's continuous usage, llama.cpp's timings."""
    of = session(CLOSE)
    first = chunk({"content": "aa"}, usage={"prompt_tokens": 110, "completion_tokens": 1})
    second = chunk({"content": "bb"}, timings={"cache_n": 100, "prompt_n": 10, "predicted_n": 10})
    assert commands(of, opening() + frame(first) + frame(second) + said(" on"))[-1] == Pause("pause point")
    assert (of.answer.attempt.prompt_tokens, of.answer.completion_tokens) == (110, 10)


def test_zeros_are_no_report() -> None:
    of = session(CLOSE)
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    commands(of, opening() + frame(chunk({"content": "a"}, usage=zero)) * 5)
    assert (of.answer.attempt.prompt_tokens, of.answer.completion_tokens) == (100, 5)
    assert of.answer.attempt.usage is None


GARBLED = [b'data: {"choices": [{"delta"\n\n', b"data: x\n\n", b'data: {"a": \xff}\n\n']


@pytest.mark.parametrize("garbled", GARBLED)
def test_what_no_client_can_read_is_left_out_and_the_answer_goes_on(garbled: bytes) -> None:
    client = read(conversation(session(), opening() + said("a") + garbled + said("b") + ending() + DONE))
    assert (client.text, client.finishes, len(client.errors), client.done) == ("ab", ["stop"], 0, 1)


def test_an_answer_that_its_own_bound_ends_before_the_window_is_left_alone() -> None:
    body = stream(words(TEXT), "length")
    assert relayed(replace(CLOSE, max_tokens=25), body) == body
    assert commands(session(replace(CLOSE, max_tokens=300)), body)[-1] == Pause("pause point")


@pytest.mark.parametrize("watch", [Watch(window=200, pause_point=120), Watch(resumable=True)])
def test_what_can_not_be_resumed_is_not_paused(watch: Watch) -> None:
    body = stream(words(TEXT * 5), "length")
    assert relayed(watch, body) == body


# -- one answer of several attempts


@pytest.mark.parametrize("sizes", [[], [1], [50]])
def test_the_client_sees_one_answer(sizes: list[int]) -> None:
    of = session(CLOSE)
    more = stream(words(REST), name="two", more=usage(40, 5, name="two"))
    client = read(conversation(of, stream(words(TEXT)), Attempt(more), sizes=sizes))
    one_answer(client, TEXT)
    assert client.usages == []
    assert (of.answer.text, len(of.answer.attempts)) == (TEXT, 2)


def test_usage_is_summed_for_a_client_that_wants_it() -> None:
    watch = replace(CLOSE, show_usage=True)
    more = stream(words(REST), name="two", more=usage(40, 5, name="two"))
    client = read(conversation(session(watch), stream(words(TEXT)), Attempt(more)))
    one_answer(client, TEXT)
    assert client.usages == [{"prompt_tokens": 40, "completion_tokens": 25, "total_tokens": 65}]


def test_the_role_is_said_once_even_if_only_a_later_attempt_says_it() -> None:
    first = b"".join(map(said, words(TEXT)))
    client = read(conversation(session(CLOSE), first, Attempt(stream(words(REST), name="two"))))
    one_answer(client, TEXT)


def test_backends_without_ids_are_joined_too() -> None:
    def nameless(text: str) -> bytes:
        return frame({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    end = frame({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + DONE
    first = b"".join(map(nameless, words(TEXT)))
    out = conversation(session(CLOSE), first + end, Attempt(b"".join(map(nameless, words(REST))) + end))
    client = read(out)
    assert (client.text, client.finishes) == (TEXT, ["stop"])


def test_calls_and_reasoning_of_a_later_attempt_pass() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant"}, {"reasoning_content": "Hm."}, {"content": "So"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]},
    ]  # fmt: skip
    more = b"".join(frame(chunk(delta, name="two")) for delta in deltas) + ending("tool_calls", name="two") + DONE
    client = read(conversation(session(CLOSE), stream(words(TEXT)), Attempt(more)))
    one_answer(client, HEAD + " So", "tool_calls")
    assert client.reasoning == "", "the answer has begun: what is thought anew is no part of it"
    assert client.calls == [{"index": 0, "id": "c", "function": {"name": "f"}}]


def counted(number: int, first: int = 0) -> list[str]:
    return [f" w{n}" for n in range(first, first + number)]


def test_at_most_so_many_tokens_and_then_the_window_ends_it() -> None:
    attempts = [Attempt(stream(counted(60, 20 + 20 * n), "length", name=str(n))) for n in range(2)]
    of = session(replace(CLOSE, ceiling=41))
    client = read(conversation(of, stream(counted(60)), *attempts))
    assert len(of.answer.attempts) == 3
    one_answer(client, "".join(counted(100)), "length")


def test_a_bound_of_the_client_counts_over_all_attempts() -> None:
    """And resumes are not counted then: it bounds them."""
    of = session(replace(CLOSE, max_tokens=170, ceiling=1))
    attempts = [Attempt(stream(counted(90, 20 + 20 * n), "length", name=str(n))) for n in range(4)]
    client = read(conversation(of, stream(counted(90)), *attempts))
    one_answer(client, "".join(counted(170)), "length")


def test_attempts_that_gain_no_room_are_counted_in_a_row() -> None:
    tight = [Attempt(stream(counted(10), "length", name="more"), Reopened(119)) for _ in range(3)]
    client = read(conversation(session(CLOSE), stream(words(TEXT)), *tight))
    one_answer(client, HEAD + "".join([" w0", " w0", *counted(10)]), "length")
    roomy = Attempt(stream(counted(60), "length", name="more"))
    client = read(conversation(session(CLOSE), stream(words(TEXT)), *tight[:2], roomy, *tight))
    gained = [" w0", " w0", *counted(20), " w0", " w0", *counted(10)]
    one_answer(client, HEAD + "".join(gained), "length")


@pytest.mark.parametrize("watch", [replace(CLOSE, ceiling=30), replace(CLOSE, vain_resumes=1)])
def test_a_window_that_shifts_does_not_keep_an_answer_going_that_is_not_gone_on_with(watch: Watch) -> None:
    """Whoever drives it tells the user, and there is no next attempt."""
    of = session(watch)
    fed(of, ChunkReceived(stream(words(TEXT))))
    fed(of, Reopened(185) if watch.vain_resumes == 1 else Reopened(100))
    out = commands(of, b"".join(said(word, name="two") for word in counted(10_000)))
    assert out[-1] == Pause("no room gained", last=True)
    assert of.answer.attempt.used == watch.window - 8
    assert read(opening() + sent(fed(of, ResumeFailed()))).finishes == ["length"]


def test_a_pause_that_leads_nowhere_ends_the_answer_in_good_order() -> None:
    client = read(conversation(session(CLOSE), stream(words(TEXT))))
    one_answer(client, HEAD, "length")


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_comments_of_a_later_attempt_pass_and_what_follows_its_end_does_not(finish: str) -> None:
    more = b": ping\n\n" + stream(words(REST), finish, name="two") + said("after", name="two") + b": bye\n\n"
    of = session(CLOSE)
    out = conversation(of, stream(words(TEXT)), Attempt(more, Reopened(20)))
    assert b": ping\n\n" in out
    client = read(out.replace(b": bye\n\n", b""))
    one_answer(client, TEXT, finish)


# -- a window that fills up by itself


def full(pieces: list[str], prompt: int, completion: int, **end: Any) -> bytes:
    return stream(pieces, "length", more=usage(prompt, completion), **end)


def conversation_rest(of: StreamSession, data: bytes) -> bytes:
    fed(of, Reopened(50))
    return sent(commands(of, data))


@pytest.mark.parametrize("sizes", [[], [1], [64]])
def test_what_the_last_chunk_says_is_sent_before_the_pause(sizes: list[int]) -> None:
    watch = replace(CLOSE, pause_point=10_000)
    body = opening() + said(TEXT[:20]) + frame(chunk({"content": TEXT[20:40]}, "length")) + usage(190, 10) + DONE
    of = session(watch)
    out = commands(of, body, sizes)
    assert out[-1] == Pause("window full")
    client = read(sent(out) + conversation_rest(of, stream([TEXT[40:]], name="two")))
    one_answer(client, TEXT)


@pytest.mark.parametrize("sizes", [[], [1], [64]])
@pytest.mark.parametrize("end", [DONE, b"data: [DONE]\r\n\r\n", b"", b"data: [DONE]", b": bye\n\n" + DONE])
def test_an_end_that_was_not_the_windows_comes_as_it_was(end: bytes, sizes: list[int]) -> None:
    watch = replace(CLOSE, pause_point=10_000)
    body = opening() + said(TEXT) + ending("length") + usage(50, 10) + end
    assert relayed(watch, body, sizes) == body + (b"" if end else DONE)


def test_without_usage_the_count_has_to_come_near() -> None:
    watch = replace(CLOSE, pause_point=10_000)
    assert commands(session(watch, prompt=180), stream(words(TEXT[:40]), "length"))[-1] == Pause("window full")
    body = stream(words(TEXT[:40]), "length")
    assert sent(commands(session(watch, prompt=150), body)) == body


def test_a_bound_of_the_client_that_is_reached_is_the_end() -> None:
    watch = replace(CLOSE, pause_point=10_000, max_tokens=10)
    body = full(words(TEXT[:40]), 190, 10)
    assert relayed(watch, body) == body


def test_a_bound_that_spillway_lowered_is_not_the_end() -> None:
    of = session(replace(CLOSE, pause_point=10_000, max_tokens=500))
    of.answer.attempt.bound = 60
    assert commands(of, full(words(TEXT[:40]), 100, 10))[-1] == Pause("window full")


def test_an_answer_that_came_whole_goes_on_where_the_window_ended_it() -> None:
    of = session(replace(CLOSE, pause_point=10_000))
    pieces = [read_frame(each) for each in (said(TEXT[:40]), ending("length"), usage(190, 10), DONE)]
    assert fed(of, AnswerReceived(pieces))[-1] == Pause("window full")
    fed(of, Reopened(50, echo=TEXT[:40]))
    commands(of, stream([TEXT[:40], TEXT[40:]], name="two"))
    assert of.answer.text == TEXT


# -- an answer under another identity from the start


def test_a_notice_before_the_answer_gives_it_its_identity() -> None:
    of = session()
    of.adopt(Identity("own", 7, "asked"))
    head = ChatWriter().insert(Piece(role=True), Identity("own", 7, "asked"))
    body = stream(words(TEXT), more=usage(50, 25))
    client = read(head + sent(commands(of, body)))
    one_answer(client, TEXT)
    assert (client.ids, len(client.usages)) == ({"own"}, 1)
    assert {c["model"] for c in client.chunks} == {"asked"}


def test_it_keeps_its_other_fields_and_choices() -> None:
    of = session()
    of.adopt(Identity("own", 7, "asked"))
    second = {"index": 1, "delta": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}
    both = chunk({"role": "assistant", "content": "a"}, "stop", provider="P")
    both["choices"].append(second)
    client = read(sent(commands(of, frame(both) + DONE)))
    assert (client.chunks[0]["provider"], client.finishes) == ("P", ["stop", "stop"])
    assert client.chunks[0]["choices"][0]["delta"] == {"content": "a"}
    assert client.chunks[0]["choices"][1] == second


def test_usage_that_nobody_asked_for_is_taken_out_there_too() -> None:
    of = session(replace(FAR, strip_usage=True))
    of.adopt(Identity("own", 7, "asked"))
    assert read(sent(commands(of, stream(["a"], more=usage(50, 1))))).usages == []
    assert of.answer.usage() == {"prompt_tokens": 50, "completion_tokens": 1, "total_tokens": 51}


def test_an_adopted_answer_is_paused_and_joined_like_any() -> None:
    of = session(CLOSE)
    of.adopt(Identity("own", 7, "asked"))
    head = ChatWriter().insert(Piece(role=True), Identity("own", 7, "asked"))
    out = conversation(of, stream(words(TEXT)), Attempt(stream(words(REST), name="two")))
    one_answer(read(head + out), TEXT)


# -- usage


def test_usage_that_spillway_asked_for_is_taken_out_and_nothing_else() -> None:
    watch = replace(FAR, strip_usage=True)
    body = stream(words(TEXT), more=usage(50, 25))
    assert relayed(watch, body) == stream(words(TEXT))
    assert relayed(FAR, body) == body


def test_usage_on_a_chunk_that_says_something_stays() -> None:
    body = opening() + frame(chunk({"content": "a"}, "stop", usage={"prompt_tokens": 5})) + DONE
    assert relayed(replace(FAR, strip_usage=True), body) == body


# -- errors and endings


ERROR = frame({"error": {"code": 500, "message": "boom", "type": "server_error"}})
OVERFLOW = frame(
    {
        "error": {
            "code": 400,
            "message": "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "type": "exceed_context_size_error",
        }
    }
)


def test_an_error_in_the_stream_is_passed_on_and_the_stream_ended() -> None:
    out = relayed(FAR, opening() + said("a") + ERROR)
    assert out == opening() + said("a") + ERROR + DONE
    body = opening() + said("a") + ERROR + DONE
    assert relayed(FAR, body) == body


@pytest.mark.parametrize("none", [None, "", {}, False])
def test_an_error_that_is_none_is_none(none: Any) -> None:
    body = opening() + frame(chunk({"content": "a"}, error=none)) + ending() + DONE
    of = session()
    assert sent(commands(of, body)) == body
    assert not of.answer.attempt.errored


def test_an_error_in_a_later_attempt_ends_the_answer_once() -> None:
    bad = chunk({"content": ""}, "error", name="two", error={"code": 502, "message": "gone"}, event={"type": "execute"})
    more = opening(name="two") + b"".join(said(w, name="two") for w in words(REST)) + frame(bad) + DONE
    client = read(conversation(session(CLOSE), stream(words(TEXT)), Attempt(more)))
    assert (client.text, client.errors, client.done) == (TEXT, [{"code": 502, "message": "gone"}], 1)
    assert client.chunks[-1]["id"] == "one"
    assert "event" not in client.chunks[-1]


def test_a_refused_prompt_in_the_stream_is_sent_again() -> None:
    of = session()
    out = commands(of, b"event: error\n" + OVERFLOW)
    assert isinstance(out[0], Retry)
    assert out[0].overflow is not None
    assert out[0].overflow.window == 4096
    fed(of, Reopened(50))
    body = stream(words(TEXT))
    assert sent(commands(of, body)) == body


def test_a_first_chunk_before_the_refusal_keeps_its_identity() -> None:
    client = read(conversation(session(), opening() + OVERFLOW, Attempt(stream(words(TEXT), name="two"))))
    one_answer(client, TEXT)
    assert client.ids == {"one"}


def test_a_refusal_that_nothing_helps_against_is_shown() -> None:
    assert conversation(session(), OVERFLOW + DONE) == OVERFLOW + DONE


def test_an_overflow_after_the_first_word_is_a_full_window() -> None:
    """Slots that share their memory fill up together (llama.cpp with unified KV)."""
    body = opening() + said("a") + OVERFLOW
    assert commands(session(), body) == [Send(opening() + said("a")), Pause("window full")]
    one_answer(read(conversation(session(), body)), "a", "length")
    assert relayed(Watch(), body) == body + DONE


def test_an_empty_stream_near_the_window_is_a_refused_prompt() -> None:
    watch = Watch(window=200, pause_point=180, resumable=True)
    out = commands(session(watch, prompt=190), b"")
    assert isinstance(out[0], Retry)
    client = read(conversation(session(watch, prompt=190), opening()))
    assert (len(client.errors), client.done) == (1, 1)
    assert read(relayed(watch, b"")).errors[0]["type"] == "upstream_error"


@pytest.mark.parametrize(
    "tail", [b"", b'data: {"choices":[{"delta":{"cont', b"data: {", b"dat", b": comment", b'data: {"a":1}\n']
)
def test_an_answer_that_just_stops_is_told_as_an_error(tail: bytes) -> None:
    out = relayed(FAR, opening() + said("Rain") + tail)
    assert out.startswith(opening() + said("Rain"))
    assert out.endswith(DONE)
    last = out.removesuffix(DONE).strip().split(b"\n")[-1]
    assert loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_failed"


@pytest.mark.parametrize("end", [b"", DONE, b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n\r\n"])
def test_a_finish_reason_is_an_end_whatever_follows_it(end: bytes) -> None:
    body = opening() + said("a") + ending() + end
    assert relayed(FAR, body) == body + (b"" if end else DONE)


@pytest.mark.parametrize("torn", [b'data: {"choices":[{"delta":{"cont', b"data: [DO", b"dat", b": comm"])
@pytest.mark.parametrize("watch", [FAR, replace(FAR, strip_usage=True)])
def test_what_is_torn_behind_a_finish_reason_is_left_out(torn: bytes, watch: Watch) -> None:
    body = opening() + said("a") + ending()
    client = read(relayed(watch, body + torn))
    one_answer(client, "a")


def calls(*arguments: str) -> bytes:
    """One tool call, its arguments piece by piece."""
    first = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": piece}} for piece in arguments]
    return b"".join(frame(chunk({"tool_calls": [part]})) for part in (first, *more))


@pytest.mark.parametrize("sizes", [[], [1], [64]])
@pytest.mark.parametrize(
    ("body", "finish"),
    [
        (said("a"), "stop"), (frame(chunk({"reasoning_content": "a"})), "stop"), (said("a") + usage(5, 1), "stop"),
        (calls('{"x":', "1}"), "tool_calls"), (calls(), "tool_calls"), (calls('{"x":'), None), (b"", None), (usage(5, 0), None),
    ],
)  # fmt: skip
def test_an_end_mark_alone_is_given_the_finish_reason_it_stands_for(body: bytes, finish: str | None, sizes: list[int]) -> None:
    """Half a call, or nothing at all, is no answer: that is an error."""
    of = session(replace(FAR, show_usage=True))
    client = read(sent(commands(of, opening() + body + DONE, sizes)))
    assert (client.done, client.finishes) == (1, [finish] if finish else [])
    assert [error["code"] for error in client.errors] == ([] if finish else ["upstream_failed"])
    assert of.failed is (finish is None)
    assert len(client.usages) <= 1


@pytest.mark.parametrize("mark", [b"", DONE])
def test_a_full_window_that_no_finish_reason_tells_of_is_gone_on_with(mark: bytes) -> None:
    watch = replace(CLOSE, pause_point=10_000)
    first = opening() + said(HEAD) + usage(190, 10) + mark
    client = read(conversation(session(watch), first, Attempt(stream(words(REST), name="two"))))
    one_answer(client, TEXT)
    one_answer(read(conversation(session(watch), first)), HEAD, "length")


@pytest.mark.parametrize(("mark", "error"), [(b"", 1), (DONE, 0)])
def test_a_later_attempt_without_a_finish_reason_ends_like_a_first_one(mark: bytes, error: int) -> None:
    more = opening(name="two") + b"".join(said(word, name="two") for word in words(REST)) + mark
    client = read(conversation(session(CLOSE), stream(words(TEXT)), Attempt(more)))
    assert client.text == TEXT
    assert (client.done, len(client.errors), len(client.finishes)) == (1, error, 1 - error)


def test_a_last_frame_without_its_line_end_is_read() -> None:
    body = opening() + said("a") + ending().rstrip()
    assert relayed(FAR, body) == body + b"\n\n" + DONE
    paused = opening() + b"".join(map(said, words(TEXT)[:21])).rstrip()
    client = read(conversation(session(CLOSE), paused, Attempt(stream(words(REST), name="two"))))
    one_answer(client, TEXT)


def test_a_connection_that_breaks_leaves_an_error_and_no_torn_frame() -> None:
    of = session()
    out = [*fed(of, ChunkReceived(opening() + said("a") + b'data: {"cho')), *fed(of, CutOff("gone"))]
    client = read(sent(out))
    assert (client.text, client.errors[0]["message"], client.done) == ("a", "gone", 1)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_connection_that_breaks_after_the_end_breaks_nothing(finish: str) -> None:
    of = session(replace(FAR, pause_point=10**6))
    out = [*fed(of, ChunkReceived(opening() + said("a") + ending(finish))), *fed(of, CutOff("gone"))]
    one_answer(read(sent(out)), "a", finish)


def test_a_failure_while_paused_is_told() -> None:
    of = session(CLOSE)
    out = commands(of, stream(words(TEXT)))
    out += fed(of, CutOff("The summary took too long."))
    client = read(sent(out))
    assert (client.text, client.errors[0]["message"]) == (HEAD, "The summary took too long.")


def test_a_failure_in_a_later_attempt_loses_no_word_that_was_held_back() -> None:
    of = session(CLOSE)
    out = commands(of, stream(words(TEXT)))
    fed(of, Reopened(50, echo=HEAD))
    out += fed(of, ChunkReceived(opening(name="two") + said(TEXT[:8], name="two")))
    out += fed(of, CutOff("gone"))
    client = read(sent(out))
    assert (client.text, client.done) == (HEAD + " " + TEXT[:8], 1)


# -- what only Spillway may say


@pytest.mark.parametrize(
    "privileged",
    [{"event": {"type": "execute", "data": {"code": "alert(1)"}}}, {"selected_model_id": "x"}, {"type": "response.completed"}],
)
@pytest.mark.parametrize("adopted", [False, True])
def test_privileged_keys_of_a_backend_are_dropped(privileged: dict[str, Any], adopted: bool) -> None:
    of = session()
    if adopted:
        of.adopt(Identity("own", 1, "m"))
    escaped = frame(chunk({"content": "b"}, **privileged)).replace(b'"event"', b'"\\u0065vent"')
    body = opening() + said("x") + escaped + frame(privileged) + ending("length") + frame(privileged) + DONE
    client = read(sent(commands(of, body + b"")))
    assert client.text == "xb"
    assert not any(key in value for value in client.chunks for key in privileged)


@pytest.mark.parametrize("after", [b"", DONE])
def test_they_can_not_be_smuggled_in_as_one_line_of_several(after: bytes) -> None:
    event = b'{"event":{"type":"execute"}}'
    frames = [
        b'data: {"a":1}\ndata: ' + event + b"\n\n",
        b"data: [1,\r\ndata: " + event + b"\r\ndata: ]\r\n\r\n",
        b'data: {"x":\rdata: ' + event + b"\rdata: }\r\r",
    ]
    for smuggled in frames:
        body = opening() + said("a") + ending() + after + smuggled
        client = relayed(FAR, body)
        assert client.startswith(opening() + said("a") + ending())
        assert not any(line.startswith(b"data: " + event) for line in client.replace(b"\r", b"\n").splitlines())


# -- the table


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize(
    "event", [*(ChunkReceived(b"data: {}\n\n"), UpstreamEnded(), CutOff("x"), Reopened(5)), *(ResumeFailed(), CutOff(""))]
)
def test_events_are_legal_by_the_table_or_refused(state: State, event: StreamEvent) -> None:
    of = session(CLOSE)
    if state is State.PAUSING:
        fed(of, ChunkReceived(opening() + b"".join(map(said, words(HEAD)))))
    elif state is State.ENDED:
        fed(of, ChunkReceived(stream(["It was"])))
    elif state is not State.RELAYING:
        commands(of, stream(words(TEXT)))
    if state is State.DONE:
        fed(of, ResumeFailed())
    assert of.state is state
    allowed = LEGAL.get((state, type(event)))
    if allowed is None:
        with pytest.raises(ValueError, match="not legal"):
            fed(of, event)
        assert of.state is state
    else:
        fed(of, event)
        assert of.state in allowed


events = st.one_of(
    bodies(odd_chunks()).map(ChunkReceived),
    st.sampled_from(words(TEXT)).map(lambda text: ChunkReceived(said(text))),
    st.sampled_from([UpstreamEnded(), CutOff("x"), ResumeFailed(), CutOff("")]),
    st.integers(0, 150).map(Reopened),
)


@pytest.mark.no_cover
@given(st.lists(events, max_size=25), st.booleans())
def test_whatever_happens_the_table_holds_and_the_end_is_the_end(happened: list[StreamEvent], adopted: bool) -> None:
    of = session(replace(CLOSE, show_usage=True))
    if adopted:
        of.adopt(Identity("own", 1, "m"))
    for event in happened:
        before = of.state
        allowed = LEGAL.get((before, type(event)))
        if allowed is None:
            continue
        out = fed(of, event)
        assert of.state in allowed
        stops = [command for command in out if not isinstance(command, Send)]
        assert len(stops) <= 1
        assert not stops or out[-1] is stops[0]
        assert (of.state is State.DONE) == (bool(stops) and isinstance(stops[0], Finish)) or before is State.DONE
        assert (of.state is State.PAUSED) == (bool(stops) and isinstance(stops[0], Pause | Retry))


def counting(text: str, used: int, kind: str) -> bytes:
    """A frame of an attempt whose backend counts in each of them."""
    counts: dict[str, Any] = {"timings": {"cache_n": 60, "prompt_n": 0, "predicted_n": used, "ms": used * 1.5}}
    if kind == "usage":
        counts = {"usage": {"prompt_tokens": 60, "total_tokens": 60 + used, "completion_tokens": used}}
    return frame(chunk({"content": text}, name="two", **counts))


@pytest.mark.parametrize("kind", ["timings", "usage"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_the_pause_point_of_a_resumed_attempt_is_met_by_the_backends_own_count(tokens: int, kind: str) -> None:
    """The estimate of its prompt was too low by half, and each frame holds several tokens."""
    of = session(Watch(window=1000, pause_point=600, resumable=True), prompt=590)
    commands(of, stream(words(TEXT)))
    fed(of, Reopened(30))
    body = opening(name="two") + b"".join(counting(f" w{number}", number * tokens, kind) for number in range(1, 1000))
    out = commands(of, body, [len(data) for data in sse.frames(body)])
    assert out[-1] == Pause("pause point")
    attempt = of.answer.attempt
    assert attempt.prompt_tokens == 60
    assert 600 - tokens <= attempt.used <= 600
