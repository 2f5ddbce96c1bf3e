"""Log lines about requests: one at the end of each that was not plainly forwarded, and warnings that cannot wait until then.

Lines hold names and figures, never prompts or keys.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.addons.sentence import sentence, unfit_summaries
from proxy.backends.profile import DEMANDS
from proxy.core.errors import printable
from proxy.core.jsontext import dumps
from proxy.outcome import Event, Outcome
from proxy.tokens.cache import Shares

_log = logging.getLogger("spillway")

_MOST_WRITTEN = 4096
"""Most lines remembered as written; clients choose names of models, so their number needs a bound."""
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
"""Warnings by event, or by the `what` of a refusal."""
FIELDS: tuple[tuple[str, str, str | Callable[[Outcome], Any]], ...] = (
    ("event", "`request`, `resumed` (an answer), `ahead` (a compaction in the background) or `malformed` (tool calls)", lambda _: "request"),
    ("id", "`x-request-id`", "id"),
    ("status", "that the client got", "status"), ("error", "code of its error", "error"),
    ("action", "[what was done](traffic.md#what-tells-you)", "action"),
    ("backend", "that answered", "backend"), ("model", "as the backend names it", "model"),
    ("conversation", "digest of the client's name for it", "conversation"), ("before", "prompt tokens before it was shortened", lambda o: o.sent.tokens_before if o.sent.tokens_before != o.sent.tokens_after else None),
    ("tokens", "prompt tokens as it was sent", "tokens_after"),
    ("window", "of the model, in tokens", "window"),
    ("saved", "prompt tokens that were not sent, less what was recalled", "tokens_saved"),
    ("compactions", "times that the history or the answer was shortened", "compactions"), ("compacting", "seconds which that took", "compaction_seconds"),
    ("summary", "`written` by a model, or an `extract` made by code", "summary"),
    ("summaries", "summaries that a model was asked for", "summaries"),
    ("rejected", "those that failed [their check](memory.md#how-summaries-are-checked)", "unfit"),
    ("results", "tool results that were shortened", lambda o: sum(each["results_cleaned"] for each in o.reduced)),
    ("repaired", "what the backend would have refused: two messages of one role in a row (`alternation`), `arguments` that are no JSON, a `developer` message, an `empty_answer`, a `leading_system` or `middle_system` message, `no_user` message, an `orphaned_call` or `orphaned_result`, an answer at the end (`prefill`), missing `reasoning`", lambda o: ",".join(kind for each in o.each("mended") for kind in each["kinds"])),
    ("recalled", "passages brought back", "recalled"),
    ("restored", "messages completed with what the client had left out", "restored"),
    ("left_out", "tokens of the newest message that were not sent", "left_out"),
    ("searches", "searches by the model", "searches"), ("leaked_calls", "tool calls read back from text", "leaked_calls"),
    ("repeated_calls", "tool calls left out because they were made before", "repeated_calls"),
    ("refusals", "requests that the backend refused", "refusals"), ("pauses", "pauses of the answer", "pauses"),
    ("resumes", "resumes of the answer", "resumes"), ("concluded", "times that Spillway ended the model's thinking", "conclusions"),
    ("repeated", "tokens that begin as the prompt before", "repeated"), ("reused", "prompt tokens that the backend had cached", "reused"),
    ("why", "no more is repeated or reused: the `first` prompt, other `tools`, another `system` prompt, `edited` by the client, `shortened` by Spillway, or not cached by the `backend`", "unlike"),
    ("ended", "why the answer ended early: `window`, `answer_windows`, `loop`; `viewer`: it was stopped", lambda o: next((each["reason"] for each in o.each("out_of_room")), "viewer" * bool(o.counts["stopped"]))),
    ("attempts", "requests to the backend", "attempts"),
    ("first_byte", "seconds until the first byte", "first_byte"), ("seconds", "in all", "seconds"),
    ("done", "what was done, in a sentence", sentence),
)  # fmt: skip
"""Fields in a request's line: name, meaning for docs/operations.md, and how the value is read. Fields without a value are left out."""


class OneLine(logging.Formatter):
    """Formats each record as one line: names from clients and backends could otherwise forge lines."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format a record without its traceback."""
        return printable(super().formatMessage(record))


