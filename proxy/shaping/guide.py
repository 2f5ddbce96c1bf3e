"""The guide layer: a project's guide file that a client pastes into its prompt, recognised, and brought within bounds.

Forms, by what the programs send: Claude Code 2.1 (`Contents of …`, in a `<system-reminder>`), Codex 0.169 (`# AGENTS.md instructions for …`,
a user message), opencode 1.18 (`Instructions from: …`), Qwen Code 0.15 and Gemini CLI (`--- Context from: … ---`), both in the system prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from proxy.compaction.policy import BYTES_PER_TOKEN
from proxy.compaction.shorten import water_level
from proxy.core.history.embedded import blocks_in
from proxy.core.history.rules import is_rule
from proxy.core.request import SYSTEM_ROLES, Message, is_text_part

_CODEX = "# AGENTS.md instructions for "
_FORMS = (
    (
        r"^Instructions from: (?P<path>[^\n]{1,400})\n",
        r"\n{1,4}(?=Instructions from: |Skills provide |<available_|<env>)|\Z",
    ),
    (
        r"^Contents of (?P<path>[^\n]{1,400}?)(?: \([^\n]{1,200}\))?:\n\n?",
        r"\n{1,4}(?=Contents of [^\n]{1,600}:\n|# [a-z]+[A-Z]\w{0,40}\n| {0,8}IMPORTANT: this context|</system-reminder>)|\Z",
    ),
    (rf"^{_CODEX}(?P<path>[^\n]{{1,400}})\n\n<INSTRUCTIONS>\n", r"\n{0,4}</INSTRUCTIONS>"),
    (r"^--- Context from: (?P<path>[^\n]{1,400}?) ---\n", r"\n--- End of Context from: [^\n]{0,400}"),
)
"""What opens a guide, and what ends it."""
_COMPILED = [(re.compile(opening, re.MULTILINE), re.compile(closing)) for opening, closing in _FORMS]
_SHORTENED = "[{} of {} lines of this guide are left out here. Read {} where you need them.]"
_LEAST = 600
"""Bytes that are left of a guide: the note that tells how to get the rest takes most of that."""
_LONGEST = 200_000
"""Characters of a guide that are looked at line by line; a longer one keeps its beginning."""
_STRONG = re.compile(r"\b(?:MUST|NEVER|ALWAYS|DO NOT|DON'T|IMPORTANT|CRITICAL)\b")


@dataclass(frozen=True, slots=True)
class Guide:
    """Place of a guide in a text, with and without what opens and ends it."""

    start: int
    begins: int
    ends: int
    over: int
    """Where what closes it ends."""
    path: str


@lru_cache(maxsize=8)
def guides_in(text: str) -> Sequence[Guide]:
    """The guides that a text holds, in order; they do not overlap."""
    found: list[Guide] = []
    openings = [(opening, closing) for form, closing in _COMPILED for opening in form.finditer(text)]
    for opening, closing in sorted(openings, key=lambda each: each[0].start()):
        if found and opening.start() < found[-1].ends:
            continue  # a guide may quote another one's opening
        if (closed := closing.search(text, opening.end())) is not None:
            path = opening["path"] + "/AGENTS.md" * opening.group().startswith(_CODEX)
            found.append(Guide(opening.start(), opening.end(), closed.start(), closed.end(), path))
    return found


def guided(messages: Sequence[Message], tokens: int | None) -> Sequence[Message]:
    """Return the messages with their guides within so many tokens together; None: as they are.

    The same object if nothing changes. Looked at are what the system says, and what a client puts before the first answer in blocks
    of its own, never the user's words. A token counts as four bytes. Applying it again changes nothing.
    """
    if tokens is None:
        return messages
    places = list(_places(messages))
    sizes = [_size(text[guide.begins : guide.ends]) for _, _, text, guides in places for guide in guides]
    room = max(_LEAST, int(water_level(sizes, tokens * BYTES_PER_TOKEN))) if sizes else 0
    if not any(size > room for size in sizes):
        return messages
    changed = list(messages)
    for index, part, text, guides in places:
        pieces, after = [], 0
        for guide in guides:
            pieces += [text[after : guide.begins], _within(text[guide.begins : guide.ends], room, guide.path)]
            after = guide.ends
        content: Any = "".join((*pieces, text[after:]))
        if part is not None:
            parts = list(changed[index]["content"])
            parts[part] = {**parts[part], "text": content}
            content = parts
        changed[index] = {**changed[index], "content": content}
    return changed


def _places(messages: Sequence[Message]) -> Iterator[tuple[int, int | None, str, Sequence[Guide]]]:
    """Texts with guides in them, before the first answer: their message, their part of it, themselves, and the guides.

    In a user's message only those count that stand in a program's block.
    """
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in {*SYSTEM_ROLES, "user"}:
            return
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for at, part in enumerate(parts):
            if not is_text_part(part):
                continue
            text = part["text"]
            guides = guides_in(text)
            if guides and role == "user":
                blocks = [block.span for block in blocks_in(text)]
                guides = [g for g in guides if any(start <= g.start and g.over <= end for start, end in blocks)]
            if guides:
                yield index, at if isinstance(content, list) else None, text, guides


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


@lru_cache(maxsize=16)
def _within(guide: str, room: int, path: str) -> str:
    """A guide in so many bytes: its rules first, then the rest from the beginning, in the old order."""
    if _size(guide) <= room:
        return guide
    lines, total = guide[:_LONGEST].split("\n"), guide.count("\n") + 1
    spare = room - _size(_SHORTENED.format(total, total, path)) - 1
    chosen: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda at: not _demands(lines[at])):
        size = _size(lines[index]) + 1
        if lines[index].strip() and size <= spare:
            chosen.add(index)
            spare -= size
    note = _SHORTENED.format(total - len(chosen), total, path)
    return "\n".join((*(lines[index] for index in sorted(chosen)), note))


def _demands(line: str) -> bool:
    """Return whether a line holds a rule."""
    return _STRONG.search(line) is not None or is_rule(line[:300].lstrip("-*• \t"))
