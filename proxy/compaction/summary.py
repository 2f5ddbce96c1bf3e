"""Summaries: the instructions that ask for them, and the block that holds one in the history."""

import re
from collections.abc import Sequence

from proxy.compaction.extract import extract, missing_statements
from proxy.compaction.progress import TASK, progress
from proxy.compaction.source import Source, all_text, source_of
from proxy.core.history.embedded import without_calls
from proxy.core.history.marks import (
    BRIDGE,
    CLOSE,
    EXTRACT,
    FENCE,
    FENCE_END,
    MORE_QUOTES,
    NAMES,
    NEWER,
    OPEN,
    carried_rules,
    defanged,
    headed_list,
    is_summary,
    rules_section,
)
from proxy.core.history.rules import constraints
from proxy.core.history.sentences import identifiers, newest_within
from proxy.core.history.turns import is_result
from proxy.core.request import Message

_SECTIONS = (
    "Goal and constraints (word for word where the user set them); decisions and their reasons; "
    "state of the work; files and identifiers; errors and how they were fixed; open items and next step"
)
_CHAT = (
    "Facts about the user, people, health, money, dates; decisions and their reasons; the topics in order, a line each "
    "with its day; open questions"
)
INSTRUCTION = (
    "Summarise the conversation {what} so that it can be continued without the original messages. "
    "Sections: {sections}. Keep names, numbers, paths and exact values. Where something was corrected, keep only "
    "the correction. Leave out what the system prompt says. Write plain text of at most {words} words, nothing before or after it, and call no tools."
)
_CUSTOM = (
    "This is about the conversation {what}. Write plain text of at most {words} words, nothing before or after it, and "
    "call no tools."
)
_FOCUSED = (
    "Summarise the conversation so that it can be continued without the original messages, with a focus on this: {focus}\n"
    "Tell all that belongs to it in detail: names, numbers, paths, exact values, decisions, what is still open. Put "
    "everything else in short. Write in the language of the conversation."
)
INSTRUCTIONS = (INSTRUCTION, _FOCUSED)
"""All of Spillway's own requests for a summary: a model that only repeats one of them has not written any."""
_OF_EXTRACT = 2
"""Factor on the room for completed work after an extract, which leaves much of its own room unused if tools were called."""
_SHORT = 6_000
"""Characters reserved for material not yet summarised."""
_FENCES = re.compile(
    "|".join(r"\s{1,4}".join(map(re.escape, mark.split())) for mark in (FENCE, FENCE_END)), re.IGNORECASE
)


_LABEL = re.compile(r"^(?=(?:USER|ASSISTANT|TOOL|FUNCTION|SYSTEM|DEVELOPER):)", re.MULTILINE)
"""Beginning of a line that would read as if another speaker began there."""


