"""Log lines about requests: one at the end of each that was not plainly forwarded, and what can't wait until then.

Names and figures, never prompts or keys.
"""

import logging

from typing_extensions import override

from proxy.addon import AddOn
from proxy.backends.profile import DEMANDS
from proxy.core.errors import plural, printable
from proxy.outcome import ANSWER_RUNGS, Event, Outcome
from proxy.tokens.cache import Shares

_log = logging.getLogger("spillway")

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MOST_WRITTEN = 4096
"""Lines written once that are remembered; names of models come from clients, so there must be an end."""
_AT_ONCE: dict[str, str] = {
    "overflow": "{where} refused a prompt as too long; its window is {window}",
    "tools": "{where} takes no tools ({origin}): they are emulated from now on",
    "streams": "{where} does not stream ({origin}): its answers are asked for in one body from now on",
    "thinks": "{where} can't limit thinking ({origin}): Spillway ends it from now on",
    **{rule: f"{{where}} wants {words} ({{origin}}): it gets that from now on" for rule, words in DEMANDS.items()},
    "afforded": "{where} has credit for an answer of {tokens} tokens, which was asked for in place of a longer one",
    "window_learned": "{where} has a window of {window} tokens, learned from {origin}; before: {before}",
    "window_disproved": "{where} held {tokens} tokens at once: the learned window of {window} is discarded",
    "restarted": "{where} restarted its answer ({reason}) when it was asked to continue ({how})",
    "cut": "{where} silently cut a prompt of about {expected} tokens to {reported}",
}
"""Warnings by event, and by the `what` of a refusal."""
_COUNTS = {
    "summaries": ("summary",),
    "unfit": ("summary", " rejected"),
    "recalled": ("passage", " recalled"),
    "restored": ("message", " completed"),
    "left_out": ("token", " of the newest message left out"),
    "searches": ("search",),
    "leaked_calls": ("tool call", " read back"),
    "repeated_calls": ("repeated tool call", " left out"),
    "refusals": ("refusal",),
    "pauses": ("pause",),
    "resumes": ("resume",),
    "conclusions": ("thought", " ended"),
}
"""What the line of a request counts, by the outcome's field."""


class OneLine(logging.Formatter):
    """Keeps a message from beginning a line of its own: names in it come from clients and backends."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format a record without its traceback."""
        return printable(super().formatMessage(record))


class RequestLog(AddOn):
    """Writes what outcomes say to the log; what would repeat itself is written once for each model."""

    def __init__(self) -> None:
        self._written = Shares[tuple[str, ...], bool](_MOST_WRITTEN)

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Write what can't wait for the end of the request."""
        name, fields = event.name, event.fields
        if (text := _AT_ONCE.get(fields["what"] if name == "refused" else name)) is not None:
            known = {key: "unknown" if value is None else value for key, value in fields.items()}
            _log.warning("%s", text.format(where=_where(outcome), **known))
        elif name == "resumed":
            form = "%s %s: answer resumed (%s, by %s), %s of room gained"
            gained = plural(max(0, fields["gained"]), "token")
            _log.info(form, outcome.id, _where(outcome), fields["reason"], fields["how"], gained)
        elif name == "mended":
            for kind in fields["kinds"]:  # clients send the same every time
                if self._is_first(name, outcome, kind):
                    _log.warning(
                        "%s: histories of a client are repaired before they are sent: %s", _where(outcome), kind
                    )

    @override
    def ended(self, outcome: Outcome) -> None:
        """Write the line of a request, or of a compaction ahead of one."""
        if outcome.cause is not None:
            for fields in outcome.each("compacted_ahead"):
                before, after, seconds = outcome.tokens_before, outcome.tokens_after, fields["seconds"]
                gain = f", {before} to {after} tokens in {seconds:.1f} s" if fields["became"] == "done" else ""
                _log.info("%s %s: compacted ahead: %s%s", outcome.id, _where(outcome), fields["became"], gain)
            return
        if _log.isEnabledFor(level := logging.DEBUG if outcome.plain else logging.INFO):
            _log.log(level, "%s", line(outcome))
        if calls := outcome.malformed_calls:
            faults = dict.fromkeys(f"{call['reason']} {call['tool'] or 'unnamed'} ({call['form']})" for call in calls)
            place = f"{outcome.id} {_where(outcome)} ({calls[0]['provider']})"
            _log.warning("%s: malformed tool calls: %s", place, ", ".join(faults))
        unknown = outcome.window is None and outcome.tokens_before is not None and outcome.status < 400
        if unknown and self._is_first("window", outcome):
            _log.error(
                "the context window of model %s on backend %s is unknown, so its requests are forwarded unchanged; "
                'set SPILLWAY_MODELS=\'{"%s": {"window": TOKENS}}\'',
                outcome.model, outcome.backend, outcome.model,
            )  # fmt: skip

    def _is_first(self, what: str, outcome: Outcome, detail: str = "") -> bool:
        key = (what, outcome.backend, outcome.model, detail)
        if self._written.get(key):
            return False
        self._written.put(key, True)
        return True


def line(outcome: Outcome) -> str:
    """Format the outcome of a request as one line."""
    where = f" {_where(outcome)}" if outcome.backend else ""
    parts = [f"{outcome.id}{where}: {outcome.status} {outcome.error or outcome.action}"]
    if outcome.conversation:
        parts.append(f"conversation {outcome.conversation}")
    if outcome.tokens_after is not None:
        changed = outcome.compactions and outcome.rungs != ANSWER_RUNGS
        parts.append((f"{outcome.tokens_before} to " if changed else "") + plural(outcome.tokens_after, "token"))
    if outcome.compactions:
        parts.append(
            f"{plural(outcome.compactions, 'compaction')} in {outcome.compaction_seconds:.1f} s, {plural(outcome.saved, 'token')} saved"
        )
    if cleaned := sum(each["results_cleaned"] for each in outcome.reduced):
        parts.append(plural(cleaned, "tool result", " shortened"))
    parts += [plural(count, *what) for name, what in _COUNTS.items() if (count := getattr(outcome, name))]
    if outcome.repeated is not None:
        reused = "" if outcome.reused is None else f", {outcome.reused} reused"
        why = f" ({outcome.unlike})" if outcome.unlike else ""
        parts.append(f"{plural(outcome.repeated, 'token')} repeated{reused}{why}")
    reasons = {each["reason"] for each in outcome.each("out_of_room")}
    flags = {
        "extract in place of a summary": outcome.summary == "extract",
        "ended because no room was left": outcome.unfinished and reasons <= {"window"},
        "ended for its length": "answer_windows" in reasons,
        "ended because it repeated itself": "loop" in reasons,
        "stopped by a viewer": outcome.stopped,
    }
    parts += [words for words, holds in flags.items() if holds]
    first = "" if outcome.first_byte is None else f"first byte after {outcome.first_byte:.2f} s, "
    parts.append(f"{first}{plural(outcome.attempts, 'attempt')}, {outcome.seconds:.2f} s")
    return ", ".join(parts)


def _where(outcome: Outcome) -> str:
    return f"{outcome.backend}/{outcome.model}" if outcome.model else outcome.backend
