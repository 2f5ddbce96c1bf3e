"""Pauses while a model thinks, in the fields for it or between tags."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stream.events import Pause, Reopened
from proxy.stream.thinking import ThoughtFilter, open_thought
from proxy.stream.watch import Watch
from tests.stream.support import (
    DONE,
    Attempt,
    chunk,
    commands,
    conversation,
    ending,
    frame,
    one_answer,
    opening,
    read,
    relayed,
    said,
    session,
    words,
)

CLOSE = Watch(window=200, pause_point=120, resumable=True)
THOUGHT = "so the user wants a poem and it should rhyme and be short and about rain in the very last week of may"
ANSWER = "Rain in May."


def thought(text: str, *, field: str = "reasoning_content", name: str = "one") -> bytes:
    return frame(chunk({field: text}, name=name))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_pause_inside_reasoning_goes_on_with_it(field: str) -> None:
    """Where the backend continues reasoning, the next attempt says the very next word of it."""
    of = session(CLOSE)
    out = commands(of, opening() + b"".join(thought(w, field=field) for w in words(THOUGHT)))
    assert out[-1] == Pause("pause point")
    assert of.answer.thinking
    half = of.answer.reasoning
    assert THOUGHT.startswith(half)
    more = (
        opening(name="two")
        + b"".join(thought(w, field=field, name="two") for w in words(THOUGHT[len(half) :]))
        + said(ANSWER, name="two")
        + ending(name="two")
        + DONE
    )
    client = read(conversation(session(CLOSE), opening() + _thoughts(field), Attempt(more)))
    one_answer(client, ANSWER)
    if field == "reasoning_content":
        assert client.reasoning == THOUGHT


def _thoughts(field: str) -> bytes:
    return b"".join(thought(w, field=field) for w in words(THOUGHT))


def test_where_it_can_only_be_thought_anew_the_second_thought_is_a_paragraph_of_its_own() -> None:
    more = opening(name="two") + thought("Again.", name="two") + said(ANSWER, name="two") + ending(name="two") + DONE
    of = session(CLOSE)
    client = read(conversation(of, opening() + _thoughts("reasoning_content"), Attempt(more, Reopened(50, exact=False))))
    one_answer(client, ANSWER)
    assert client.reasoning == " ".join(THOUGHT.split()[:20]) + "\n\nAgain."


def test_between_reasoning_and_answer() -> None:
    more = opening(name="two") + said(ANSWER, name="two") + ending(name="two") + DONE
    client = read(conversation(session(CLOSE), opening() + _thoughts("reasoning_content"), Attempt(more)))
    one_answer(client, ANSWER)


def test_a_window_that_is_full_of_reasoning_is_gone_on_with() -> None:
    watch = Watch(window=120, pause_point=10_000, resumable=True)
    first = opening() + b"".join(thought(w) for w in words(THOUGHT)[:20]) + ending("length") + DONE
    more = opening(name="two") + said(ANSWER, name="two") + ending(name="two") + DONE
    one_answer(read(conversation(session(watch), first, Attempt(more))), ANSWER)


def test_what_is_thought_anew_in_mid_answer_is_left_out_and_counted() -> None:
    first = opening() + thought("Hm.") + b"".join(map(said, words(THOUGHT)))
    of = session(CLOSE)
    more = opening(name="two") + thought("Again.", name="two") * 5 + said(" end", name="two") + ending(name="two") + DONE
    client = read(conversation(of, first, Attempt(more)))
    assert client.reasoning == "Hm."
    assert client.text.endswith(" end")
    assert of.answer.attempt.completion_tokens >= 5


# -- between tags


def through(seam: ThoughtFilter, text: str, size: int) -> str:
    out = "".join(seam.feed(text[at : at + size]) for at in range(0, len(text), size))
    return out + seam.flush()


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("<think>so", "think"),
        ("\n<thinking>so </think>", "thinking"),
        *(("<think>so</think>\n\nWell", None), ("Well <think>", None), ("<thin", None), ("", None)),
    ],
)
def test_an_open_thought_is_one_that_begins_the_answer(text: str, tag: str | None) -> None:
    assert open_thought(text) == tag


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("inside", "text", "out"),
    [
        (None, "plain", "plain"), (None, " < 3", " < 3"), (None, "<thinner>", "<thinner>"),
        (None, "<think>again</think>\n\nplain", "plain"), (None, "\n<think>again, and <b> </b></think>plain", "plain"),
        (None, "<think>never ends", ""), (None, "<think>a</think>\n\n", ""),
        ("think", "<think>more</think>\n\nplain", "more</think>\n\nplain"), ("think", "plain", "\n</think>\n\nplain"),
        ("thinking", "\nplain", "\n</thinking>\n\nplain"), ("think", " ", " "),
    ],
)  # fmt: skip
def test_thoughts_stay_well_formed(inside: str | None, text: str, out: str, size: int) -> None:
    assert through(ThoughtFilter(inside), text, size) == out


@given(st.text(alphabet="<think/> a", max_size=30), st.integers(1, 7))
def test_any_chunking_gives_the_same(text: str, size: int) -> None:
    for inside in (None, "think"):
        assert through(ThoughtFilter(inside), text, size) == through(ThoughtFilter(inside), text, 100)


@pytest.mark.parametrize("again", ["<think>and so", " and so"])
def test_a_pause_between_tags(again: str) -> None:
    """Quoted, a model opens a new thought; where it is truly gone on with, it says the next word."""
    first = opening() + said("<think>") + b"".join(map(said, words(THOUGHT)))
    event = Reopened(50, exact=again[0] == " ")
    pieces: list[Any] = [again, "</think>", "\n\n", ANSWER]
    more = opening(name="two") + b"".join(said(p, name="two") for p in pieces) + ending(name="two") + DONE
    client = read(conversation(session(CLOSE), first, Attempt(more, event)))
    head = "<think>" + "".join(words(THOUGHT)[:19])
    assert client.text == f"{head} and so</think>\n\n{ANSWER}"


MARKED = (
    "<|channel|>analysis<|message|>So be it.<|end|>\n<|start|>assistant<|channel|>final<|message|>Rain <|end|> rain.<|return|>"
)
STRIPPED = "analysisSo be it.assistantfinalRain <|end|> rain."


@pytest.mark.parametrize("size", [1, 2, 7, 200])
@pytest.mark.parametrize("text", [MARKED, STRIPPED], ids=["marked", "stripped"])
def test_channels_are_read_wherever_they_are_cut(text: str, size: int) -> None:
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    client = read(conversation(session(Watch()), opening() + b"".join(map(said, parts)) + ending() + DONE))
    one_answer(client, "Rain <|end|> rain.")
    assert client.reasoning == "So be it."


@pytest.mark.parametrize("text", ["analysisResults = [1]", "a", "assistant", "<|channel|>", "to=b {}", " commentaryFoo"])
def test_what_only_looks_like_a_channel_passes_byte_for_byte(text: str) -> None:
    body = opening() + b"".join(map(said, text)) + ending() + DONE
    assert relayed(Watch(), body) == body
