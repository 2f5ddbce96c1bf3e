"""Remedies for a refusal: one decision, and one budget for all requests that are made on behalf of a client's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from proxy.backends.overflow import Overflow
from proxy.backends.profile import Continuation
from proxy.backends.refusals import ToolRefusal

MOST_SHORTENED = 2
"""Times in a row that a prompt is shortened because it was refused for its size."""
MOST_RETRIES = 3
"""Times in a row that a request to continue an answer is sent again to a backend that is not ready."""
FIRST_RETRY = 0.5
"""Seconds before the first retry, doubled for each further one, where the backend names no time of its own."""
LONGEST_RETRY = 30.0
"""Seconds of `Retry-After` that are waited for; a backend that wants more is given up."""
MOST_WAITS = 12
"""Times that a request waits for a memory that slots share, before the refusal is taken for its own."""


class Remedy(Enum):
    """Actions upon a refusal."""

    WAIT = "wait"
    """Send the same again when the slots that share a memory have room."""
    SHORTEN = "shorten"
    """Send it again, shortened."""
    EMULATE = "emulate"
    """Send it again, with its tools as text."""
    OTHER_WAY = "other way"
    """Ask in the next way to go on with the answer."""
    GIVE_UP = "give up"
    """Tell the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Error of a backend in place of an answer."""

    overflow: Overflow | None = None
    tools: ToolRefusal | None = None
    roomy: bool = False
    """Whether the prompt fits so well that it can't be its own length that was refused."""
    way: Continuation | None = None
    """The way in which the backend was asked to go on with an answer; None: it was a first request."""


@dataclass
class Spent:
    """Use of the budget by one client's request, over all its attempts, streamed or not; nothing at first."""

    waits: int = field(default=0, init=False)
    shortened: int = field(default=0, init=False)
    """In a row: an attempt that says something begins anew."""
    emulated: bool = field(default=False, init=False)
    retries: int = field(default=0, init=False)
    """In a row, as above."""
    corrected: bool = field(default=False, init=False)
    """Whether the model was asked once more for a tool call that could not be made."""
    refused: frozenset[Continuation] = field(default=frozenset(), init=False)
    """Ways to go on that were refused."""

    def corrects(self) -> bool:
        """Return whether the model may be asked once more for a call that could not be parsed, and charge that to the budget."""
        first, self.corrected = not self.corrected, True
        return first

    def retry(self, retry_after: float | None) -> float | None:
        """Count a retry; the seconds to wait before it, or None if there is none left.

        `retry_after`: seconds that the backend asks for; None: it names none.
        """
        if self.retries >= MOST_RETRIES or (retry_after or 0) > LONGEST_RETRY:
            return None
        self.retries += 1
        return FIRST_RETRY * 2 ** (self.retries - 1) if retry_after is None else retry_after

    def answered(self) -> None:
        """The backend took the prompt and said something."""
        self.shortened = self.retries = 0


def remedy(refusal: Refusal, spent: Spent) -> Remedy:
    """Decide, and put it on the account.

    Whatever backends answer, that ends: waiting and emulating have limits of their own, every other way is taken
    once, and shortening is limited until the model says something.
    """
    overflow = refusal.overflow
    if overflow is not None:
        # A refusal without figures of a prompt that fits by far is about the memory of all slots together.
        pooled = overflow.shared and overflow.window is None and refusal.roomy
        if pooled and spent.waits < MOST_WAITS:
            spent.waits += 1
            return Remedy.WAIT
        if spent.shortened < MOST_SHORTENED:
            spent.shortened += 1
            return Remedy.SHORTEN
        return Remedy.GIVE_UP
    if refusal.tools is not None and refusal.way is None and not spent.emulated:
        spent.emulated = True
        return Remedy.EMULATE
    if refusal.way is not None and refusal.way not in spent.refused:
        spent.refused |= {refusal.way}
        return Remedy.OTHER_WAY
    return Remedy.GIVE_UP
