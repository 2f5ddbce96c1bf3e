"""Sentences that say what was done with a request: the same in the log, in the terminal and on the page."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proxy.core.errors import plural
from proxy.outcome import ANSWER_RUNGS, Outcome

_VERBS = {"pruned": "Shortened", "compacted": "Compacted", "trimmed": "Trimmed", "read": "Read in parts"}
_CHANGED = {
    "tools": "shorter tools", "on_demand": "tools on demand", "system": "another system prompt",
    "guide": "a shorter guide to tools", "results": "shorter tool results",
}  # fmt: skip
"""Words for the policy's changes, by kind of part."""
_RUNGS = {
    "duplicates": "duplicates dropped", "oversize": "long messages cut", "trim": "oldest turns dropped",
    "taken over": "compacted by another request",
}  # fmt: skip
_WOULD = {
    "forwarded": "nothing to do", "shaped": "Spillway would have changed it", "moved": "Spillway would have sent it to a larger window",
    "continued": "Spillway would have sent it with what it shortened before", "compacted": "Spillway would have shortened it before sending",
    "paused": "Spillway would have paused and continued the answer",
}  # fmt: skip
_LOST = {
    "": "", "refused": "the backend refused it as too long", "cut": "the backend silently cut it",
    "ended": "the answer ended with the window",
}  # fmt: skip
_UNFIT = {
    "failed": "the backend gave no answer", "empty": "they are empty", "refusal": "the model refuses",
    "loop": "they repeat themselves", "cut": "they are cut off", "language": "they are in another language",
    "copy": "they copy the conversation", "gaps": "names, numbers or dates are missing",
}  # fmt: skip
"""Why summaries are not used, by the verdict of their check."""


def sentence(outcome: Outcome) -> str:
    """Say what was done with a request, so far if it is still running."""
    return " ".join((_sent(outcome), *(f"{each}." for each in _besides(outcome))))


def unfit_summaries(summarised: Iterable[Mapping[str, Any]]) -> str:
    """Say which model's summaries fail, why, and what to set; empty unless the first event, the newest, is a failed summary."""
    newest = next(iter(summarised), {})
    if (why := _UNFIT.get(newest.get("verdict", ""))) is None:
        return ""
    cure = "Set SPILLWAY_SUMMARY_MODEL to another model, or SPILLWAY_STRATEGY=mask to ask for none."
    return f"Summaries by {newest['model']} are not used: {why}. Extracts made by code replace them. {cure}"


def _sent(outcome: Outcome) -> str:
    """Say in which form the prompt was sent."""
    sent, done = outcome.sent, outcome.shortened
    if outcome.action == "passed" and outcome.counts["sent"]:
        return "Passed through."
    before, after, window = sent.tokens_before or 0, sent.tokens_after or 0, sent.window
    fills = [f"{100 * tokens / window:.0f} %" if window else "" for tokens in (before, after)]
    for observed in outcome.each("observed"):
        said = (f"{fills[1]} full", _WOULD[observed["would"]], _LOST[observed["lost"]])
        return f"Observed: {', '.join(filter(None, said))}."
    if done.kind and done.rungs != ANSWER_RUNGS:
        first = next((event.name for event in outcome.events if event.name in ("paused", "compacted")), "")
        when = "at a pause" if first == "paused" else "before sending" if outcome.counts["sent"] else "on demand"
        took = f"{done.compaction_seconds:.1f} s" if done.compaction_seconds >= 0.05 else ""
        phrases = [*_reductions(outcome), " → ".join(filter(None, fills)), took]
        return f"{_VERBS[done.kind]} {when}: {', '.join(filter(None, phrases))}."
    if not outcome.counts["sent"]:
        command = next((f"Answered {each['command']}." for each in outcome.each("commanded")), "Not sent.")
        return "Nothing to compact." if any(outcome.each("compacted_on_demand")) else command
    if outcome.error and outcome.first_byte is None and outcome.counts["backend_failed"]:
        return "Not answered by the backend."
    how = " with " + " and ".join(_changes(outcome)) if sent.sent_as != "forwarded" else " unchanged"
    how = f" to {outcome.model} for its larger window" if sent.sent_as == "moved" else how
    return f"Sent{how}{f', {fills[1]} full' if fills[1] else ''}."


def _changes(outcome: Outcome) -> list[str]:
    """List the differences between the prompt and the client's request, where nothing was shortened for this request."""
    sent, summary = outcome.sent, outcome.shortened.summary
    which = {"written": "a summary of {}", "extract": "an extract of {}", "": "{} shortened before"}[summary]
    changes = [which.format(plural(sent.covered, "message"))] if sent.covered else []
    changes += [words for kind, words in _CHANGED.items() if sent.shaped.get(kind)]
    changes += [plural(each["pins"], "pin") for each in [*outcome.each("pinned")][-1:]]
    changes += ["tools as text"] if sent.tools else []
    changes += ["a repaired history"] if any(outcome.each("mended")) else []
    return changes or ["changes that the model needs"]


def _reductions(outcome: Outcome) -> Iterator[str]:
    """Yield phrases for the steps that made room."""
    first, rungs = outcome.reduced[0], outcome.shortened.rungs
    if not {"cap", "mask", "unread"}.isdisjoint(rungs):
        cleaned = first["results_cleaned"]
        yield plural(cleaned, "tool result", " shortened") if cleaned else "tool results shortened"
    if not {"summarise", "extract"}.isdisjoint(rungs):
        gone = first["messages_before"] - first["messages_after"] + 1
        written = outcome.shortened.summary != "extract" and "summarise" in rungs
        yield f"{plural(gone, 'message') if gone > 1 else 'messages'} became {'a summary' if written else 'an extract'}"
    yield from (words for rung, words in _RUNGS.items() if rung in rungs)


def _besides(outcome: Outcome) -> Iterator[str]:
    """Yield sentences, without their full stops, on everything else that was done or happened."""

    def total(event: str, field: str) -> int:
        return sum(fields[field] or 0 for fields in outcome.each(event))

    sent, counts, listed = outcome.sent, outcome.counts, [*outcome.each("tools_on_demand")][-1:]
    reasons = {"answer_windows": "it filled too many windows", "loop": "it repeated itself"}
    ended = [reasons.get(each["reason"], "no room was left") for each in outcome.each("out_of_room")]
    resumed = f"resumed {_times(counts['resumed'])}" if counts["resumed"] else "not resumed"
    for number, words in (
        (sent.restored, plural(sent.restored, "message", " completed with what the client had left out")),
        (window := total("window_requested", "tokens"), f"Loaded with a window of {window:,} tokens"),
        *((each["of"], f"{each['sent']} of {plural(each['of'], 'tool')} sent in full") for each in listed),
        (cached := total("slot_restored", "tokens"), f"{cached:,} tokens restored from disk"),
        (archived := total("archived", "messages"), plural(archived, "message", " archived")),
        (signs := total("kept_waiting", "signs"), plural(signs, "heartbeat", " sent while the client waited")),
        (sent.recalled, plural(sent.recalled, "passage", " recalled")),
        (sent.left_out, f"{sent.left_out:,} tokens of a message left out"),
        (counts["concluded"], f"Thinking ended {_times(counts['concluded'])} for an answer"),
        (counts["paused"], f"Paused {_times(counts['paused'])} to compact while answering, {resumed}"),
        (bool(ended), f"Ended early: {''.join(ended)}"),
        (counts["stopped"], "Stopped by a viewer"),
        (outcome.error == "client_left", "The client left"),
    ):
        if number:
            yield words


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
