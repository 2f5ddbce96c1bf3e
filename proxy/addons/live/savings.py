"""Savings against the same traffic without Spillway, counted so that they never flatter."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.addons.live.record import Record
from proxy.core.piece import whole_number
from proxy.shaping.stabilise import BILLING
from proxy.telemetry.outcome import Outcome

MOST = 2000
"""Of credential, backend and model each that is accounted for; the names of models come from clients."""
HOW = (
    """Tokens without Spillway: what each client's prompt would have come to with what was shortened last put back, and
never more than the window, because no backend takes more. What was taken out on turns before that is not counted.""",
    """Not sent: that, less what was sent instead (each attempt of an answer that was paused counts anew), less what
summaries read and wrote.""",
    """Not read again: tokens that the backend itself reported as read before, in prompts that a billing line was
stripped from; less those that had to be read again because Spillway shortened the prompt.""",
    """Seconds: what that reading would have taken at the speed at which the same model read other prompts; less the
seconds that clients waited for compactions.""",
    "Rescued: prompts that would not have fitted their window, and answers that went on although it was full.",
)


@dataclass(slots=True)
class Account:
    """Sums over requests of one credential to one model. Tokens and seconds."""

    backend: str = ""
    model: str = ""
    tenant: str = ""
    requests: int = 0
    without: int = 0
    sent: int = 0
    spent: int = 0
    avoided: int = 0
    caused: int = 0
    waited: float = 0.0
    ahead: float = 0.0
    read: int = 0
    """Tokens that the backend read until it answered, and the seconds in which it did."""
    reading: float = 0.0
    prompts: int = 0
    answers: int = 0

    def add(self, record: Record) -> int:
        """Count a request that is over, if it was asked of a model.

        Returns:
            Tokens that it did not send; negative where it sent more than it would have.
        """
        outcome = record.outcome
        sent = outcome.tokens_after
        if sent is None:
            return 0
        # Of the client's own prompt, as far as it is known: without what was recalled, and with what was taken out last.
        without = sent - outcome.recalled_tokens + record.saved
        if (window := outcome.window) is not None and without > window:
            without = window
            self.prompts += 1
        self.requests += 1
        self.without += without
        self.sent += record.sent_tokens
        self.spent += record.spent
        self.waited += outcome.compaction_seconds
        if outcome.resumes:
            self.answers += 1
        if outcome.reused is not None:
            self._reused(outcome, outcome.reused)
        if outcome.unlike == "shortened" and outcome.repeated is not None:
            self.caused += max(0, sent - outcome.repeated)
        return without - record.sent_tokens - record.spent

    def _reused(self, outcome: Outcome, reused: int) -> None:
        """So much of the prompt was not read again; how fast the rest was, where it was sent once and not prepared for long."""
        if reused and any(BILLING in each["kinds"] for each in outcome.each("stabilised")):
            self.avoided += reused
        if outcome.attempts != 1 or outcome.compactions or outcome.first_byte is None:
            return
        reported = whole_number((outcome.usage or {}).get("prompt_tokens")) or outcome.tokens_after or 0
        if reported > reused:
            self.read += reported - reused
            self.reading += outcome.first_byte


class Accounts:
    """Every account; the least recently used go first."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str], Account] = OrderedDict()

    def of(self, outcome: Outcome) -> Account:
        """The account to which a request is put."""
        key = (outcome.credential, outcome.backend, outcome.model)
        account = self._known.get(key)
        if account is None:
            account = self._known[key] = Account(outcome.backend, outcome.model, outcome.credential)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return account

    def totals(self, counts: Callable[[Account], bool], *, since: float) -> dict[str, Any]:
        """Sum up the accounts that `counts` selects."""
        accounts = [account for account in self._known.values() if counts(account)]

        def total(name: str) -> Any:
            return sum(getattr(account, name) for account in accounts)

        seconds = sum(_seconds(account, account.avoided) for account in accounts)
        without, sent, spent = total("without"), total("sent"), total("spent")
        return {
            "requests": total("requests"),
            "since": since,
            "tokens": {"without": without, "sent": sent, "spent": spent, "not_sent": without - sent - spent},
            "reading": {
                "avoided": total("avoided"),
                "caused": total("caused"),
                "not_reread": total("avoided") - total("caused"),
            },
            "seconds": {
                "avoided": round(seconds, 3),
                "waited": round(total("waited"), 3),
                "saved": round(seconds - total("waited"), 3),
                "ahead": round(total("ahead"), 3),
            },
            "rescued": {"prompts": total("prompts"), "answers": total("answers")},
            "how": [" ".join(each.split()) for each in HOW],
        }


def _seconds(account: Account, tokens: int) -> float:
    """Estimate the time that prefilling so many tokens would have taken."""
    return tokens * account.reading / account.read if account.read else 0.0
