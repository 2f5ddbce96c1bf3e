"""Text embedded in messages by programs rather than their author: tool calls, tool results, and blocks.

Calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` in assistant messages, the form that models are taught
(`proxy.emulation.prompt`). Results: `<tool_result tool_name='…'>…</tool_result>` and `[TOOL_RESULT]…[/TOOL_RESULT]` in user
messages. Blocks are put around the user's words by programs: reminders, environments, files, retrieved context. A block
is an element with a tag that some program is known to use, files between dashed lines (Gemini CLI, Qwen Code), or
everything after a fixed sentence (aider). All other text, and everything in a code fence, is the user's.

Content is a string or a list of parts; the text of each part is read on its own. Everything takes linear time.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from proxy.core.history.client_compaction import brought_from
from proxy.core.history.marks import INSTRUCTION
from proxy.core.request import Message, is_text_part, text_of

Span: TypeAlias = tuple[int, int]

IMAGE_OMITTED = "[An image was here and was left out to save room.]"
"""Placeholder for an old image that was left out. It is not counted as the user's words."""
RULE = "[For this answer: {}.]"
"""Template of a demand on this answer only, added to the last message. It is not counted as the user's words either."""
_WRITTEN_HERE = re.compile(
    r"\[(?:An image[^\[\]]* was here and was left out to save room|For this answer: [^\[\]]*)\.\]"
)
_NO_WORDS = re.compile(rf"\s*(?:{_WRITTEN_HERE.pattern}\s*)*")

_CALL = "<tool_call>"
_CALL_END = re.compile(r"\s*</tool_call>")
_MISSES = 64
"""Openings without a call after which the search for calls ends: each may cost the length of the text."""
_NAMES = ("name", "tool")
_ARGUMENTS = ("arguments", "args", "parameters")
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()

# No pattern here runs over a `<` or a bracket, so no text is read twice and the time stays linear.
_RESULT_MARK = re.compile(r"\[/?TOOL_RESULT\]|<tool_result(?P<fields>\s[^<>]*)?>|</tool_result>")
_RESULT_WORDS = ("tool_result", "TOOL_RESULT", "Base directory for this skill", "skill>", "<skill_", "<activated_skill")
"""Words, one of which is in every mark: searching for them is many times faster than matching marks."""
_FIRST = "[<Bb"
"""First characters of a text that consists of results, white space aside."""
_SKILL = re.compile(
    r"(?:\A\s*|\n\n)(?P<skill>Base directory for this skill: .*?(?=\n\n(?:ARGUMENTS|Base directory for this skill): |\n\n<system-reminder>|\Z))"
    r"|\A\s*(?P<element><(?P<tag>skill|skill_content|activated_skill)(?:\s[^<>\n]{0,200})?>\n.*?</(?P=tag)>)",
    re.DOTALL | re.IGNORECASE,
)
"""Instructions of a skill; the command that loaded them may come before, and the words the user typed with it after."""
SKILL = "Skill"
_RESULT_BEGINS = re.compile(r"\s*(?:\[TOOL_RESULT\]|<tool_result[\s>])")
_NAME_FIELD = re.compile(r"""\b(?:tool_name|name)=(?:'([^'<>]*)'|"([^"<>]*)")""")
_ARGUMENTS_FIELD = re.compile(r"""\b(?:arguments|args|parameters)=(?:'([^'<>]*)'|"([^"<>]*)")""")

_BLOCK_MARK = re.compile(
    r"<(?P<closes>/?)(?P<tag>[A-Za-z][\w-]{0,40})(?:[ \t][^<>\n]{0,400})?>"
    r"|--- (?P<dashed>End of )?[Cc]onte[nx]t [^\n]*"
    r"|```+|~~~+"
    r"|Here are summaries of some files present in my git repository\.|Here are some READ ONLY files"
    r"|I have \*added these files to the chat\*|# \*SEARCH/REPLACE block\* Rules:|# File editing rules:"
    r"|To suggest changes to a file you MUST return "
    r"|This is the (?:Qwen Code|Gemini CLI)\. We are setting up the context for our chat\."
)
"""Beginning or end of a block or a code fence. Each alternative begins with a literal, to keep the search fast."""
# A table, because guessing whose an element is by the words of its name made a user's <instructions> beside a <task> a
# program's text: cut first, and no longer a rule. Elements that are not listed are the user's.
_BLOCK_TAGS = frozenset(
    re.findall(
        r"\S+",
        """
        bash-stderr bash-stdout ide_diagnostics ide_opened_file ide_selection local-command-caveat local-command-stderr
        local-command-stdout new-diagnostics system-reminder task-notification user-prompt-submit-hook

        INSTRUCTIONS environment_context skills_instructions subagent_notification turn_aborted
        user_instructions user_shell_command

        environment_details explicit_instructions file_content folder_content git_working_state hook_context terminal_output
        url_content workspace_diagnostics

        additional_data agent_transcripts always_applied_workspace_rules code_selection current_file cursor_rules_context
        git_status linter_errors manually_attached_skills open_and_recently_viewed_files project_layout recently_viewed_files
        system_notification system_reminder user_info

        attachment attachments editorContext environment_info reminderInstructions repoMemory sessionMemory toolReferences
        userMemory workspace_info

        attached_files context document_notes env file files session_context
        """,
    )
)
"""Tags of blocks, by program: Claude Code; Codex; Cline and its forks; Cursor; Copilot; Open WebUI, opencode, Zed, Gemini CLI."""
_FENCES = ("`", "~")
_PAIRED = frozenset("<-`~")
"""First characters of marks that a second mark closes; a block begun by any other mark goes on to the message's end."""
_BLOCK_HEADING = re.compile(
    r"### Task:\nRespond to the user query using the provided context(?s:.*)\n|# AGENTS\.md instructions[^\n]*\n+"
)
"""Text that a program puts before the first element: Open WebUI's retrieval template, the heading of Codex's AGENTS.md."""
_MOST_BLOCK_MARKS = 2**14
"""Marks after which text counts as the user's, unread: each mark costs some microseconds and hundreds of bytes."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """Tool call in a text: its span with the marks, its tool, and its arguments as JSON."""

    span: Span
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """Tool result in a text: its span with the marks and without, and the tool and arguments that its mark names."""

    span: Span
    inside: Span
    name: str | None
    arguments: str | None


@dataclass(frozen=True, slots=True)
class ProgramBlock:
    """A program's block in a user message: its span with the marks and without."""

    span: Span
    inside: Span


