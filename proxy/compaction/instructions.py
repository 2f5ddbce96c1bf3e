"""Instructions that a tool brought: skills, guides of a project, runbooks. They hold as long as the work that they are for.

Told by where they come from: the name of the tool, the name of the file that was read, or the tag or heading with which they
begin. opencode, Hermes, LibreChat, Goose, Gemini CLI, Roo and Kilo have a tool for skills; Claude Code and Codex send them in a
user's message (`proxy.core.history.embedded`); others read `SKILL.md` like any file. They stay what a tool said: what they
demand is never a rule of the user's.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from proxy.compaction.policy import BYTES_PER_TOKEN, PruneLimits
from proxy.compaction.results import Result, note_for, with_texts
from proxy.core.history.embedded import calls_in, texts_of
from proxy.core.history.marks import NOTED
from proxy.core.history.rules import is_rule
from proxy.core.history.turns import calls_of
from proxy.core.piece import arguments_of
from proxy.core.request import Message

LEAST = 600
"""Bytes that are left of a guide: the note that tells how to get the rest takes most of that."""
_ALL = 2
"""Times the room of one text that all together may have."""
_LONGEST = 200_000
"""Characters of a guide that are looked at line by line; a longer one keeps its beginning."""
_READ = 2_000
"""Characters of a call's arguments in which a file is looked for."""
_SHORTENED = "[{} of {} lines of this guide are left out here. {} where you need them.]"
_STRONG = re.compile(r"\b(?:MUST|NEVER|ALWAYS|DO NOT|DON'T|IMPORTANT|CRITICAL)\b")
_LINE_MARK = re.compile(r"^\s*(?:\d{1,6}\s*[→|:\t]\s*)?[-*•\s]*")
"""A number that a tool puts in front of a line, and the mark of an item."""

_JOINTS = re.compile(r"(?<=[a-z])(?=[A-Z])|[\W_]+")
_LOADS = re.compile(r"(?:^|_)(?:skills?|runbooks?|playbooks?|instructions|guidelines|conventions|fetch_rules)(?:_|$)")
_VERBS = "list|search|find|discover|create|install|manage|update|write|edit|save|delete|remove|add|publish|validate|patch|run|execute"
_MANAGES = re.compile(
    rf"(?:^|_)(?:{_VERBS})_(?:\w{{1,40}}_)?(?:skills?|runbooks?|playbooks?|instructions|guidelines|conventions)$"
    rf"|(?:skills?|runbooks?|playbooks?|scripts?)_(?:{_VERBS})\w{{0,40}}$|_scripts?$"
)
_LISTS = re.compile(rf'"(?:method|action|operation|mode|command)"\s*:\s*"(?:{_VERBS})')
_FILE = re.compile(
    r"""(?:^|[\s"'=:@(])(?P<path>(?:[^\s"'|;&<>()]{0,300}[/\\])?(?:"""
    r"(?:SKILL|AGENTS?(?:\.\w+)?|CLAUDE(?:\.\w+)?|GEMINI|QWEN|CRUSH|WARP|CODEX|CONVENTIONS?|CONTRIBUTING|INSTRUCTIONS|GUIDELINES"
    r"|[\w-]{0,60}(?:RUNBOOK|PLAYBOOK)[\w-]{0,60}|[\w.-]{0,60}instructions)\.(?:md|mdx|txt|rst|adoc)"
    r"|\.(?:cursor|windsurf|cline|roo|kilocode|continue)rules(?:-\w+)?|\.goosehints|[\w.-]{1,60}\.mdc"
    r"|(?:\.(?:cursor|claude|roo|kilocode|windsurf|continue)[/\\]rules[\w-]*|\.clinerules|runbooks?|playbooks?)[/\\][\w./-]{1,200}\.(?:md|txt)))"
    r"""(?=$|[\s"'|;&)\\])""",
    re.IGNORECASE,
)
_READS = re.compile(r"(?:^|_)(?:read|view|open|cat|get|fetch|load|show)(?:_|$|file)")
_SHOWS = re.compile(
    r"\b(?:cat|bat|sed(?! -i)|head|tail|less|more|nl|type|view|Get-Content|gc)\b[^|;&<>]{0,200}\Z", re.IGNORECASE
)
"""In front of a file's name: the command that prints it."""
_BEGINS = re.compile(
    r"\s*(?:<(?:[a-z]+_)?(?:skill|instructions)(?:_\w+)?[\s>]|Base directory for this skill:|---\n(?:[\w-]+:[^\n]*\n){0,8}?description:"
    r"|#{1,3} (?:[\w-]+ ){0,3}(?:skill|runbook|playbook|instructions|guidelines|conventions)\b)",
    re.IGNORECASE,
)
_OTHERS = re.compile(r"web|url|http|browser|search|grep|find|crawl|scrape|page")
"""Parts of the names of tools whose texts anybody may have written: these say nothing of themselves that is believed."""
_SKILL_NAME = re.compile(
    r"""Base directory for this skill: {0,9}\S{0,400}?([^/\\\s]{1,100})/?[ \t]{0,9}$|<name>([^<>\n]+)<|\bname=["']([^"'\n]+)""",
    re.MULTILINE,
)
_NO_TEXT = re.compile(
    r"\s*(?:\[[^\n]*\]\s*\Z|\(Re-invocation|Launching skill|Error\b|Unknown skill|.{0,200}\balready (?:active|loaded|running)\b.{0,200}\Z)",
    re.IGNORECASE | re.DOTALL,
)


