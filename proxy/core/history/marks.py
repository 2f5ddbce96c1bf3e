"""Marks around the text that Spillway writes into a history, and the sections between them.

A block that begins with a mark was written by Spillway, because marks are removed from every incoming message, whoever
speaks in it (`proxy.shaping.repair`), before blocks are added from the store or from a seal. Inside a block there are no
marks, so no quotation can close it or open another.
"""

import re
from itertools import takewhile

from proxy.core.request import Message

OPEN = "[Summary of the earlier conversation, kept as background in place of messages that no longer fit:]"
EARLIER = "The messages above are newer."
"""First line of a summary that follows messages which are newer than what it covers."""
CLOSE = "[End of the summary. The conversation goes on below.]"
HEADING = "Rules in the user's own words:"
"""Heading of the user's rules, at a block's end."""
NAMES = "Identifiers: "
"""Beginning of a block's line of paths, numbers and names."""
EXTRACT = "An extract, made by code:"
"""Beginning of a block written by code, not by a model."""
QUOTES, MORE_QUOTES = "Facts and wishes of the user:", "More facts and wishes of the user:"
NEWER = "Newer facts and wishes of the user:"
"""Headings of verbatim statements of the user: in an extract, after a summary that left them out, and from the kept turns.

Noun phrases, because a small model (SmolLM2) continues "The user said:" as if it were a transcript.
"""
DONE, CHANGED, OPEN_ITEMS = "Done so far, in order:", "Files changed:", "Left to do:"
"""Headings of the sections that code makes from tool calls and their results."""
APPENDED = (f"{HEADING}\n", f"{NEWER}\n", NAMES, f"{OPEN_ITEMS}\n", f"{CHANGED}\n", f"{DONE}\n", f"{MORE_QUOTES}\n")
"""Beginnings of the sections that code appends to a summary, the last one first."""
BRIDGE, NOTED = "Go on with the task from where the summary ends.", "Noted."
"""Filler messages of the user and the assistant, for templates in which the two must alternate."""
READ = "Thank you. What comes next?"
"""Filler message of the assistant in front of the newest message. SmolLM2 answered "Noted." 7 times of 40 behind that, and then
on every turn, but never this.
"""
BEGIN = "[The conversation begins here.]"
"""Filler message of the user in front of an answer with which a history begins."""
FENCE = "<<<conversation>>>"
FENCE_END = "<<<end of conversation>>>"
SHORTENED = "[The beginning of this answer, shortened:]"
CONTINUED = "[It goes on:]"
INSTRUCTION = "[Instruction from the system, in the middle of the conversation]"
"""Beginning of a system message's text that had to move into a user message; it extends to that message's end."""

RECALLED = "[Said earlier in this conversation, in case it is needed below; what was said later holds:]"
REMEMBERED = (
    "[Said by this user in other conversations, in case it is needed below; what this conversation says holds:]"
)
RECALLED_END = "[End of what was recalled.]"
"""End of both kinds of blocks."""

_BLOCKS = (OPEN, CLOSE, INSTRUCTION, RECALLED, RECALLED_END, REMEMBERED)
_MARKS = (*_BLOCKS, FENCE, FENCE_END, SHORTENED, CONTINUED)
_MARK = re.compile("|".join(r"\s{1,4}".join(map(re.escape, mark.split())) for mark in _MARKS), re.IGNORECASE)
_HEADING = re.compile(r"rules\s{1,4}in\s{1,4}the\s{1,4}user['\u2019]s\s{1,4}own\s{1,4}words", re.IGNORECASE)
_RULE = "- "
BRACKET = "["
"""First character of the marks of a block: one character is found a hundred times as fast as four texts."""


def defanged(text: str) -> str:
    """Return the text with every mark disarmed: round brackets replace its own, so remains of nested marks form no new one."""
    text = _MARK.sub(lambda mark: f"({mark.group().strip('[]<>')})", text)
    return _HEADING.sub("rules, as somebody puts them", text)


def forges_block(text: str) -> bool:
    """Return whether a text contains a mark of a block that Spillway writes, or of a system instruction."""
    return BRACKET in text and any(mark in text for mark in _BLOCKS)


def is_summary(message: Message) -> bool:
    """Return whether a message is a summary inserted by Spillway."""
    content = message.get("content")
    return isinstance(content, str) and content.startswith(OPEN) and message.get("role") in ("assistant", "user")


def rules_section(rules: list[str]) -> str:
    """Write the user's rules for a block, one per line; `carried_rules` reads them back."""
    stated = "".join(f"\n{_RULE}{defanged(rule)}" for rule in rules)
    return f"\n{HEADING}{stated}" if rules else ""


def carried_rules(message: Message) -> list[str]:
    """Return the user's rules in a message that is a summary; a line that was cut off does not count."""
    if not is_summary(message):
        return []
    carried: list[str] = []
    for block in message["content"].split(f"\n{HEADING}\n")[1:]:
        lines = block.split("\n")
        rules = list(takewhile(lambda line: line.startswith(_RULE), lines))
        complete = len(rules) < len(lines) and lines[len(rules)].startswith((NAMES, CLOSE))
        carried += (rule.removeprefix(_RULE) for rule in (rules if complete else rules[:-1]))
    return carried


def carried_statements(message: Message) -> list[str]:
    """Return the user's statements that code, not a model, put into a summary."""
    return section(message, QUOTES) + section(message, MORE_QUOTES)


def section(message: Message, heading: str) -> list[str]:
    """Return the items under every occurrence of a heading in a summary."""
    lines = str(message["content"]).split("\n")
    at = [number for number, line in enumerate(lines) if line == heading]
    return [
        line.removeprefix(_RULE)
        for number in at
        for line in takewhile(lambda line: line.startswith(_RULE), lines[number + 1 :])
    ]


def headed_list(heading: str, items: list[str]) -> str:
    """Write items under a heading; `section` reads them back."""
    return "\n".join((heading, *(f"{_RULE}{item}" for item in items)))


def is_extract(message: Message) -> bool:
    """Return whether a message is a summary with a block written by code, not by a model."""
    return is_summary(message) and f"{OPEN}\n{EXTRACT}\n" in message["content"]


def is_instruction(message: Message) -> bool:
    """Return whether a user message holds system text and nothing else."""
    content = message.get("content")
    if isinstance(content, list):
        content = content[0].get("text") if content and isinstance(content[0], dict) else None
    return isinstance(content, str) and content.startswith(INSTRUCTION)
