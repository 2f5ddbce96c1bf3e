"""Tool results wherever they are in a history, and their replacement without touching the text around them.

Clients may ask to leave out old results or reasoning (`edited`). The same history always loses the same, and a longer one
at least as much, so that a backend's cached prefix stays valid.

Forms: messages of role `tool` and `function` (OpenAI API, "Create chat completion"), and in user messages, for
models without tools of their own, the forms of `proxy.core.history.embedded`.
Content is a string or a list of parts, of which each text part is a result of its own.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

from proxy.compaction.shorten import GAPS, line_start, telling_line, without_middle
from proxy.core.history.embedded import (
    IMAGE_OMITTED,
    WrittenResult,
    calls_in,
    replaced,
    results_in,
    texts_of,
    with_parts,
)
from proxy.core.history.turns import Pending, calls_of, is_user
from proxy.core.jsontext import dumps
from proxy.core.request import THOUGHT_FIELDS, Cleared, ClearResults, ClearThoughts, Edit, Message

NOTE = "[Tool result left out"
"""Beginning of every note in place of a result."""
_LONGEST_NOTE = 600
_SHOWN = 90
"""Characters that a note quotes of the result's beginning, and of the line that shows its outcome."""
# A note of 250 characters used to replace a result of 278.
_WORTH = 1.5
"""Smallest ratio of a result's length to that of its note for a note to be worth it."""
_READ = 400
_OUTCOME = 400
"""Characters at a result's end that are searched for the line with its outcome, which stays with all that follows it."""
_LONGEST_NAME = 64
_PROMPT, _COMMON = 4, 2
"""Lines at the end of a result that may be a shell's prompt, and number of results that have to share such a line."""
_UNNAMED = "tool"
KnownCall: TypeAlias = tuple[str, str | None]
"""Name of a tool, and the arguments of a call as JSON, or None if unknown."""
Cost: TypeAlias = Callable[[Sequence[Message]], list[float]]
"""Predicted tokens of each message."""
_TAG = re.compile(r"<[/A-Za-z][^<>\n]*+(?:>|\Z)")


@dataclass(frozen=True, slots=True)
class Result:
    """One tool result: characters `start` to `end` of a message's content, or of the text of one of its parts."""

    index: int
    """Index of the message in the history."""
    part: int | None
    """Index of the part in the content, or None if the content is a string."""
    start: int
    end: int
    text: str
    name: str
    """Name of the tool, at most 64 characters; `tool` if unknown."""
    arguments: str | None
    """Arguments of the call, as JSON in its original form, or None if unknown."""

    @property
    def is_note(self) -> bool:
        """Return whether it is already a note in place of a result."""
        short = len(self.text) <= _LONGEST_NOTE and self.text.endswith("]")
        return short and (self.text.startswith(NOTE) or self.text == IMAGE_OMITTED)

    @property
    def is_long(self) -> bool:
        """Return whether a note in its place would be much shorter."""
        return not self.is_note and _WORTH * len(note_for(self)) < len(self.text)


@dataclass(slots=True)
class _Calls:
    """Calls read so far. Ids may be used again: a result belongs to the newest call with its id."""

    known: dict[str, KnownCall] = field(default_factory=dict)
    written: Pending[KnownCall] = field(default_factory=Pending)
    """Calls of the assistant's last message without a result yet, for results written as text, which have no ids."""

    def read(self, message: Message) -> None:
        self.written = Pending()
        for written in (call for _, text in texts_of(message) for call in calls_in(text)):
            self.written.add(written.name, (written.name, written.arguments))
        for call in calls_of(message):
            if isinstance(function := call.get("function"), dict):
                known = str(function.get("name")), _written(function.get("arguments"))
                self.known[str(call.get("id"))] = known
                self.written.add(known[0], known)

    def answered_by_text(self, result: WrittenResult) -> KnownCall:
        """Take the first open call with the result's name, or simply the first if the result has none."""
        call = self.written.take_first() if result.name is None else self.written.take(result.name)
        name, arguments = call or (result.name or _UNNAMED, None)
        return name[:_LONGEST_NAME], result.arguments or arguments

    def answered_by(self, message: Message) -> KnownCall:
        name = message.get("name")
        known, arguments = self.known.get(str(message.get("tool_call_id")), (_UNNAMED, None))
        self.written.take(known)
        return (name if isinstance(name, str) and name else known)[:_LONGEST_NAME], arguments