def texts_of(message: Message) -> list[tuple[int | None, str]]:
    """Return the texts of a message, each with the index of its part; the index is None if the content is a string."""
    content = message.get("content")
    if isinstance(content, str):
        return [(None, content)]
    if not isinstance(content, list):
        return []
    return [(index, part["text"]) for index, part in enumerate(content) if is_text_part(part)]


def calls_in(text: str) -> list[WrittenCall]:
    """Find the calls in a text, in order. Anything but a JSON object with a name is not a call.

    Several calls may share one pair of marks: the opening then belongs to the first one's span, the closing to the last.
    """
    found: list[WrittenCall] = []
    start, misses = text.find(_CALL), 0
    while start >= 0 and misses < _MISSES:
        at, before = start + len(_CALL), len(found)
        while (call := _call_at(text, at)) is not None:
            name, arguments, at = call
            closing = _CALL_END.match(text, at)
            at = closing.end() if closing is not None else at
            found.append(WrittenCall((start, at), name, arguments))
            start = at
            if closing is not None:
                break
        misses += len(found) == before
        start = text.find(_CALL, at)
    return found


def results_in(text: str) -> list[WrittenResult]:
    """Find the results between marks. Of several openings in a row only the last counts: the user may have typed the others."""
    found: list[WrittenResult] = []
    opened: dict[str, re.Match[str]] = {}
    skills = _skills_in(text)
    for mark in _result_marks(replaced(text, (((start, end), " " * (end - start)) for start, end in skills))):
        if not _closes(mark):
            opened[_kind(mark)] = mark
        elif (opening := opened.get(_kind(mark))) is not None:
            fields = opening["fields"] or ""
            name, arguments = _field(_NAME_FIELD, fields), _field(_ARGUMENTS_FIELD, fields)
            span, inside = (opening.start(), mark.end()), (opening.end(), mark.start())
            found.append(WrittenResult(span, inside, name, arguments))
            opened.clear()
    return sorted([*found, *(WrittenResult(span, span, SKILL, None) for span in skills)], key=lambda r: r.span)


def only_results(message: Message) -> bool:
    """Return whether a message consists of tool results alone. Parts that are not text, such as images, belong to them."""
    content = message.get("content")
    if isinstance(content, str) and content.lstrip()[:1] not in _FIRST:
        return False  # true of nearly every message, and checked several times for each
    found = False
    for _, text in texts_of(message):
        if _NO_WORDS.fullmatch(text):
            continue
        begins = _RESULT_BEGINS.match(text) or _skills_in(text)
        results = [result.span for result in results_in(text)] if begins else []
        if not results or not _NO_WORDS.fullmatch(without(text, results)):
            return False
        found = True
    return found


def authored_text(message: Message) -> str:
    """Return the part of a user message that is certainly the user's own words.

    Everything from the first mark of a result to the last of its kind is left out. Otherwise a result that contains a
    closing mark would pass its remainder off as the user's words, and a truncated result all of itself. Also left out are
    system text, text written by Spillway, the summary of a client's own compaction, and the blocks of programs.
    """
    around = {part: without(text, found) for part, text in texts_of(message) if (found := _skills_in(text))}
    text = text_of(with_parts(message, around))
    if text.startswith(INSTRUCTION):
        return ""
    text = _WRITTEN_HERE.sub("", text.split(f"\n{INSTRUCTION}", 1)[0])
    text = text[: brought_from(text)]
    marks = _result_marks(text)
    last = {_kind(mark): mark for mark in marks}
    spans: list[Span] = []
    for mark in marks:
        after = spans[-1][1] if spans else 0
        if mark.start() >= after:
            end = last[_kind(mark)]
            start = after if _closes(mark) else mark.start()
            spans.append((start, end.end() if _closes(end) else len(text)))
    text = without(text, spans)
    return without(text, (block.span for block in blocks_in(text)))