class AsJson(logging.Formatter):
    """Formats a record as a JSON object, with the fields of a request under their own names."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Format a record with its traceback."""
        at, plain = datetime.fromtimestamp(record.created, UTC), {"message": record.getMessage()}
        row = {"time": at.isoformat(timespec="milliseconds"), "level": record.levelname.lower(), "logger": record.name}
        row |= getattr(record, "fields", None) or plain
        return json.dumps(row | ({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}))


def formatter(log_format: str) -> logging.Formatter:
    """Make the formatter of the log: `text` or `json`."""
    return AsJson() if log_format == "json" else OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")


class RequestLog(AddOn):
    """Logs outcomes; a warning that would repeat itself is logged once for each model."""

    def __init__(self) -> None:
        self._written = Shares[tuple[str, ...], bool](_MOST_WRITTEN)

    @override
    def happened(self, outcome: Outcome, event: Event) -> None:
        """Log warnings that cannot wait for the end of the request."""
        name, fields = event.name, event.fields
        if (text := _AT_ONCE.get(fields["what"] if name == "refused" else name)) is not None:
            known = {key: "unknown" if value is None else value for key, value in fields.items()}
            _log.warning("%s", text.format(where=_where(outcome), **known))
        elif name == "resumed":
            _write(logging.INFO, {**_origin(name, outcome), **fields, "gained": max(0, fields["gained"])})
        elif name == "mended":
            for kind in fields["kinds"]:  # once for each kind: a client repeats the same fault with every request
                if self._is_first(name, outcome, kind):
                    _log.warning(
                        "%s: histories of a client are repaired before they are sent: %s", _where(outcome), kind
                    )

    @override
    def ended(self, outcome: Outcome) -> None:
        """Log the line of a request, or of a compaction ahead of one."""
        unfit = unfit_summaries(reversed([*outcome.each("summarised")])) if outcome.shortened.unfit else ""
        if unfit and self._is_first("summaries", outcome):
            _log.warning("%s", unfit)
        if outcome.cause is not None:
            for fields in outcome.each("compacted_ahead"):
                gain = {"before": outcome.sent.tokens_before, "tokens": outcome.sent.tokens_after}
                _write(
                    logging.INFO, {**_origin("ahead", outcome), **fields} | (gain if fields["became"] == "done" else {})
                )
            return
        if _log.isEnabledFor(level := logging.DEBUG if _is_plain(outcome) else logging.INFO):
            figures = outcome.figures()
            _write(level, {n: figures[read] if isinstance(read, str) else read(outcome) for n, _, read in FIELDS})
        if calls := outcome.malformed_calls:
            faults = dict.fromkeys(f"{call['reason']} {call['tool'] or 'unnamed'} ({call['form']})" for call in calls)
            _write(logging.WARNING, {**_origin("malformed", outcome), "calls": ", ".join(faults)})
        unknown = outcome.sent.window is None and outcome.sent.tokens_before is not None and outcome.status < 400
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


def _is_plain(outcome: Outcome) -> bool:
    """Return whether the request and its answer were passed on unchanged, and nothing else happened."""
    odd = outcome.counts.keys() & {"refused", "out_of_room", "stopped"} or outcome.mended_calls or outcome.handled
    return outcome.action in ("forwarded", "passed") and not odd and outcome.error is None and outcome.status < 400


def _origin(event: str, outcome: Outcome) -> dict[str, Any]:
    return {"event": event, "id": outcome.id, "backend": outcome.backend, "model": outcome.model}


def _write(level: int, fields: dict[str, Any]) -> None:
    """Log the fields that have a value as `name=value`, quoted as in JSON if the value contains a space, `"` or `=`."""
    shown = {n: round(each, 2) if isinstance(each, float) else each for n, each in fields.items() if each}
    values = (f"{each}" if set(f"{each}").isdisjoint(' "=') else dumps(each).decode() for each in shown.values())
    _log.log(level, "%s", " ".join(map("=".join, zip(shown, values, strict=True))), extra={"fields": shown})


def _where(outcome: Outcome) -> str:
    return f"{outcome.backend}/{outcome.model}" if outcome.model else outcome.backend