def cleaned(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Count the results of a history that are not in another as they were, without those that were notes already."""
    remaining = Counter(result.text.removesuffix(GAPS) for result in results_of(after))
    whole = Counter(result.text.removesuffix(GAPS) for result in results_of(before) if not result.is_note)
    return (whole - remaining).total()


def results_of(messages: Sequence[Message]) -> list[Result]:
    """Find all tool results, in order; takes time linear in the length of the texts."""
    calls = _Calls()
    found: list[Result] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            name, arguments = calls.answered_by(message)
            found += (Result(index, part, 0, len(text), text, name, arguments) for part, text in texts_of(message))
        elif role == "user":
            found += _embedded(index, message, calls)
        elif role == "assistant":
            calls.read(message)
    return found


def by_message(results: Sequence[Result]) -> dict[int, list[Result]]:
    """Results by the index of their message, in order."""
    return {index: list(group) for index, group in groupby(results, key=lambda r: r.index)}


def shell_prompts(results: Iterable[Result]) -> Collection[str]:
    """Return lines at the end of several results: most likely a shell's prompt rather than output of the commands."""
    ends = Counter(line for result in results for line in {*map(str.strip, result.text.split("\n")[-_PROMPT:])})
    return {line for line, times in ends.items() if times >= _COMMON}


def note_for(result: Result, prompts: Collection[str] = ()) -> str:
    """Write the note in place of a result: name, size, first characters, and its error or last line, without tags."""
    # The line with the outcome, because a note with the first 120 characters alone lost the error, which is usually
    # last.
    texts = result.text, telling_line(result.text, prompts)
    began, ended = (" ".join(_TAG.sub(" ", text[:_READ]).split())[:_SHOWN] for text in texts)
    ended = "" if ended in began else f"{ended} "
    return f"{NOTE} to save room: {result.name}, {len(result.text)} characters. It began: {began.rstrip()} … {ended}Call the tool again if you need it.]"


def ends_of(result: Result, prompts: Collection[str] = ()) -> str:
    """Return the beginning and the end of a result, from its outcome on, without a mark, or a note if that is too long."""
    text = result.text.removesuffix(GAPS)
    near = max(0, len(text) - _OUTCOME)
    at = text.rfind(telling_line(text, prompts), near)
    ends = without_middle(text, _SHOWN, line_start(text, near, at) if at >= 0 else len(text) - _SHOWN)
    return (ends if len(ends) <= _LONGEST_NOTE else note_for(result, prompts)) + result.text[len(text) :]


def with_texts(message: Message, changes: Mapping[Result, str]) -> Message:
    """Replace the texts of some results in a message; everything else in it stays."""
    changes = {result: text for result, text in changes.items() if text != result.text}
    if not changes:
        return message
    texts = dict(texts_of(message))
    in_order = sorted(changes, key=lambda r: (r.part or 0, r.start))
    for part, group in groupby(in_order, key=lambda r: r.part):
        texts[part] = replaced(texts[part], [((r.start, r.end), changes[r]) for r in group])
    return with_parts(message, texts)


def _embedded(index: int, message: Message, calls: _Calls) -> Iterator[Result]:
    """Yield results written between marks. Adjacent parts with the same tool name answer one call, as in a tool message.

    An empty part separates results: `proxy.shaping.repair` puts one between messages that it joins.
    """
    before: tuple[int | None, str | None] | None = None
    answer: KnownCall = _UNNAMED, None
    for part, text in texts_of(message):
        if not text.strip():
            before = None
        for found in results_in(text):
            if before is None or before[0] == part or before[1] != found.name:
                answer = calls.answered_by_text(found)
            before = part, found.name
            start, end = found.inside
            yield Result(index, part, start, end, text[start:end], *answer)


def _written(arguments: Any) -> str | None:
    """Return arguments as JSON text: they are a string in OpenAI's form, an object in Ollama's."""
    if isinstance(arguments, str):
        return arguments.strip()
    return dumps(arguments).decode() if isinstance(arguments, dict) else None


def edited(
    messages: Sequence[Message], edits: Sequence[Edit], *, tokens: int, cost: Cost
) -> tuple[list[Message], list[Cleared]]:
    """Apply a client's edits to the history, and return it with a report of what each edit left out.

    The number of messages stays the same, and unchanged messages are the same objects. `tokens` is the size of the whole
    prompt.
    """
    done, cleared = list(messages), list[Cleared]()
    for edit in edits:
        if isinstance(edit, ClearThoughts):
            changed, number = _without_thoughts(done, edit.keep)
        else:
            changed, number = _without_results(done, edit, tokens)
        pairs = [(old, new) for old, new in zip(done, changed, strict=True) if old is not new]
        saved = round(sum(cost([old for old, _ in pairs])) - sum(cost([new for _, new in pairs])))
        if number and saved > 0 and saved >= (edit.at_least if isinstance(edit, ClearResults) else 0):
            done = changed
            cleared.append(Cleared("thoughts" if isinstance(edit, ClearThoughts) else "results", number, saved))
    return done, cleared


def _without_thoughts(messages: Sequence[Message], keep: int) -> tuple[list[Message], int]:
    """Keep reasoning only in the newest `keep` turns, and return how many other turns lost theirs.

    A turn is everything the assistant says between two user messages; only turns with reasoning count.
    """
    done, turns, thinks = list(messages), 0, False
    for index in reversed(range(len(done))):
        message = done[index]
        if message.get("role") == "assistant" and any(map(message.get, THOUGHT_FIELDS)):
            turns, thinks = turns + (not thinks), True
            if turns > keep:
                done[index] = {name: value for name, value in message.items() if name not in THOUGHT_FIELDS}
        elif is_user(message):
            thinks = False
    return done, max(0, turns - keep)


def _without_results(messages: Sequence[Message], edit: ClearResults, tokens: int) -> tuple[list[Message], int]:
    """Put notes in place of old results, and return the number of calls whose results they were."""
    results = results_of(messages)
    # All parts of a tool message are the result of one call.
    uses = {r: (r.index,) if messages[r.index].get("role") == "tool" else (r.index, r.part, r.start) for r in results}
    ordered = list(dict.fromkeys(uses.values()))
    over_tokens = edit.over_tokens is not None and tokens > edit.over_tokens
    over_results = edit.over_results is not None and len(ordered) > edit.over_results
    old = set(ordered[: max(0, len(ordered) - edit.keep)] if over_tokens or over_results else ())
    cleared = [r for r in results if uses[r] in old and r.name not in edit.spared and r.is_long]
    done = list(messages)
    for index, group in by_message(cleared).items():
        done[index] = with_texts(messages[index], {result: note_for(result) for result in group})
        if edit.arguments is True or (edit.arguments and group[0].name in edit.arguments):
            _clear_call(done, index)
    return done, len({uses[result] for result in cleared})


def _clear_call(messages: list[Message], at: int) -> None:
    """Remove the arguments of the call that a tool message answers: the newest one with its id before it."""
    wanted = messages[at].get("tool_call_id")
    for index in reversed(range(at if wanted else 0)):
        calls = calls_of(messages[index])
        if any(call.get("id") == wanted for call in calls):
            bare = [
                {**c, "function": {**c["function"], "arguments": "{}"}} if _is_call(c, wanted) else c for c in calls
            ]
            messages[index] = {**messages[index], "tool_calls": bare}
            return


def _is_call(call: Message, wanted: Any) -> bool:
    return call.get("id") == wanted and isinstance(call.get("function"), dict)
