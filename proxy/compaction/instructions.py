"""Instructions from tool results: skills, project guides, runbooks. They apply for as long as the work that they are for.

They are recognised by the tool's name, by the name of the file that was read, or by the tag or heading at their beginning.
opencode, Hermes, LibreChat, Goose, Gemini CLI, Roo and Kilo have a tool for skills; Claude Code and Codex send them in a
user message (`proxy.core.history.embedded`); others read `SKILL.md` like any file. They remain tool output: their demands
never count as rules of the user's.
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
"""Fewest bytes left of a guide; the note that says how to get the rest takes most of them."""
_ALL = 2
"""Room of all instructions together, as a multiple of the room of one."""
_LONGEST = 200_000
"""Characters of a guide that are read line by line; only these can stay."""
_READ = 2_000
"""Characters of a call's arguments that are searched for a file name."""
_SHORTENED = "[{} of {} lines of this guide are left out here. {} where you need them.]"
_STRONG = re.compile(r"\b(?:MUST|NEVER|ALWAYS|DO NOT|DON'T|IMPORTANT|CRITICAL)\b")
_LINE_MARK = re.compile(r"^\s*(?:\d{1,6}\s*[→|:\t]\s*)?[-*•\s]*")
"""Line number added by a tool, and the bullet of a list item."""

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
"""Command before a file's name that prints the file."""
_BEGINS = re.compile(
    r"\s*(?:<(?:[a-z]+_)?(?:skill|instructions)(?:_\w+)?[\s>]|Base directory for this skill:|---\n(?:[\w-]+:[^\n]*\n){0,8}?description:"
    r"|#{1,3} (?:[\w-]+ ){0,3}(?:skill|runbook|playbook|instructions|guidelines|conventions)\b)",
    re.IGNORECASE,
)
_OTHERS = re.compile(r"web|url|http|browser|search|grep|find|crawl|scrape|page")
"""Parts of the names of tools that return texts by anybody: such a text is not trusted to call itself instructions."""
_SKILL_NAME = re.compile(
    r"""Base directory for this skill: {0,9}\S{0,400}?([^/\\\s]{1,100})/?[ \t]{0,9}$|<name>([^<>\n]+)<|\bname=["']([^"'\n]+)""",
    re.MULTILINE,
)
_NO_TEXT = re.compile(
    r"\s*(?:\[[^\n]*\]\s*\Z|\(Re-invocation|Launching skill|Error\b|Unknown skill|.{0,200}\balready (?:active|loaded|running)\b.{0,200}\Z)",
    re.IGNORECASE | re.DOTALL,
)


def kept_texts(results: Sequence[Result], limits: PruneLimits) -> dict[Result, str]:
    """Return the texts that stay of results with instructions, or of tools whose results are never shortened; in order.

    Of two versions of the same instructions the newer one stays. If not all fit, the newest do.
    """
    # Without them, after forty-five steps the plan, the changes and the user's corrections were in the prompt, but not
    # the instructions that they follow.
    kept: dict[Result, str] = {}
    known: dict[str, int] = {}
    most = limits.instructions * BYTES_PER_TOKEN
    room = most * _ALL
    for result in reversed(results) if most or limits.keep else ():
        if any(fnmatchcase(result.name, glob) for glob in limits.keep):
            kept[result] = result.text
        elif not result.is_note and (name := _name(result)):
            # A whole file replaces excerpts of it read earlier (their name has line numbers after the NUL). Parts of one
            # message are one result, so they do not replace each other.
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
    """Return the kept results in messages of their own, each after the call that it answers and without other calls."""
    done: list[Message] = []
    for index, group in results.items():
        if any(result in kept for result in group):
            texts = {r: kept[r] if r in kept else note_for(r) for r in group if r in kept or r.is_long}
            done += [_call_of(messages, index), with_texts(messages[index], texts)]
    return done


def _call_of(messages: Sequence[Message], index: int) -> Message:
    """Return the message with the call that a result answers, or a placeholder by the assistant if there is none."""
    wanted, before = messages[index].get("tool_call_id"), messages[index - 1]
    if messages[index].get("role") == "user":
        written = any(calls_in(text) for _, text in texts_of(before)) and before.get("role") == "assistant"
        return before if written else {"role": "assistant", "content": NOTED}
    callers = ((m, call) for m in reversed(messages[:index]) for call in calls_of(m) if call.get("id") == wanted)
    message, call = next(callers, ({"role": "assistant", "content": NOTED}, None))
    return message if len(calls_of(message)) < 2 else {**message, "tool_calls": [call]}


def _name(result: Result) -> str:
    """Return the name of the instructions in a result, with the line numbers that were read; empty if it has none."""
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
    """Shorten a guide to `room` bytes: its rules get room first, then its beginning. A note says `how` to get the rest."""
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
