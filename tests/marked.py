"""Conversations in each of whose messages there is a mark of its own, so that traces of each can be looked for."""

import re

from hypothesis import strategies as st

from proxy.core.jsontext import dumps, loads
from proxy.core.request import Message
from tests.histories import assistant, call, tool, user

MARK = re.compile(r"mark\d+x")


@st.composite
def conversations(draw: st.DrawFn, first: int = 0) -> list[Message]:
    """Turns in each of whose messages there is a mark of its own, some in a rule."""
    messages: list[Message] = []
    number = first

    def said(words: int) -> str:
        nonlocal number
        number += 1
        return f"You must keep mark{number}x in src/mark{number}x.py. " + "word " * words

    sizes = st.sampled_from([1, 20, 200])
    for _ in range(draw(st.integers(1, 5))):
        messages += (user(said(draw(sizes))) for _ in range(draw(st.integers(1, 2))))
        for _ in range(draw(st.integers(0, 3))):
            number += 1
            made = call(number, arguments=f'{{"path":"mark{number}x"}}')
            repeated = draw(st.booleans())
            messages += [
                assistant(None, tool_calls=[made]),
                tool(number, "the same all over " * 40 if repeated else said(draw(sizes))),
            ]
        messages.append(assistant(said(draw(sizes))))
    return messages[: draw(st.integers(1, len(messages)))]


def without_mark(message: Message, mark: str) -> Message:
    edited: Message = loads(dumps(message).replace(mark.encode(), b"nothing"))
    return edited
