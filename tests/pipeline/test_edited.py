"""What a client has edited reaches no backend any more, through the HTTP stack: in no summary, block, or anything else."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.jsontext import dumps
from proxy.core.request import Message
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.fakes.brains import asks_summary
from tests.marked import MARK, conversations, without_mark
from tests.proxying import Proxy, running_proxy

pytestmark = pytest.mark.slow

WINDOW = 1024


def brain(question: Question) -> Reply:
    """Summaries tell all that is told apart; answers nothing."""
    if not asks_summary(question):
        return Reply(text="Fine.")
    shown = " ".join(dict.fromkeys(MARK.findall(dumps(list(question.messages)).decode())))
    return Reply(text=f"The conversation so far was about: {shown} and nothing else.")


@pytest.fixture(scope="module")
def stack() -> Iterator[tuple[LlamaCppFake, Proxy]]:
    with LlamaCppFake([FakeModel("m", WINDOW, tools=True)], brain) as fake, running_proxy(fake) as proxy:
        yield fake, proxy


def asked(stack: tuple[LlamaCppFake, Proxy], messages: list[Message]) -> bytes:
    """All that reached the backend because of one request."""
    fake, proxy = stack
    del fake.requests[:]
    body: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 20}
    answer = proxy.chat(body)
    assert answer.status_code in (200, 400), answer.text
    assert not fake.invalid_histories
    return dumps([request.json for request in fake.chats()])


@given(conversations(), conversations(first=1000), st.data())
def test_no_trace_of_what_was_edited_goes_upstream(
    stack: tuple[LlamaCppFake, Proxy], begun: list[Message], more: list[Message], data: st.DataObject
) -> None:
    messages = [{"role": "user", "content": f"This is about {uuid.uuid4()}."}, *begun, *more]
    turns = [
        n
        for n in range(1, len(messages) + 1)
        if n == len(messages) or (messages[n - 1]["role"] == "user" and messages[n]["role"] == "assistant")
    ]
    for turn in turns:
        asked(stack, messages[:turn])
    index = data.draw(st.integers(1, len(messages) - 1))
    marks = MARK.findall(dumps(messages[index]).decode())
    mark = data.draw(st.sampled_from(marks)) if marks else "none"
    edited = [*messages[:index], without_mark(messages[index], mark), *messages[index + 1 :]]
    if mark not in dumps(edited).decode():
        assert mark.encode() not in asked(stack, edited)
