"""The text that coding agents put before every prompt: recognised, and shortened if the window is small.

A project's guide file, pasted in by the client, is shortened to its rules and as much of the rest as has room. Its forms, by
program: Claude Code 2.1 (`Contents of …`, in a `<system-reminder>`), Codex 0.169 (`# AGENTS.md instructions for …`, a user
message), opencode 1.18 (`Instructions from: …`), Qwen Code 0.15 and Gemini CLI (`--- Context from: … ---`), both in the system
prompt.

If an agent's system prompt takes too much room, a short one replaces it. It keeps the agent's rules, its environment, the names
of its skills and agents, and the project's guides.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from proxy.compaction.instructions import LEAST, rules_first
from proxy.compaction.policy import BYTES_PER_TOKEN
from proxy.compaction.shorten import water_level
from proxy.core.history.embedded import blocks_in
from proxy.core.history.sentences import sentences
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
"""Patterns of a guide's opening and of its end."""
_COMPILED = [(re.compile(opening, re.MULTILINE), re.compile(closing)) for opening, closing in _FORMS]
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
"""Short system prompt, 190 tokens."""
_WORKS_WITH = ("bash", "shell", "exec", "command", "edit", "write", "patch", "replace", "read")
"""Parts of tool names. A coding agent has at least two tools with one of these."""
_LEAST_PROMPT = 2_000
"""Characters from which replacing a prompt is worthwhile."""
_GAIN = 0.8
"""Maximum length of the short prompt, as a share of the client's own."""
_NAME = re.compile(r"\AYou are (?:an? |the )?([A-Z][\w.+-]*(?: [A-Z][\w.+-]*){0,3}|[a-z][\w-]*)\s*(?:,|\.|\(|$)")
_BEGINNING = 1_500
"""Characters at the beginning of a prompt in which a program introduces itself."""
_CODE = re.compile(
    r"\b(?:coding|software (?:engineer|develop)\w*|programming|codebase|developer|CLI|IDE|terminal|code editor)\b"
)
_AGENT = re.compile(r"\b(?:agent|assistant|engineer|tool)\b", re.IGNORECASE)
_RANKS = (
    re.compile(r"\b(?:NEVER|MUST NOT|DO NOT|DON'T|FORBIDDEN)\b"),
    re.compile(r"\b(?:MUST|ALWAYS|REQUIRED)\b"),
    re.compile(r"\b(?:IMPORTANT|CRITICAL|[Nn]ever|[Mm]ust not)\b|^Do(?: not|n't) "),
)
"""Patterns that make a sentence a rule, the strictest first; stricter rules are kept first."""
_LONGEST_RULE = 300
_RULES = 1_000
"""Maximum characters of rules; `_RULES_SHARE` is another limit, in characters per token of the window."""
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
"""Maximum lines of an environment, and characters of one line."""
_LIST, _LIST_END = "<available_", "</available_"
_ENTRY = re.compile(r"<name>([^<>\n]{1,60})</name>")
_MOST_ENTRIES = 40


@dataclass(frozen=True, slots=True)
class Guide:
    """Place of a guide in a text: `start` to `over` with its opening and closing, `begins` to `ends` without."""

    start: int
    begins: int
    ends: int
    over: int
    """Index after its closing."""
    path: str


@lru_cache(maxsize=8)
def guides_in(text: str) -> Sequence[Guide]:
    """Find the guides in a text, in order; they do not overlap."""
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
    """Shorten the guides in messages to this number of tokens in total; None leaves them unchanged.

    Returns the same object if nothing changes. Only messages before the first answer are read: system messages, and the client's
    own blocks in user messages, never the user's words. A token counts as four bytes. Idempotent.
    """
    if tokens is None:
        return messages
    places = list(_places(messages))
    sizes = [_size(text[guide.begins : guide.ends]) for _, _, text, guides in places for guide in guides]
    room = max(LEAST, int(water_level(sizes, tokens * BYTES_PER_TOKEN))) if sizes else 0
    if not any(size > room for size in sizes):
        return messages
    changed = list(messages)
    for index, part, text, guides in places:
        pieces, after = [], 0
        for guide in guides:
            pieces += [
                text[after : guide.begins],
                rules_first(text[guide.begins : guide.ends], room, f"Read {guide.path}"),
            ]
            after = guide.ends
        content: Any = "".join((*pieces, text[after:]))
        if part is not None:
            parts = list(changed[index]["content"])
            parts[part] = {**parts[part], "text": content}
            content = parts
        changed[index] = {**changed[index], "content": content}
    return changed


def _places(messages: Sequence[Message]) -> Iterator[tuple[int, int | None, str, Sequence[Guide]]]:
    """Yield each text with guides before the first answer: index of its message, index of its part, the text, its guides.

    In a user message, only guides inside a program's block count.
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


# A short prompt in place of an agent's own


def is_agent(text: str, tools: Sequence[str]) -> bool:
    """Return whether this is the system prompt of a coding agent with these tools."""
    works = sum(any(part in name.lower() for part in _WORKS_WITH) for name in tools)
    beginning = text[:_BEGINNING]
    says = _CODE.search(beginning) and _AGENT.search(beginning)
    return works > 1 and len(text) >= _LEAST_PROMPT and bool(says)


@lru_cache(maxsize=16)
def shortened_prompt(text: str, window: int) -> str | None:
    """Write a short prompt in place of an agent's, or return None if it would be hardly shorter. `window` is in tokens."""
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
    """Yield the lines that are neither code nor an example."""
    fenced = example = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif (mark := _EXAMPLE.match(line)) is not None:
            example = not mark[1]
        elif not fenced and not example:
            yield line


def _rules(text: str, room: int) -> list[str]:
    """Return the sentences that demand something, verbatim and in order; if not all fit into `room`, the strictest."""
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
    """Return the names in lists of available things: skills, agents."""
    lists = (piece.partition(_LIST_END)[0] for piece in text.split(_LIST)[1:])
    return list(dict.fromkeys(name for piece in lists for name in _ENTRY.findall(piece)))[:_MOST_ENTRIES]


def _environment(text: str) -> list[str]:
    """Return the lines about the agent's environment: those in an environment block, and others of the same form."""
    lines: dict[str, None] = {}
    inside = False
    for line in text.split("\n"):
        if _OPENS.match(line) or _CLOSES.match(line):
            inside = _CLOSES.match(line) is None
        elif line.strip() and len(line) <= _LONGEST_FACT and (inside or _FACT.match(line)):
            lines[line.strip()] = None
    return list(lines)[:_MOST_FACTS]
