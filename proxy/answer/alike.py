"""The most frequent case: frames that differ in nothing but a word, far from the pause point.

They are taken in without being parsed, one alone or as many as came in one read.
"""

from __future__ import annotations

from proxy.answer.answer import Answer
from proxy.answer.outlet import Outlet
from proxy.answer.watch import Watch

_BETWEEN, _AHEAD = 16, 64
"""Frames between two whose running counts are read while the pause point is not so many tokens ahead."""


class Alike:
    """Takes such frames into an answer."""

    __slots__ = ("_answer", "_outlet", "_watch")

    def __init__(self, watch: Watch, answer: Answer, outlet: Outlet) -> None:
        self._watch, self._answer, self._outlet = watch, answer, outlet

    def one(self, frame: bytes, text: str) -> bytes | None:
        """What the client gets for a frame with this text; None: it has to be looked at.

        No character is more than four tokens. What the backend counts is read now and then only.
        """
        outlet, answer = self._outlet, self._answer
        if outlet.withholding or not self._watch.far(answer, 4 * len(text) + _AHEAD):
            return None
        template = outlet.template
        told = template.told(frame) if template.counts and not answer.attempts[-1].deltas % _BETWEEN else 0
        answer.add_plain(text, thought=template.thought, told=told)
        return template.fill(frame, text)

    def many(self, block: bytes, out: list[bytes]) -> bytes:
        """Take in those at the beginning of the block, all at once; what is left, which has to be looked at."""
        outlet, answer = self._outlet, self._answer
        template = outlet.template
        run = template.alike(block)
        if outlet.withholding or (texts := template.read_all(run)) is None:
            return block
        # At most a token a byte, unless they tell.
        told = template.told(run)
        more = told - answer.attempts[-1].completion_tokens if told else len("".join(texts).encode())
        if not self._watch.far(answer, more):
            return block
        answer.add_all(texts, thought=template.thought, told=told)
        out.append(template.fill_all(run, texts))
        return block[len(run) :]
