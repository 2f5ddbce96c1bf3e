"""Tool results wherever they stand in a history, and their replacement without touching what is around them.

Forms: messages of role `tool` and `function` (OpenAI API, "Create chat completion"), and in user messages, for
models without tools of their own, the forms of `proxy.core.history.embedded`.
Content is a string or a list of parts, of which each text part is a result of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from proxy.core.history.embedded import WrittenResult, calls_in, results_in, texts_of
from proxy.core.history.turns import RESULT_ROLES, Pending, calls_of, is_result
from proxy.core.jsontext import dumps
from proxy.core.request import Message

NOTE = "[Tool result left out"
"""How every note begins that stands in place of a result."""
NOTE_START = f"{NOTE} to save room: "
_LONGEST_NOTE = 600
_SHOWN = 120
_LONGEST_NAME = 64
_UNNAMED = "tool"
_TAG = re.compile(r"<[/A-Za-z][^<>\n]*+(?:>|\Z)")


@dataclass(frozen=True, slots=True)
class Result:
    """One tool result: characters `start` to `end` of a message's content, or of the text of one of its parts."""

    index: int
    """Of the message in the history."""
    part: int | None
    """Of the part in the content; None if the content is a string."""
    start: int
    end: int
    text: str
    name: str
    """Of the tool, as far as it is known, at most 64 characters; else `tool`."""
    arguments: str | None
    """The JSON of the call, as it was written; None if it is not known."""

    @property
    def is_note(self) -> bool:
        """Return whether a note stands in its place already."""
        return self.text.startswith(NOTE) and self.text.endswith("]") and len(self.text) <= _LONGEST_NOTE


@dataclass(slots=True)
class _Calls:
    """The calls so far. Ids and names may be used again: the newest call is the one that is answered."""

    known: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    written: Pending[tuple[str, str]] = field(default_factory=Pending)
    """Those that the assistant wrote last as text and that have no result yet: results as text have no ids."""

    def read(self, message: Message) -> None:
        self.written = Pending()
        for call in (call for _, text in texts_of(message) for call in calls_in(text)):
            self.written.add(call.name, (call.name, call.arguments))
        for tool_call in calls_of(message):
            self._add(f"id {tool_call.get('id')}", tool_call.get("function"))
        function = message.get("function_call")
        if isinstance(function, dict):
            self._add(f"name {function.get('name')}", function)

    def _add(self, key: str, function: Any) -> None:
        if isinstance(function, dict):
            arguments = function.get("arguments")
            self.known[key] = (str(function.get("name")), _written(arguments))

    def answered_by_text(self, result: WrittenResult) -> tuple[str, str | None]:
        """The first open call of that name; of any name if the result has none."""
        call = self.written.take_first() if result.name is None else self.written.take(result.name)
        name, arguments = call or (result.name or _UNNAMED, None)
        return name[:_LONGEST_NAME], result.arguments or arguments

    def answered_by(self, message: Message) -> tuple[str, str | None]:
        name = message.get("name")
        key = f"name {name}" if message.get("role") == "function" else f"id {message.get('tool_call_id')}"
        known, arguments = self.known.get(key, (_UNNAMED, None))
        return (name if isinstance(name, str) and name else known)[:_LONGEST_NAME], arguments


def cleaned(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Count the results of a history that are not in another as they were, without those that were notes already."""
    remaining = Counter(result.text for result in results_of(after))
    return (Counter(result.text for result in results_of(before) if not result.is_note) - remaining).total()


def results_of(messages: Sequence[Message]) -> list[Result]:
    """All tool results in the order in which they stand; in time linear in the length of the texts."""
    calls = _Calls()
    found: list[Result] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role in RESULT_ROLES:
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


def note_for(result: Result) -> str:
    """Note in place of a result that is left out: name, size and first characters, without the tags that those open."""
    began = " ".join(_TAG.sub(" ", result.text[: _SHOWN * 4]).split())[:_SHOWN].rstrip()
    return f"{NOTE_START}{result.name}, {len(result.text)} characters. It began: {began} … Call the tool again if you need it.]"


def unread_from(messages: Sequence[Message]) -> int:
    """Index from which on there are only results: the model's next reading, which it has not seen yet."""
    end = len(messages)
    while end > 0 and is_result(messages[end - 1]):
        end -= 1
    return end


def with_texts(message: Message, changes: Mapping[Result, str]) -> Message:
    """The message with other texts in place of some of its own results; everything else in it stays."""
    if not changes:
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _spliced(content, changes)}
    parts = list(content or ())
    for at, group in groupby(sorted(changes, key=lambda r: r.part or 0), key=lambda r: r.part or 0):
        parts[at] = {**parts[at], "text": _spliced(parts[at]["text"], {r: changes[r] for r in group})}
    return {**message, "content": parts}


def _spliced(text: str, changes: Mapping[Result, str]) -> str:
    pieces: list[str] = []
    after = 0
    for result in sorted(changes, key=lambda r: r.start):
        pieces += (text[after : result.start], changes[result])
        after = result.end
    return "".join((*pieces, text[after:]))


def _embedded(index: int, message: Message, calls: _Calls) -> Iterator[Result]:
    """Results between marks. Several parts in a row are one result, like those of a tool, if the tool is the same.

    What `proxy.shaping.repair` joins has an empty part in between.
    """
    before: tuple[int | None, str | None] | None = None
    answer: tuple[str, str | None] = _UNNAMED, None
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
    """Arguments as text: a string in OpenAI's form, an object in Ollama's."""
    if isinstance(arguments, str):
        return arguments.strip()
    return dumps(arguments).decode() if isinstance(arguments, dict) else None