def instruction(*, tokens: int, what: str = "so far", prompt: str = "", language: str = "", chat: bool = False) -> str:
    """Return the request for a summary of at most `tokens`.

    It uses the client's own words if there is a `prompt`, and names the language if that is known. A summary of a `chat` has
    other sections, and two words for every five tokens rather than three.
    """
    words = max(40, tokens * (2 if chat else 3) // 5)
    if prompt:
        return f"{prompt}\n\n{_CUSTOM.format(what=what, words=words)}"
    text = INSTRUCTION.format(what=what, sections=_CHAT if chat else _SECTIONS, words=words)
    return f"{text} Write it in {language.capitalize()}." if language not in ("", "english") else text


def focused(focus: str) -> str:
    """Return the `prompt` of a summary with a focus; empty without a focus."""
    return _FOCUSED.format(focus=defanged(focus)) if focus else ""


def block(
    text: str, covered: Sequence[Message], *, limit: int, source: Source | None = None, before: Sequence[Message] = ()
) -> str:
    """Make the block that holds a summary in the history.

    Code appends what the summary lacks: statements of the user, the work done, identifiers and, at the end, the user's
    rules. `limit` bounds the rules, and separately all else that is appended, in characters. The rules are always listed,
    since the next summary takes them from there, unless a block `before` this one has them.
    """
    text, known_rules = plain(text), {rule for message in before for rule in carried_rules(message)}
    rules = rules_section([rule for rule in constraints(covered, limit=limit) if rule not in known_rules])
    source = source or source_of(covered)
    extracted = text.startswith(EXTRACT)  # an extract already has all of the user's statements that fit
    done = defanged(progress(covered, source, limit=limit * (_OF_EXTRACT if extracted else 1)))
    text = "\n".join(
        line for line in text.split("\n") if not line.startswith("- ") or f"\n- {TASK}{line[2:]}" not in done
    )
    written = (all_text(message) for message in covered if not is_result(message))
    found = (name for name in identifiers(written, limit=limit // 4) if name not in text and name not in done)
    names = [name for name in found if name.upper() != name.lower()]
    listed = f"\n{NAMES}{defanged(', '.join(names))}" if names else ""
    room = limit // (2 if done else 1) - sum(len(name) + 2 for name in names)
    missing = [] if extracted else missing_statements(source, f"{text}{done}{listed}{rules}", limit=room)
    more = f"\n{defanged(headed_list(MORE_QUOTES, missing))}" if missing else ""
    # A summary is sent after the turns that stay. If only those had a value that was changed since, Qwen2.5-Coder-1.5B gave
    # the old one in 5 of 10 answers, now in 1, and in none with the summary in front.
    changed = newest_within(source.newer, limit=2 * limit)
    newer = f"\n{defanged(headed_list(NEWER, changed))}" if changed else ""
    return f"{OPEN}\n{text}{more}{done}{listed}{newer}{rules}\n{CLOSE}"


def last_extract(content: str) -> tuple[str, str]:
    """Split a block into the part before the extracts at its end, and these extracts; either may be empty."""
    pieces = content.split(f"{OPEN}\n")[1:]
    written = next((n for n in range(len(pieces), 0, -1) if not pieces[n - 1].startswith(f"{EXTRACT}\n")), 0)
    parts = pieces[:written], pieces[written:]
    written_part, extracts = ("".join(f"{OPEN}\n{piece}" for piece in part) for part in parts)
    return written_part.rstrip("\n"), extracts


def plain(text: str) -> str:
    """Strip calls and marks from a model's text, so that it can neither close the block around it nor open another."""
    return defanged(without_calls(text)).strip()


def is_bridge(messages: Sequence[Message], at: int) -> bool:
    """Return whether the message at this index is the user turn that Spillway puts after a summary."""
    return 0 < at < len(messages) and messages[at].get("content") == BRIDGE and is_summary(messages[at - 1])


def fenced(
    text: str, *, tokens: int, before: str = "", prompt: str = "", language: str = "", chat: bool = False
) -> Message:
    """Make a user message that asks for a summary of a text, which continues the one `before` if there is one.

    The text cannot close the fence around it.
    """
    before = unlabelled(_unfenced(before))
    known = f"Summary of what came before:\n{before}\n\n" if before else ""
    what = "between the marks, together with the summary before it," if before else "between the marks"
    ask = instruction(tokens=tokens, what=what, prompt=prompt, language=language, chat=chat)
    return {"role": "user", "content": f"{known}{fence(text)}\n\n{ask}"}


def fence(text: str) -> str:
    """Put a text between marks that it cannot close itself."""
    return f"{FENCE}\n{_unfenced(text)}\n{FENCE_END}"


def unlabelled(text: str) -> str:
    """Quote the lines of a text that begin like those of another speaker."""
    return _LABEL.sub("> ", text)


def _unfenced(text: str) -> str:
    # Round brackets, because the remains of nested marks must not form a new mark.
    return _FENCES.sub(lambda mark: f"({mark.group().strip('<>')})", text)


def in_words(history: Sequence[Message]) -> str:
    """Describe a history: its summaries, and an extract of the messages after them."""
    blocks = [message["content"].replace(OPEN, "").replace(CLOSE, "") for message in history if is_summary(message)]
    newer = [message for message in history if not is_summary(message)]
    rest = extract(newer, source_of(newer), limit=_SHORT)
    return "\n\n".join(filter(None, (*(each.strip() for each in blocks), rest))) or "Nothing was said yet."
