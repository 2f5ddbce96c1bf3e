"""The model of the sessions: says what the script wants, knows what it is shown, and summarises well."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.core.request import text_of
from tests.fakes import Question, Reply, ToolCall, facts
from tests.fakes.model import Message

_ASKS = re.compile(r"\bsummari[sz]e\b", re.IGNORECASE)
_QUOTE = re.compile("«(.+)»", re.DOTALL)
_OVERLAP = 80
"""Characters by which a text is found again after its beginning was shortened."""


def asks_summary(messages: Sequence[Message]) -> bool:
    """Whether a request is Spillway's own: it ends with the instruction, which no script contains."""
    last = messages[-1] if messages else {}
    return last.get("role") == "user" and bool(_ASKS.search(text_of(last)))


class Director:
    """A brain that is told before each turn what to say; a question for a fact it answers from the messages."""

    def __init__(self) -> None:
        self._text = ""
        self._calls: Sequence[ToolCall] = ()
        self._asked = ""
        self.said: str | None = None
        """The whole text of the newest answer, as the client has to get it."""

    def expect(self, text: str, calls: Sequence[ToolCall], asked: str) -> None:
        """Prepare the next answer."""
        self._text, self._calls, self._asked, self.said = text, calls, asked, None

    def brain(self, question: Question) -> Reply:
        """Say what is next, or summarise."""
        return Reply(text=_summary(question)) if asks_summary(question.messages) else self._answer(question)

    def planned(self) -> tuple[str, list[dict[str, str]]]:
        """Text and tool calls of the answer, for a client that did not get it."""
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in self._calls]
        return self.said or self._text, calls

    def _answer(self, question: Question) -> Reply:
        if self.said is None:
            self.said = self._known(question) + self._text
        return Reply(text=_rest(self.said, question), tool_calls=self._calls)

    def _known(self, question: Question) -> str:
        if not self._asked:
            return ""
        code = facts(question.messages).get(self._asked.lower())
        return f"That code is not known here: {self._asked}. " if code is None else f"It is {code}. "


def _summary(question: Question) -> str:
    """All facts that are shown, in few words: a window of 2,000 tokens leaves 256 for a summary."""
    known = "; ".join(f"the code of {name} is {code}" for name, code in facts(question.messages).items())
    return f"Goal: short answers about codes. Facts: {known or 'none'}. Next: answer the newest question."


def _rest(text: str, question: Question) -> str:
    """What is left to say, after a prefix or a quoted end of it."""
    quoted = _QUOTE.search(question.last_user)
    before = question.prefix or (quoted.group(1) if quoted else "")
    if not before:
        return text
    if text.startswith(before):
        return text[len(before) :]
    at = text.find(before[-_OVERLAP:])
    return text if at < 0 else text[at + len(before[-_OVERLAP:]) :]
