"""Log lines about requests: one at the end of each that was not plainly forwarded, and what can't wait until then.

Names and figures, never prompts or keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.telemetry.events import Event
from proxy.telemetry.outcome import Outcome

_log = logging.getLogger("spillway")

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MOST_WRITTEN = 4096
"""Lines written once that are remembered; names of models come from clients, so there must be an end."""


class OneLine(logging.Formatter):
    """Keeps a message from beginning a line of its own: names in it come from clients and backends."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record, without a traceback."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class RequestLog(AddOn):
    """Writes what outcomes say to the log; what would repeat itself is written once for each model."""

    def __init__(self) -> None:
        self._written: set[tuple[str, ...]] = set()

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Write what can't wait for the end of the request."""
        if (written := _AT_ONCE.get(event.name)) is not None:
            written(_where(outcome), event.fields)
        elif (once := _ONCE.get(event.name)) is not None:
            level, text = once
            for kind in event.fields["kinds"]:  # clients send the same every time
                if self._first(event.name, outcome, kind):
                    _log.log(level, text, _where(outcome), kind)

    @override
    def ended(self, outcome: Outcome) -> None:
        """Write the line of a request, or of a compaction ahead of one."""
        if outcome.cause is not None:
            for fields in outcome.each("compacted_ahead"):
                _log.info("%s", ahead_line(outcome, fields["became"], fields["seconds"]))
            return
        level = logging.DEBUG if outcome.plain else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "%s", line(outcome))
        if outcome.malformed_calls:
            _malformed_calls(outcome)
        unknown = outcome.window is None and outcome.tokens_before is not None and outcome.status < 400
        if unknown and self._first("window", outcome):
            _unknown_window(outcome)

    def _first(self, what: str, outcome: Outcome, detail: str = "") -> bool:
        key = (what, outcome.backend, outcome.model, detail)
        if key in self._written:
            return False
        if len(self._written) >= _MOST_WRITTEN:
            self._written.clear()
        self._written.add(key)
        return True


def line(outcome: Outcome) -> str:
    """Format the outcome of a request as one line."""
    parts = [f"{outcome.id} {_where(outcome)}: {outcome.status} {outcome.error or outcome.action}"]
    if outcome.conversation:
        parts.append(f"conversation {outcome.conversation}")
    if outcome.compactions:
        parts.append(f"{outcome.tokens_before} to {outcome.tokens_after} tokens in {outcome.compaction_seconds:.1f} s")
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
    flags = {
        "kept an extract": outcome.summary == "extract",
        "ended for want of room": outcome.unfinished,
        "stopped by who looked": outcome.stopped,
    }
    parts += [words for words, so in flags.items() if so]
    first = "" if outcome.first_byte is None else f"first byte after {outcome.first_byte:.2f} s, "
    parts.append(f"{first}{outcome.attempts} attempts, {outcome.seconds:.2f} s")
    return ", ".join(parts)


def _cache(outcome: Outcome) -> str:
    """Format how much of the prompt was unchanged, and how much of it the backend took from its cache."""
    reused = "" if outcome.reused is None else f", {outcome.reused} reused"
    return f"{outcome.repeated} tokens repeated{reused}{f' ({outcome.unlike})' if outcome.unlike else ''}"


def ahead_line(outcome: Outcome, became: str, seconds: float) -> str:
    """Result of a compaction between two turns, in one line."""
    text = f"{outcome.id} {_where(outcome)}: compacted ahead: {became}"
    if became == "done":
        text += f", {outcome.tokens_before} to {outcome.tokens_after} tokens in {seconds:.1f} s"
    return text


def _malformed_calls(outcome: Outcome) -> None:
    """One line for all of them; what a model merely shows is nothing to worry about."""
    calls = outcome.malformed_calls
    text = ", ".join(dict.fromkeys(f"{call.reason} {call.tool or 'unnamed'} ({call.form})" for call in calls))
    level = logging.INFO if all(call.reason == "example" for call in calls) else logging.WARNING
    _log.log(
        level, "%s %s (%s): tool calls that were not made: %s",
        outcome.id, _where(outcome), calls[0].provider, text,
    )  # fmt: skip


def _unknown_window(outcome: Outcome) -> None:
    _log.error(
        "the context window of model %s on backend %s is not known, so its requests are forwarded as they are; "
        'set SPILLWAY_MODELS=\'{"%s": {"window": TOKENS}}\'',
        outcome.model, outcome.backend, outcome.model,
    )  # fmt: skip


def _refused(where: str, fields: Mapping[str, Any]) -> None:
    if fields["what"] == "overflow":
        _log.warning("%s refused a prompt as too long; its window is %s", where, fields["window"] or "not told")
    else:
        _log.warning("%s takes no tools (%s): they are emulated from now on", where, fields["origin"])


def _window_learned(where: str, fields: Mapping[str, Any]) -> None:
    _log.warning(
        "%s has a window of %d tokens, by what was seen (%s); believed before: %s",
        where, fields["window"], fields["origin"], fields["before"] or "nothing",
    )  # fmt: skip


def _window_disproved(where: str, fields: Mapping[str, Any]) -> None:
    _log.warning(
        "%s held %d tokens at once: the learned window of %d is given up",
        where, fields["tokens"], fields["window"],
    )  # fmt: skip


def _cut_in_silence(where: str, fields: Mapping[str, Any]) -> None:
    _log.warning(
        "%s cut a prompt of about %d tokens to %d without a word", where, fields["expected"], fields["reported"]
    )


_AT_ONCE: Mapping[str, Callable[[str, Mapping[str, Any]], None]] = {
    "refused": _refused,
    "window_learned": _window_learned,
    "window_disproved": _window_disproved,
    "cut": _cut_in_silence,
}
_ONCE = {
    "mended": (logging.WARNING, "%s: a client sends histories that need repair: %s"),
    "left_out": (logging.INFO, "%s: a client asks for %s, which is left out"),
}


def _where(outcome: Outcome) -> str:
    return f"{outcome.backend}/{outcome.model}"
