"""Blocks that programs put around the user's words: reminders, environments, files, retrieved context.

A block is an element whose tag is known from a program, files between dashed lines (Gemini CLI, Qwen Code), or what stands
behind a fixed sentence (aider). Anything else, and what stands in a code fence, is the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

Span = tuple[int, int]

_MARKS = re.compile(
    r"<(?P<closes>/?)(?P<tag>[A-Za-z][\w-]{0,40})(?:[ \t][^<>\n]{0,400})?>"
    r"|--- (?P<dashed>End of )?[Cc]onte[nx]t [^\n]*"
    r"|```+|~~~+"
    r"|Here are summaries of some files present in my git repository\.|Here are some READ ONLY files"
    r"|I have \*added these files to the chat\*|# \*SEARCH/REPLACE block\* Rules:|# File editing rules:"
    r"|To suggest changes to a file you MUST return "
    r"|This is the (?:Qwen Code|Gemini CLI)\. We are setting up the context for our chat\."
)
"""Each alternative begins with a character of its own, so that the text is searched for these alone."""
_TAGS = frozenset(
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

        attached_files context env file files session_context
        """,
    )
)
"""Claude Code's, Codex's, Cline's and its kin's, Cursor's, Copilot's, and those of others (Open WebUI, opencode, Zed, Gemini CLI)."""
_FENCES = ("`", "~")
_PAIRED = frozenset("<-`~")
"""First characters of the marks of what another mark ends; others begin what goes on to the end of the message."""
_HEADING = re.compile(
    r"### Task:\nRespond to the user query using the provided context(?s:.*)\n|# AGENTS\.md instructions[^\n]*\n+"
)
"""Text of a program in front of the first element: Open WebUI's retrieval template, a guide file of Codex."""
_MOST_MARKS = 2**14
"""What is behind so many marks is the user's: each takes some microseconds and hundreds of bytes."""


@dataclass(frozen=True, slots=True)
class ProgramBlock:
    """Span of a program's text in a user message, with and without its marks."""

    span: Span
    inside: Span


def blocks_in(text: str) -> Iterator[ProgramBlock]:
    """Yield the outermost blocks of a user message, in order. The time is linear in the length of the text."""
    marks = list(islice((mark for mark in _MARKS.finditer(text) if _is_mark(text, mark)), _MOST_MARKS))
    ends = _ends(marks, len(text))
    after = 0
    for mark in marks:
        if mark.start() < after or (end := ends.get(mark.start())) is None:
            continue
        start = 0 if not after and _HEADING.fullmatch(text, 0, mark.start()) else mark.start()
        after = end[1]
        if not text.startswith(_FENCES, mark.start()):
            yield ProgramBlock((start, after), (mark.end(), end[0]))


def _is_mark(text: str, mark: re.Match[str]) -> bool:
    """Return whether a match begins a line or follows an element, closes an element, or is a tag that ends a line.

    Prose may mention a tag.
    """
    if (tag := mark["tag"]) is not None and (tag not in _TAGS or mark["closes"]):
        return tag in _TAGS
    before = text[max(0, mark.start() - 9) : mark.start()].rstrip(" \t")[-1:]
    return before in ("", "\n", ">") or (tag is not None and text.startswith("\n", mark.end()))


def _ends(marks: Sequence[re.Match[str]], length: int) -> dict[int, Span]:
    """Return the span of the closing mark of each opening one, by the start of the latter.

    Elements of one name nest. Where more of them are opened than closed, several end at the same closing mark.
    """
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
