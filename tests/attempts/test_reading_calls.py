"""Counting while a call is read from text, and loops that go back."""

import re
from typing import Any

import pytest

from proxy.core import sse
from proxy.dialects.chat.answers import ChatWriter
from proxy.emulation.offer import offer_of
from proxy.emulation.reader import WrittenCallReader
from proxy.stream.answer import Answer
from proxy.stream.events import ChunkReceived, Pause
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch
from tests.attempts.test_tools import EMULATED, WEATHER, calls_of, loop_turn
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, summariser
from tests.proxying import running_proxy


def drive(pieces: list[str], prompt: int) -> tuple[StreamSession, bool]:
    """A session that was fed these deltas through a reader, and whether it paused."""
    offer = offer_of({"tools": [WEATHER]})
    assert offer is not None

    def tokens(text: str) -> int:
        return len(text) // 4

    session = StreamSession(
        Watch(window=2048, pause_point=1843, resumable=True), Answer(prompt, tokens), ChatWriter(),
        lambda: WrittenCallReader(offer, str, emulated=True),
    )  # fmt: skip
    for piece in pieces:
        chunk = {"id": "a", "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        if any(isinstance(command, Pause) for command in session.handle(ChunkReceived(sse.encode(chunk)))):
            return session, True
    return session, False


def test_a_call_that_fits_is_not_counted_twice() -> None:
    """1,467 tokens of prompt and a call of 320: 1,787 of 2,048."""
    arguments = f'{{"city": "{"abc " * 300}"}}'
    written = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    session, paused = drive([written[at : at + 4] for at in range(0, len(written), 4)], 1467)
    assert session.answer.attempt.unseen == 0
    assert not paused


def test_what_is_no_longer_held_is_no_longer_counted() -> None:
    session, _ = drive(["One ", "two", " <", "b> three"], 100)
    assert session.answer.attempt.unseen == 0


def test_a_pause_is_due_at_the_pause_point_after_a_line_break() -> None:
    """What follows a line break is plain text, whatever it might have become."""
    _, paused = drive(["One\n", *[" word"] * 190], 1700)
    assert paused


@pytest.mark.slow
@pytest.mark.parametrize("summaries", [True, False])
@pytest.mark.rows(1)
def test_a_loop_that_goes_back_keeps_its_newest_result(summaries: bool) -> None:
    """The same calls once more, without ids to tell them apart: an older checkpoint must not cover all of it."""

    def brain(question: Question) -> Reply:
        said, next_city, number = str(question.messages[-1]["content"]).removeprefix(question.prefix).partition("city ")
        return Reply(text=f"{said}{_call(int(re.findall(r'[0-9]+', number)[0]))}" if next_city else said)

    fake = LlamaCppFake([FakeModel("m", 2048)], summariser(brain) if summaries else brain)
    with fake, running_proxy(fake, recall="off", **EMULATED) as proxy:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go to city 1"}]
        histories = []
        for number in range(1, 26):
            histories.append(list(messages))
            text, made, _ = calls_of(proxy, stream=True, messages=messages)
            filler = " ".join(f"n{number * 60 + n}" for n in range(40))
            messages += loop_turn(made, f"round {number} {filler} city {number + 1}")
            messages[-2]["content"] = text
        for number, history in enumerate(histories[1:], start=1):
            before = len(fake.chats())
            proxy.chat({"model": "m", "messages": history, "tools": [WEATHER], "stream": True})
            # In front of the answer, or what there is of it.
            ends = [str(chat.json["messages"][-2:]) for chat in fake.chats()[before:]]
            assert all(f"round {number} " in end for end in ends if "Summarise" not in end)


def _call(number: int) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "city {number}"}}}}\n</tool_call>'
