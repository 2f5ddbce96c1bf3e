"""Rules that users lay down, taken word for word: summaries by a model paraphrase rules, or drop them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from proxy.core.history.identifiers import newest_within
from proxy.core.history.marks import carried_rules, is_summary
from proxy.core.history.rule_words import heads_rules, is_rule
from proxy.core.history.sentences import sentences
from proxy.core.history.tooltext import authored_text
from proxy.core.request import Message

_LONGEST_TEXT = 20_000
"""Characters of one message that are looked through: rules stand in what people type, not in what they paste."""
_LONGEST, _SHORTEST = 300, 4
_PASTED = re.compile(
    r"^[ \t]*(?P<fence>```|~~~).*?(?:^[ \t]*(?P=fence)|\Z)"  # code
    r"|^[ \t]*>.*?$"  # what somebody else wrote
    r"|<(?P<tag>[A-Za-z][\w-]{0,40})(?:\s[^<>]{0,400})?>.*?(?:</(?P=tag)>|\Z)",  # documents that a client puts in
    re.DOTALL | re.MULTILINE,
)
_MOST_TAGS = 64
"""Opening tags up to which they are looked for: each may cost the length of the text."""
_ITEM = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+(?P<item>\S.*)$")
_VALUE = re.compile(r"\d|^[\"'«“„「]")
_LABELS = frozenset({"must", "shall", "should", "is", "are", "has", "may", "needs"})
"""Behind these a number says which thing it is about, not what it is to be."""
_MARKERS = frozenset(
    re.findall(
        r"\S+",
        """always never only not no don don't do t please now from on in the future instead actually sorry rather again but and
    must should immer nie niemals nur nicht bitte jetzt ab statt doch toujours jamais ne pas plus seulement siempre nunca solo
    sempre não nao só so apenas mai non soltanto всегда никогда не только пожалуйста""",
    )
)


def constraints(messages: Sequence[Message], *, limit: int) -> list[str]:
    """Sentences of users that state a rule, in order and once each; the newest, `limit` characters together.

    Of two that differ in nothing but a value the later one holds. Those that an earlier summary of Spillway's carries
    count; what tools, pages or models say does not, wherever it stands.
    """
    found: dict[str, str] = {}
    judged = cache(is_rule)  # logs and transcripts say the same sentence thousands of times
    for message in messages:
        for sentence in carried_rules(message) if is_summary(message) else _stated(message, judged):
            about = _about(sentence)
            found.pop(about, None)
            found[about] = sentence
    return newest_within(found.values(), limit=limit)


def _stated(message: Message, judged: Callable[[str], bool]) -> Iterator[str]:
    if message.get("role") != "user":
        return
    text, listing = authored_text(message)[:_LONGEST_TEXT], False
    if "```" in text or "~~~" in text or ">" in text:
        text = _PASTED.sub("\n", text) if text.count("<") <= _MOST_TAGS else text.split("<", 1)[0]
    for line in text.split("\n"):
        item = _ITEM.match(line)
        if listing and item is not None:
            yield item["item"].strip()[:_LONGEST]
            continue
        listing = heads_rules(line) or (listing and not line.strip())
        for sentence in sentences(line, longest=_LONGEST):
            stated = sentence if item is None else sentence.lstrip("-*• \t")
            if len(stated) >= _SHORTEST and judged(stated):
                yield stated


def _about(rule: str) -> str:
    """Return the subject of a rule: its words without values, and without those that only make it a rule."""
    words = rule.split()
    if len(words) == 1:
        return re.sub(r"\d+", "#", rule)
    subject: list[str] = []
    for at, word in enumerate(words):
        bare = word.strip(".,;:!?()").lower()
        label = at + 1 < len(words) and words[at + 1].lower() in _LABELS
        value = _VALUE.search(word) is not None or (at > 0 and word[:1].isupper())
        if value and not label:
            subject.append("#")
        elif bare not in _MARKERS or label:
            subject.append(bare)
    return " ".join(subject) if len(subject) > 1 and any(word != "#" for word in subject) else rule
