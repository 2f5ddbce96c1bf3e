"""The load generator sees every fault that a proxy can make in a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from benchmarks import canned
from benchmarks.checking import fault, fault_resumed, said
from benchmarks.client import Answer

CHUNKS = 12
LATER = 5


def plain(frames: tuple[bytes, ...]) -> list[bytes]:
    """Frames without the chunked coding: size, line end, data, line end."""
    return [frame.split(b"\r\n", 1)[1].removesuffix(b"\r\n") for frame in frames]


DONE = b"data: [DONE]\n\n"
WHOLE = [*plain((canned.FIRST, *canned.FRAMES[:CHUNKS], canned.LAST)), DONE]
LATER_FRAMES = plain(
    (
        *canned.later_start(f"word{CHUNKS - 1}", timings=True),
        *canned.later_frames(LATER, timings=True),
        canned.LATER_LAST,
    )
)
RESUMED = [
    *WHOLE[: CHUNKS + 1],
    *(frame.replace(canned.LATER_ID.encode(), b"chatcmpl-bench") for frame in LATER_FRAMES[1:]),
    DONE,
]
CHECKS: list[tuple[list[bytes], Callable[[Answer], str]]] = [
    (WHOLE, lambda answer: fault(answer, said(CHUNKS))),
    (RESUMED, partial(fault_resumed, later=LATER, paused=True)),
]


def answer(frames: list[bytes], *, status: int = 200) -> Answer:
    return Answer(status=status, body=frames)


@pytest.mark.parametrize(("frames", "check"), CHECKS)
def test_a_whole_stream_is_good(frames: list[bytes], check: Callable[[Answer], str]) -> None:
    assert check(answer(frames)) == ""
    assert check(answer([b"".join(frames)])) == ""
    assert check(answer([b": a heartbeat\n\n", *frames])) == ""


@pytest.mark.parametrize(("frames", "check"), CHECKS)
def test_a_frame_lost_or_doubled_is_a_fault(frames: list[bytes], check: Callable[[Answer], str]) -> None:
    for at in range(1, len(frames)):
        assert check(answer(frames[:at] + frames[at + 1 :])), at
        assert check(answer(frames[: at + 1] + frames[at:])), at


@pytest.mark.parametrize(("frames", "check"), CHECKS)
def test_words_out_of_order_are_a_fault(frames: list[bytes], check: Callable[[Answer], str]) -> None:
    words = [at for at, frame in enumerate(frames) if b'"content":" ' in frame]
    assert len(words) >= CHUNKS
    for one, next_one in pairwise(words):
        swapped = list(frames)
        swapped[one], swapped[next_one] = swapped[next_one], swapped[one]
        assert check(answer(swapped))


@pytest.mark.parametrize(("frames", "check"), CHECKS)
def test_a_stream_cut_anywhere_is_a_fault(frames: list[bytes], check: Callable[[Answer], str]) -> None:
    whole = b"".join(frames)
    for cut in range(len(whole)):
        assert check(answer([whole[:cut]])), cut


def test_an_error_or_a_second_identity_is_a_fault() -> None:
    assert "500" in fault(answer(WHOLE, status=500), said(CHUNKS))
    renamed = [*WHOLE[:5], WHOLE[5].replace(b"chatcmpl-bench", b"chatcmpl-other"), *WHOLE[6:]]
    assert "2 ids" in fault(answer(renamed), said(CHUNKS))
    error = [*WHOLE[:5], b'data: {"error":{"message":"no"}}\n\n', DONE]
    assert "no chunk" in fault(answer(error), said(CHUNKS))
    trailing = [*WHOLE, b'data: {"choices":[],"id":"chatcmpl-bench"}\n\n']
    assert "does not belong" in fault(answer(trailing), said(CHUNKS))
    assert "inside a frame" in fault(answer([*WHOLE, b"data: "]), said(CHUNKS))


def test_an_answer_that_was_not_paused_is_a_fault_where_it_should_have_been() -> None:
    later = plain((*canned.later_start("", timings=False), *canned.later_frames(LATER, timings=False)))
    later += [*plain((canned.LATER_LAST,)), DONE]
    assert fault_resumed(answer(later), LATER, paused=False) == ""
    assert fault_resumed(answer(later), LATER, paused=True)
    assert fault_resumed(answer(WHOLE), LATER, paused=True)
