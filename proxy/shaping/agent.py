"""A short system prompt in place of a coding agent's own, where that takes too much of the window.

Kept of the client's own are its rules, its environment, the names of its skills and agents, and the project's guides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from proxy.core.history.sentences import sentences
from proxy.shaping.guide import guides_in

SHORT = """\
You are {name}a coding agent that works in the user's terminal and workspace.

- Do the task with the tools you are offered, and go on until it is done; ask only where you cannot find out yourself.
- Before you change a file, read what it says now. Make the smallest change that is right, in the style of what is there, \
and leave what does not belong to the task alone.
- Read parts of large files, not all of them. Use absolute paths where a tool wants them.
- Check your work: run the tests, or what comes nearest to them, and mend what fails.
- Explain a command before you run it if it deletes or overwrites anything. Never commit, push or undo changes that are not \
yours unless you are told to.
- Answer briefly. End with a short account of what you did, what you checked, and what is left."""
"""A system prompt of 190 tokens."""
_WORKS_WITH = ("bash", "shell", "exec", "command", "edit", "write", "patch", "replace", "read")
"""What is in the names of tools of which an agent that works on code has at least two."""
_LEAST = 2_000
"""Characters of a prompt that it pays to replace."""
_GAIN = 0.8
"""Share of the client's own prompt that this one may have at most."""
_NAME = re.compile(r"\AYou are (?:an? |the )?([A-Z][\w.+-]*(?: [A-Z][\w.+-]*){0,3}|[a-z][\w-]*)\s*(?:,|\.|\(|$)")
_BEGINNING = 1_500
"""Characters in which a program says what it is."""
_CODE = re.compile(
    r"\b(?:coding|software (?:engineer|develop)\w*|programming|codebase|developer|CLI|IDE|terminal|code editor)\b"
)
_AGENT = re.compile(r"\b(?:agent|assistant|engineer|tool)\b", re.IGNORECASE)
_RANKS = (
    re.compile(r"\b(?:NEVER|MUST NOT|DO NOT|DON'T|FORBIDDEN)\b"),
    re.compile(r"\b(?:MUST|ALWAYS|REQUIRED)\b"),
    re.compile(r"\b(?:IMPORTANT|CRITICAL|[Nn]ever|[Mm]ust not)\b|^Do(?: not|n't) "),
)
"""What makes a sentence a rule; the first is kept first."""
_LONGEST_RULE = 300
_RULES = 1_000
"""Characters of rules, at most, and their share of the window, in characters for a token of it."""
_RULES_SHARE = 1 / 12
_MARK = re.compile(r"^\s*(?:(?:[-*•>]|#{1,6}|\d{1,3}[.)])\s+){0,3}")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_EXAMPLE = re.compile(r"^\s*<(/?)example")
_OPENS = re.compile(r"^\s*<(env|environment|environment_context)>\s*$")
_CLOSES = re.compile(r"^\s*</(?:env|environment|environment_context)>\s*$")
_FACT = re.compile(
    r"^[\s\-*]*(?:(?:the|your|my|primary|current|additional|main|default|is|a|an|directory) )*"
    r"(?:operating system|working director(?:y|ies)|workspace(?: root)?(?: folder)?|cwd|platform|os(?: version)?|shell|(?:today.s )?date"
    r"|time ?zone|git repo(?:sitory)?|branch|project (?:root|directory|path))\b[^\n:=]{0,60}[:=] ?\S",
    re.IGNORECASE,
)
_MOST_FACTS, _LONGEST_FACT = 24, 300
"""Lines of an environment, and characters of one."""
_LIST, _LIST_END = "<available_", "</available_"
_ENTRY = re.compile(r"<name>([^<>\n]{1,60})</name>")
_MOST_ENTRIES = 40


def is_agent(text: str, tools: Sequence[str]) -> bool:
    """Return whether this is the system prompt of a program that works on code with these tools."""
    works = sum(any(part in name.lower() for part in _WORKS_WITH) for name in tools)
    beginning = text[:_BEGINNING]
    says = _CODE.search(beginning) and _AGENT.search(beginning)
    return works > 1 and len(text) >= _LEAST and bool(says)


@lru_cache(maxsize=16)
def shortened_prompt(text: str, window: int) -> str | None:
    """A short prompt in place of an agent's; None if that says hardly less. `window` in tokens."""
    guides = guides_in(text)
    prompt = text
    for guide in reversed(guides):
        prompt = f"{prompt[: guide.start]}\n{prompt[guide.over :]}"
    named = _NAME.match(prompt.lstrip())
    parts = [SHORT.format(name=f"{named[1]}, " if named is not None else "")]
    if rules := _rules(prompt, min(_RULES, int(window * _RULES_SHARE))):
        parts.append("\n".join(("Rules:", *(f"- {rule}" for rule in rules))))
    if environment := _environment(prompt):
        parts.append("\n".join(("Environment:", *environment)))
    if entries := _entries(prompt):
        parts.append(f"Available by name: {', '.join(entries)}.")
    parts += [text[guide.start : guide.over].strip("\n") for guide in guides]
    short = "\n\n".join(parts)
    return short if len(short) <= _GAIN * len(text) else None


def _prose(text: str) -> Iterator[str]:
    """The lines that are no code, and no example."""
    fenced = example = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif (mark := _EXAMPLE.match(line)) is not None:
            example = not mark[1]
        elif not fenced and not example:
            yield line


def _rules(text: str, room: int) -> list[str]:
    """Sentences that demand something, word for word, in their order; the strictest where not all have room."""
    found: dict[str, int] = {}
    for line in _prose(text):
        for sentence in sentences(_MARK.sub("", line), longest=_LONGEST_RULE):
            rank = next((at for at, form in enumerate(_RANKS) if form.search(sentence)), None)
            if rank is not None:
                found.setdefault(sentence, rank)
    chosen: set[str] = set()
    for sentence in sorted(found, key=found.__getitem__):
        if len(sentence) + 3 <= room:
            chosen.add(sentence)
            room -= len(sentence) + 3
    return [sentence for sentence in found if sentence in chosen]


def _entries(text: str) -> list[str]:
    """The names in lists of what is there to be asked for: skills, agents."""
    lists = (piece.partition(_LIST_END)[0] for piece in text.split(_LIST)[1:])
    return list(dict.fromkeys(name for piece in lists for name in _ENTRY.findall(piece)))[:_MOST_ENTRIES]


def _environment(text: str) -> list[str]:
    """Lines about where the agent works: those of a block for it, and others of that form."""
    lines: dict[str, None] = {}
    inside = False
    for line in text.split("\n"):
        if _OPENS.match(line) or _CLOSES.match(line):
            inside = _CLOSES.match(line) is None
        elif line.strip() and len(line) <= _LONGEST_FACT and (inside or _FACT.match(line)):
            lines[line.strip()] = None
    return list(lines)[:_MOST_FACTS]
