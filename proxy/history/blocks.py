"""Blocks that programs put around the user's words: reminders, environments, lists of files, retrieved context.

Forms seen: elements in tags (Claude Code, Codex, Cline, opencode, Cursor, Copilot, Open WebUI), files between dashed lines
(Gemini CLI, Qwen Code), and text behind a fixed sentence (aider, Open WebUI's retrieval template). Whose an element is,
its name tells, or that another one beside it holds the user's words. Unknown elements, and all in a code fence, are the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

Span = tuple[int, int]
Author: TypeAlias = Literal["program", "user", "unknown"]

_OPENINGS = re.compile(
    r"^[ \t]{0,8}(?P<fence>```|~~~)"
    r"|^--- [^\n]{1,400} ---$"
    r"|\A### Task:\nRespond to the user query using the provided context[^<]{0,200}"
    r"|^(?:Here are summaries of some files present in my git repository\.|I have \*added these files to the chat\*"
    r"|Here are some READ ONLY files|This is the (?:Qwen Code|Gemini CLI)\. We are setting up the context for our chat\."
    r"|# \*SEARCH/REPLACE block\* Rules:|# File editing rules:|To suggest changes to a file you MUST return )"
    r"|(?:^# AGENTS\.md instructions[^\n]{0,400}\n{1,3})?<(?P<name>[A-Za-z][\w-]{0,60})(?:[ \t][^<>\n]{0,400})?>",
    re.MULTILINE,
)
_DASHED_END = re.compile(r"^--- End of [^\n]{1,400}(?:\n|\Z)", re.MULTILINE)
_LINE_ENDS = re.compile(r"[ \t]*(?:\n|\Z|<)")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_USERS = frozenset(
    {"task", "query", "question", "request", "message", "feedback", "answer", "prompt", "input"}
)
"""Last word of the names of elements in which programs send what the user typed."""
_PROGRAMS = frozenset(
    re.findall(
        r"\S+",
        """attached attachment caveat context cwd diagnostic directory document editor env environment file folder git hook ide
        memory notification permission reminder repo repository selection skill source stderr stdout system terminal workspace""",
    )
)
"""Words, in the singular, one of which is in the names of elements that programs fill."""
_LONGEST = 2**18
"""Characters of a text that are looked through; what is behind them is the user's."""
_MOST_MISSING = 64
"""Names of which no element is closed, after which no more are looked for: each may cost the length of the text."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a user message: where it stands, marks and all, where what it holds does, and whose that is."""

    span: Span
    inside: Span
    author: Author


def program_blocks(text: str) -> list[Span]:
    """Where in a user's message programs speak, in order."""
    return [block.span for block in blocks_in(text) if block.author == "program"]


@lru_cache(maxsize=64)
def blocks_in(text: str) -> tuple[Element, ...]:
    """The outermost blocks of a user's message, in order; what is outside of them are the user's own words.

    In time linear in the text.
    """
    if "<" not in text and "--- " not in text and "*" not in text and "To suggest" not in text:
        return ()
    found = list(_outermost(text[:_LONGEST]))
    wrapped = any(block.author == "user" for block in found)
    return tuple(
        replace(block, author="program") if wrapped and block.author == "unknown" else block
        for block in found
    )


def _outermost(text: str) -> Iterator[Element]:
    closings = _Closings(text)
    at = 0
    while (opening := _OPENINGS.search(text, at)) is not None:
        at = opening.end()
        if opening["fence"]:
            closed = text.find(f"\n{opening['fence']}", at)
            at = closed + 4 if closed >= 0 else at
        elif (block := _block(text, opening, closings)) is not None:
            yield block
            at = block.span[1]


def _block(text: str, opening: re.Match[str], closings: _Closings) -> Element | None:
    """The block that begins there, if it is one."""
    start, begins, name = opening.start(), opening.end(), opening["name"]
    if name is None:
        end = _fixed_end(text, opening, closings)
        return None if end is None else Element((start, end[1]), (begins, end[0]), "program")
    author = _author(name)
    leads = text[max(0, start - 9) : start].rstrip(" \t")[-1:] in ("", "\n", ">")
    if not leads and author == "unknown":
        return None
    ends = closings.after(name, begins)
    if ends is None or not (leads or "\n" in text[begins:ends]):
        return None
    over = ends + len(name) + 3
    if author != "program" and _LINE_ENDS.match(text, over) is None:
        return None
    return Element((start, over), (begins, ends), author)


def _fixed_end(text: str, opening: re.Match[str], closings: _Closings) -> Span | None:
    """What ends a block that no tag begins."""
    if opening.group().startswith("---"):
        return closings.dashed(opening.end())
    if opening.group().startswith("### Task:"):
        close = closings.after("context", opening.end())
        return None if close is None else (close, close + len("</context>"))
    return len(text), len(text)


def _author(name: str) -> Author:
    """Who fills an element of this name; a component's, such as `FileList` in JSX, is unknown."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if name == "INSTRUCTIONS":
        return "program"  # Codex, behind the heading that names the guide file
    if not words or name[0].isupper():
        return "unknown"
    singular = {re.sub(r"ies$", "y", word) if word.endswith("ies") else word.rstrip("s") for word in words}
    if singular & _PROGRAMS:
        return "program"
    if words[-1] in _USERS:
        return "user"
    return "program" if words[0] == "user" and len(words) > 1 else "unknown"


class _Closings:
    """Where elements of a text end. Only openings that begin a line are nested ones: prose may mention a tag."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._flat: set[str] = set()
        """Names of which more elements are opened than closed: each ends at the next closing tag."""
        self._missing: set[str] = set()

    def dashed(self, at: int) -> Span | None:
        """Where the dashed line stands that ends what begins at `at`."""
        found = None if "---" in self._missing else _DASHED_END.search(self._text, at)
        if found is None:
            self._missing.add("---")
        return None if found is None else found.span()

    def after(self, name: str, at: int) -> int | None:
        """Where the closing tag begins of an element whose content begins at `at`; None if it is missing."""
        missing = name in self._missing or len(self._missing) > _MOST_MISSING
        first = -1 if missing else self._text.find(f"</{name}>", at)
        if first < 0:
            self._missing.add(name)
            return None
        if name in self._flat:
            return first
        depth = 1
        for tag in _tags(name).finditer(self._text, at):
            depth += -1 if tag["closes"] else 1
            if not depth:
                return tag.start("closes")
        self._flat.add(name)
        return first


@lru_cache(maxsize=64)
def _tags(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<closes></{name}>)|^[ \t]{{0,8}}<{name}(?:[ \t][^<>\n]{{0,400}})?>", re.MULTILINE)
