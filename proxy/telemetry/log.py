"""Log lines about requests: one at the end of each that was not plainly forwarded, and what can't wait until then.

Names and figures, never prompts or keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from typing_extensions import override

from proxy.telemetry import events as e
from proxy.telemetry.journal import Listener
from proxy.telemetry.outcome import Outcome

_log = logging.getLogger("spillway")

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MOST_SAID = 4096
"""Things said once that are remembered; names of models come from clients, so there must be an end."""


class OneLine(logging.Formatter):
    """Keeps a message from beginning a line of its own: names in it come from clients and backends."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record, without a traceback."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class RequestLog:
    """Writes what requests tell to the log; what would repeat itself is said once for each model."""

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()
        self.heard: Mapping[type, Listener] = {
            **dict.fromkeys((e.Finished, e.Failed), self._ended),
            **dict.fromkeys((e.Mended, e.LeftOut), self._told_once),
            **dict.fromkeys((e.WindowLearned, e.WindowDisproved), _of_window),
            e.Refused: _refused,
            e.Cut: _cut_in_silence,
            e.CompactedAhead: _compacted_ahead,
        }
        """What is written, by type of event, and how."""

    def _ended(self, outcome: Outcome, _: e.Finished | e.Failed) -> None:
        level = logging.DEBUG if outcome.plain else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "%s", line(outcome))
        if outcome.malformed_calls:
            _malformed_calls(outcome)
        unknown = outcome.window is None and outcome.tokens_before is not None and outcome.status < 400
        if unknown and self._first("window", outcome):
            _unknown_window(outcome)

    def _told_once(self, outcome: Outcome, event: e.Mended | e.LeftOut) -> None:
        """Each kind once for each model: clients ask alike every time."""
        for kind in event.kinds:
            if not self._first(type(event).__name__, outcome, kind):
                continue
            if isinstance(event, e.Mended):
                _log.warning("%s: a client sends histories that need repair: %s", _where(outcome), kind)
            else:
                _log.info("%s: a client asks for %s, which is left out", _where(outcome), kind)

    def _first(self, what: str, outcome: Outcome, detail: str = "") -> bool:
        key = (what, outcome.backend, outcome.model, detail)
        if key in self._said:
            return False
        if len(self._said) >= _MOST_SAID:
            self._said.clear()
        self._said.add(key)
        return True


def line(outcome: Outcome) -> str:
    """What became of a request, in one line."""
    parts = [f"{outcome.id} {_where(outcome)}: {outcome.status} {outcome.error or outcome.action}"]
    if outcome.conversation:
        parts.append(f"conversation {outcome.conversation}")
    if outcome.compactions:
        parts.append(
            f"{outcome.tokens_before} to {outcome.tokens_after} tokens in {outcome.compaction_seconds:.1f} s"
        )
    elif outcome.tokens_after is not None:
        parts.append(f"{outcome.tokens_after} tokens")
    for count, what in (
        (sum(each.results_cleaned for each in outcome.reduced), "tool results cleaned"),
        (outcome.summaries, "summaries"),
        (outcome.unfit, "of them not fit to be used"),
        (outcome.recalled, "passages recalled"),
        (outcome.left_out, "tokens of the newest message left out"),
        (outcome.searches, "searches"),
        (outcome.leaked_calls, "tool calls read back"),
        (outcome.repeated_calls, "repeated tool calls left out"),
        (outcome.refusals, "refusals"),
        (outcome.pauses, "pauses"),
        (outcome.resumes, "resumes"),
    ):
        if count:
            parts.append(f"{count} {what}")
    if outcome.repeated is not None:
        parts.append(_cache(outcome))
    said = {
        "kept an extract": outcome.summary == "extract",
        "ended for want of room": outcome.unfinished,
        "stopped by who looked": outcome.stopped,
    }
    parts += [words for words, so in said.items() if so]
    first = "" if outcome.first_byte is None else f"first byte after {outcome.first_byte:.2f} s, "
    parts.append(f"{first}{outcome.attempts} attempts, {outcome.seconds:.2f} s")
    return ", ".join(parts)


def _cache(outcome: Outcome) -> str:
    """How much of the prompt was as before, and how much of it the backend had read."""
    reused = "" if outcome.reused is None else f", {outcome.reused} reused"
    return f"{outcome.repeated} tokens repeated{reused}{f' ({outcome.unlike})' if outcome.unlike else ''}"


def ahead_line(outcome: Outcome, event: e.CompactedAhead) -> str:
    """What became of a compaction that nobody waited for, in one line."""
    told = f"{outcome.id} {_where(outcome)}: compacted ahead: {event.became}"
    if event.became == "done":
        told += f", {outcome.tokens_before} to {outcome.tokens_after} tokens in {event.seconds:.1f} s"
    return told


def _malformed_calls(outcome: Outcome) -> None:
    """One line for all of them; what a model merely shows is nothing to worry about."""
    calls = outcome.malformed_calls
    told = ", ".join(dict.fromkeys(f"{call.reason} {call.tool or 'unnamed'} ({call.form})" for call in calls))
    level = logging.INFO if all(call.reason == "example" for call in calls) else logging.WARNING
    _log.log(
        level, "%s %s (%s): tool calls that were not made: %s",
        outcome.id, _where(outcome), calls[0].provider, told,
    )  # fmt: skip


def _unknown_window(outcome: Outcome) -> None:
    _log.error(
        "the context window of model %s on backend %s is not known, so its requests are forwarded as they are; "
        'set SPILLWAY_MODELS=\'{"%s": {"window": TOKENS}}\'',
        outcome.model, outcome.backend, outcome.model,
    )  # fmt: skip


def _of_window(outcome: Outcome, event: e.WindowLearned | e.WindowDisproved) -> None:
    where = _where(outcome)
    if isinstance(event, e.WindowDisproved):
        _log.warning(
            "%s held %d tokens at once: the learned window of %d is given up",
            where, event.tokens, event.window,
        )  # fmt: skip
        return
    _log.warning(
        "%s has a window of %d tokens, by what was seen (%s); believed before: %s",
        where, event.window, event.origin, event.before or "nothing",
    )  # fmt: skip


def _refused(outcome: Outcome, event: e.Refused) -> None:
    if event.what == "overflow":
        _log.warning(
            "%s refused a prompt as too long; its window is %s", _where(outcome), event.window or "not told"
        )
    else:
        _log.warning("%s takes no tools (%s): they are emulated from now on", _where(outcome), event.origin)


def _cut_in_silence(outcome: Outcome, event: e.Cut) -> None:
    _log.warning(
        "%s cut a prompt of about %d tokens to %d without a word",
        _where(outcome), event.expected, event.reported,
    )  # fmt: skip


def _compacted_ahead(outcome: Outcome, event: e.CompactedAhead) -> None:
    _log.info("%s", ahead_line(outcome, event))


def _where(outcome: Outcome) -> str:
    return f"{outcome.backend}/{outcome.model}"