def kept_texts(results: Sequence[Result], limits: PruneLimits) -> dict[Result, str]:
    """What stays of results that are instructions, or of tools whose results are never shortened; in their order.

    Of two versions the newer one; the newest of all first, where not all have room.
    """
    kept: dict[Result, str] = {}
    known: dict[str, int] = {}
    most = limits.instructions * BYTES_PER_TOKEN
    room = most * _ALL
    for result in reversed(results) if most or limits.keep else ():
        if any(fnmatchcase(result.name, glob) for glob in limits.keep):
            kept[result] = result.text
        elif not result.is_note and (name := _name(result)):
            # All of a file replaces parts of it; several parts of a message are one result.
            names = {name, name.split("\0")[0], result.text}
            if any(known.get(each, result.index) != result.index for each in names):
                continue
            known |= dict.fromkeys((name, result.text), result.index)
            text = rules_first(result.text, min(most, room), f"Call {result.name} again")
            size = _size(text)
            if size <= min(most, room):
                kept[result] = text
                room -= size
    return {result: kept[result] for result in reversed(kept)}


def carried(
    messages: Sequence[Message], results: Mapping[int, Sequence[Result]], kept: Mapping[Result, str]
) -> list[Message]:
    """What is kept of these results in messages of their own, each behind the call that it answers, without other calls."""
    done: list[Message] = []
    for index, group in results.items():
        if any(result in kept for result in group):
            texts = {r: kept[r] if r in kept else note_for(r) for r in group if r in kept or r.is_long}
            done += [_call_of(messages, index), with_texts(messages[index], texts)]
    return done


def _call_of(messages: Sequence[Message], index: int) -> Message:
    """The message that made the call which a result answers; where nobody did, a word of the assistant's in its place."""
    wanted, before = messages[index].get("tool_call_id"), messages[index - 1]
    if messages[index].get("role") == "user":
        written = any(calls_in(text) for _, text in texts_of(before)) and before.get("role") == "assistant"
        return before if written else {"role": "assistant", "content": NOTED}
    callers = ((m, call) for m in reversed(messages[:index]) for call in calls_of(m) if call.get("id") == wanted)
    message, call = next(callers, ({"role": "assistant", "content": NOTED}, None))
    return message if len(calls_of(message)) < 2 else {**message, "tool_calls": [call]}


def _name(result: Result) -> str:
    """Name of the instructions that a result holds, and the numbers of the lines that were read; empty if it holds none."""
    if _NO_TEXT.match(result.text):
        return ""
    tool, written = _JOINTS.sub("_", result.name).lower(), (result.arguments or "")[:_READ]
    file = _FILE.search(written)
    if file is not None and (_READS.search(tool) or _SHOWS.search(written, 0, file.start("path"))):
        path = file["path"]
        of_skill = path.upper().endswith("SKILL.MD") and re.split(r"[/\\]", path)[-2:-1]
        numbers = re.findall(r"\d+", written.replace(path, ""))
        return "\0".join((of_skill[0] if of_skill else path.removeprefix("./"), *numbers))
    if _MANAGES.search(tool) or _LISTS.search(written):
        return ""
    if _LOADS.search(tool):
        values = [
            v
            for name, v in arguments_of(result.arguments or "").items()
            if isinstance(v, str) and not name.startswith("arg")
        ]
        named = _SKILL_NAME.search(result.text)
        values = values or [next(filter(None, named.groups())) if named else result.text.lstrip()[:80]]
        return " ".join(re.split(r"[:/\\]", value.rstrip("/"))[-1] for value in values)
    return result.text.lstrip()[:80] if _BEGINS.match(result.text) and not _OTHERS.search(tool) else ""


@lru_cache(maxsize=16)
def rules_first(guide: str, room: int, how: str) -> str:
    """A guide in so many bytes: its rules first, then the rest from the beginning, in the old order; `how` to get the rest."""
    if _size(guide) <= room:
        return guide
    lines, total = guide[:_LONGEST].split("\n"), guide.count("\n") + 1
    spare = room - _size(_SHORTENED.format(total, total, how)) - 1
    chosen: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda at: not _demands(lines[at])):
        size = _size(lines[index]) + 1
        if lines[index].strip() and size <= spare:
            chosen.add(index)
            spare -= size
    note = _SHORTENED.format(total - len(chosen), total, how)
    return "\n".join((*(lines[index] for index in sorted(chosen)), note))


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _demands(line: str) -> bool:
    """Return whether a line holds a rule."""
    return _STRONG.search(line) is not None or is_rule(_LINE_MARK.sub("", line[:300]))
