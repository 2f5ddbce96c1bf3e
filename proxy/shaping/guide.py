"""The guide layer: a project's guide file that a client pastes into its prompt, recognised, and brought within bounds.

Forms, by what the programs send: Claude Code 2.1 (`Contents of …`, in a `<system-reminder>`), Codex 0.169 (`# AGENTS.md instructions for …`,
a user message), opencode 1.18 (`Instructions from: …`), Qwen Code 0.15 and Gemini CLI (`--- Context from: … ---`), both in the system prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from proxy.compaction.middles import water_level
from proxy.compaction.policy import BYTES_PER_TOKEN
from proxy.core.history.embedded import blocks_in
from proxy.core.history.rules import is_rule
from proxy.core.request import SYSTEM_ROLES, Message, is_text_part

_CODEX = "# AGENTS.md instructions for "
_FORMS: tuple[tuple[re.Pattern[str], re.Pattern[str], bool], ...] = (
    (
        re.compile(r"^Instructions from: (?P<path>[^\n]{1,400})\n", re.MULTILINE),
        re.compile(r"\n{1,4}(?=Instructions from: |Skills provide |<available_|<env>)"),
        True,
    ),
    (
        re.compile(r"^Contents of (?P<path>[^\n]{1,400}?)(?: \([^\n]{1,200}\))?:\n\n?", re.MULTILINE),
        re.compile(
            r"\n{1,4}(?=Contents of [^\n]{1,600}:\n|# [a-z]+[A-Z]\w{0,40}\n| {0,8}IMPORTANT: this context|</system-reminder>)"
        ),
        True,
    ),
    (
        re.compile(rf"^{_CODEX}(?P<path>[^\n]{{1,400}})\n\n<INSTRUCTIONS>\n", re.MULTILINE),
        re.compile(r"\n{0,4}</INSTRUCTIONS>"),
        False,
    ),
    (
        re.compile(r"^--- Context from: (?P<path>[^\n]{1,400}?) ---\n", re.MULTILINE),
        re.compile(r"\n--- End of Context from: [^\n]{0,400}"),
        False,
    ),
)
"""What opens a guide, what ends it, and whether the end of the text does, too."""
_OPENINGS = ("Instructions from: ", "Contents of ", _CODEX, "--- Context from: ")
_SHORTENED = "[{} of {} lines of this guide are left out here. Read {} where you need them.]"
_LEAST = 600
"""Bytes that are left of a guide: the note that tells how to get the rest takes most of that."""
_LONGEST = 200_000
"""Characters of a guide that are looked at line by line; a longer one keeps its beginning."""
_STRONG = re.compile(r"\b(?:MUST|NEVER|ALWAYS|DO NOT|DON'T|IMPORTANT|CRITICAL)\b")
_HEADING = re.compile(r"^#{1,6} ")
_COMMAND = re.compile(r"^\s*(?:[-*] )?.{0,60}`[^`]+`|^\s*\$ ")
_FENCE = re.compile(r"^\s*(?:```|~~~)")


@dataclass(frozen=True, slots=True)
class Guide:
    """Place of a guide in a text, with and without what opens and ends it."""

    start: int
    begins: int
    ends: int
    over: int
    """Where what closes it ends."""
    path: str


def guides_in(text: str) -> Sequence[Guide]:
    """The guides that a text holds, in order; they do not overlap."""
    return _found(text) if any(opening in text for opening in _OPENINGS) else ()


@lru_cache(maxsize=8)
def _found(text: str) -> Sequence[Guide]:
    found: list[Guide] = []
    openings = sorted(
        ((opening, closing, loose) for form, closing, loose in _FORMS for opening in form.finditer(text)),
        key=lambda each: each[0].start(),
    )
    for opening, closing, loose in openings:
        if found and opening.start() < found[-1].ends:
            continue  # a guide may quote another one's opening
        closed = closing.search(text, opening.end())
        if closed is not None or loose:
            ends, over = (len(text),) * 2 if closed is None else closed.span()
            path = opening["path"] + "/AGENTS.md" * opening.group().startswith(_CODEX)
            found.append(Guide(opening.start(), opening.end(), max(ends, opening.end()), over, path))
    return found


def guided(messages: Sequence[Message], tokens: int | None) -> Sequence[Message]:
    """Return the messages with their guides within so many tokens together; None: as they are.

    The same object if nothing changes. Looked at are what the system says, and what a client puts before the first answer in blocks
    of its own, never the user's words. A token counts as four bytes. Applying it again changes nothing.
    """
    if tokens is None:
        return messages
    texts = list(_places(messages))
    guides = [text[guide.begins : guide.ends] for _, _, text, found in texts for guide in found]
    if not guides:
        return messages
    level = water_level([_size(guide) for guide in guides], tokens * BYTES_PER_TOKEN)
    room = max(_LEAST, int(level))
    paths = [guide.path for _, _, _, found in texts for guide in found]
    instead = [_within(guide, room, path) for guide, path in zip(guides, paths, strict=True)]
    if instead == guides:
        return messages
    changed, shortened = list(messages), iter(instead)
    for index, part, text, found in texts:
        changed[index] = _with_text(changed[index], part, _replaced(text, found, shortened))
    return changed


def _places(messages: Sequence[Message]) -> Iterator[tuple[int, int | None, str, Sequence[Guide]]]:
    """Texts with guides in them, before the first answer: their message, their part of it, themselves, and the guides."""
    for index, message in enumerate(messages):
        if message.get("role") not in {*SYSTEM_ROLES, "user"}:
            return
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        for at, part in enumerate(parts):
            if is_text_part(part) and (guides := _guides(part["text"], users=message["role"] == "user")):
                yield index, at if isinstance(content, list) else None, part["text"], guides


def _guides(text: str, *, users: bool) -> Sequence[Guide]:
    """Guides that may be touched: in a user's message those that stand in a program's block."""
    guides = guides_in(text)
    if not users or not guides:
        return guides
    blocks = [block.span for block in blocks_in(text)]
    return [g for g in guides if any(start <= g.start and g.over <= end for start, end in blocks)]


def _replaced(text: str, guides: Sequence[Guide], instead: Iterator[str]) -> str:
    pieces, after = [], 0
    for guide in guides:
        pieces += [text[after : guide.begins], next(instead)]
        after = guide.ends
    return "".join((*pieces, text[after:]))


def _with_text(message: Message, part: int | None, text: str) -> Message:
    if part is None:
        return {**message, "content": text}
    parts = list(message["content"])
    parts[part] = {**parts[part], "text": text}
    return {**message, "content": parts}


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


@lru_cache(maxsize=16)
def _within(guide: str, room: int, path: str) -> str:
    """A guide in so many bytes: its rules first, then its commands, then the rest from the beginning, in the old order."""
    if _size(guide) <= room:
        return guide
    lines, total = guide[:_LONGEST].split("\n"), guide.count("\n") + 1
    ranks, headings = _ranked(lines)
    spare = room - _size(_SHORTENED.format(total, total, path)) - 1
    chosen: set[int] = set()
    for index in sorted(ranks, key=ranks.__getitem__):
        wanted = {index, headings[index]} - chosen
        size = sum(_size(lines[at]) + 1 for at in wanted)
        if size <= spare:
            chosen |= wanted
            spare -= size
    note = _SHORTENED.format(total - len(chosen), total, path)
    return "\n".join((*(lines[index] for index in sorted(chosen)), note))


def _ranked(lines: Sequence[str]) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """The lines that say something, each with how early it is to be kept, and with the heading that it stands below, or itself."""
    ranks: dict[int, int] = {}
    headings: dict[int, int] = {}
    fenced, heading = False, None
    for index, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
            continue
        if not line.strip():
            continue
        if not fenced and _HEADING.match(line):
            heading = index
        headings[index] = index if heading is None else heading
        ranks[index] = _rank(line, fenced=fenced)
    return ranks, headings


def _rank(line: str, *, fenced: bool) -> int:
    if not fenced and _STRONG.search(line):
        return 0
    if fenced or _COMMAND.match(line):
        return 1
    return 2 if is_rule(line[:300].lstrip("-*• \t")) else 3