def without(text: str, spans: Iterable[Span], *, replacement: str = "") -> str:
    """Cut spans, given in order, out of a text, and put `replacement` in place of each."""
    return replaced(text, ((span, replacement) for span in spans))


def replaced(text: str, changes: Iterable[tuple[Span, str]]) -> str:
    """Replace spans of a text, given in order, by other texts."""
    pieces: list[str] = []
    after = 0
    for (start, end), new in changes:
        pieces += (text[after:start], new)
        after = end
    return "".join((*pieces, text[after:])) if pieces else text


def with_parts(message: Message, texts: Mapping[int | None, str]) -> Message:
    """Return the message with new texts at the indices that `texts_of` gives; everything else stays."""
    if not texts:
        return message
    if None in texts:
        return {**message, "content": texts[None]}
    parts = [{**part, "text": texts[at]} if at in texts else part for at, part in enumerate(message["content"])]
    return {**message, "content": parts}


def without_calls(text: str) -> str:
    """Replace each call in a text by a space, so that the text around it cannot join into a new call."""
    return without(text, [call.span for call in calls_in(text)], replacement=" ")


def blocks_in(text: str) -> Iterator[ProgramBlock]:
    """Yield the outermost blocks of a user message, in order. The time is linear in the length of the text."""
    marks = list(islice((mark for mark in _BLOCK_MARK.finditer(text) if _marks_block(text, mark)), _MOST_BLOCK_MARKS))
    ends = _block_ends(marks, len(text))
    after = 0
    for mark in marks:
        if mark.start() < after or (end := ends.get(mark.start())) is None:
            continue
        start = 0 if not after and _BLOCK_HEADING.fullmatch(text, 0, mark.start()) else mark.start()
        after = end[1]
        if not text.startswith(_FENCES, mark.start()):
            yield ProgramBlock((start, after), (mark.end(), end[0]))


def _marks_block(text: str, mark: re.Match[str]) -> bool:
    """Return whether a match marks a block: it begins a line, follows or closes an element, or is a tag that ends a line.

    The place matters because prose may mention a tag.
    """
    if (tag := mark["tag"]) is not None and (tag not in _BLOCK_TAGS or mark["closes"]):
        return tag in _BLOCK_TAGS
    before = text[max(0, mark.start() - 9) : mark.start()].rstrip(" \t")[-1:]
    return before in ("", "\n", ">") or (tag is not None and text.startswith("\n", mark.end()))


def _block_ends(marks: Sequence[re.Match[str]], length: int) -> dict[int, Span]:
    """Return the span of each opening mark's closing mark, by the start of the opening mark.

    Elements of one name nest. Where more of them are opened than closed, several end at the same closing mark.
    """
    # Backwards and in one pass: when each fence searched the rest of the text for its end, 260,000 characters of
    # indented fences took 13 s, now 23 ms.
    ends: dict[int, Span] = {}
    unmatched: dict[str, list[Span]] = {}
    nearest: dict[str, Span] = {}
    for mark in reversed(marks):
        kind = mark["tag"] or mark.group()[:3]
        closings = unmatched.setdefault(kind, [])
        if mark["closes"] or mark["dashed"]:
            closings.append(mark.span())
            continue
        if closings:
            nearest[kind] = closings.pop()
        if kind in nearest:
            ends[mark.start()] = nearest[kind]
        elif mark.group()[0] not in _PAIRED:
            ends[mark.start()] = (length, length)
        if kind.startswith(_FENCES):
            nearest[kind] = mark.span()
    return ends


def _call_at(text: str, at: int) -> tuple[str, str, int] | None:
    """Read the JSON object of a call: its tool, its arguments, and the index after it; None if there is none."""
    begin = _SPACE.match(text, at)
    at = begin.end() if begin is not None else at
    if not text.startswith("{", at):
        return None
    try:
        value, end = _DECODER.raw_decode(text, at)
        name = next((value[key] for key in _NAMES if key in value), None)
        arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
        # In OpenAI's API the arguments are a string that holds JSON.
        written = (
            arguments.strip()
            if isinstance(arguments, str)
            else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        )
    except (ValueError, RecursionError):
        return None
    return (name, written, end) if isinstance(name, str) else None


def _result_marks(text: str) -> list[re.Match[str]]:
    return list(_RESULT_MARK.finditer(text)) if any(word in text for word in _RESULT_WORDS) else []


def _skills_in(text: str) -> list[Span]:
    """Find the spans of the instructions that skills added to a user message, in order."""
    known = any(word in text for word in _RESULT_WORDS[2:])
    return [found.span("skill" if found["skill"] else "element") for found in _SKILL.finditer(text)] if known else []


def _kind(mark: re.Match[str]) -> str:
    return mark.group()[0]


def _closes(mark: re.Match[str]) -> bool:
    return mark.group()[1] == "/"


def _field(pattern: re.Pattern[str], fields: str) -> str | None:
    found = pattern.search(fields)
    return found[found.lastindex] if found is not None and found.lastindex is not None else None
