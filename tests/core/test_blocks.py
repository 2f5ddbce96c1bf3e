"""Which parts of a user's message programs wrote, told by structure."""

from __future__ import annotations

import pytest

from proxy.core.history.blocks import blocks_in
from proxy.core.history.tooltext import authored_text, without

TASK = "Mend the door."
PROGRAMS = {
    "Claude Code": f"<system-reminder>\nOf <system-reminder> tags.\n</system-reminder>\n\n{TASK}\n<system-reminder>\nx\n</system-reminder>",
    "Claude Code, a command": f"<local-command-stdout>a</local-command-stdout>\n{TASK}",
    "Cline": f"<task>\n{TASK}\n</task>\n<environment_details>\n# Open tabs\na.py\n</environment_details>",
    "Cline, no line between": f"{TASK}<environment_details>\n# Open tabs\n</environment_details>",
    "Codex": f"# AGENTS.md instructions for /r\n\n<INSTRUCTIONS>\nBe kind.\n</INSTRUCTIONS>\n<environment_context>\n  <cwd>/r</cwd>\n</environment_context>\n{TASK}",
    "Codex, before": f"<user_instructions>\nBe kind.\n</user_instructions>\n{TASK}",
    "Cursor": f"<project_layout>\na.py\n</project_layout>\n<user_query>\n{TASK}\n</user_query>",
    "Copilot": f"<editorContext>\na.py\n</editorContext>\n<reminderInstructions>\nx\n</reminderInstructions>\n<userRequest>\n{TASK}\n</userRequest>",
    "Open WebUI": f'### Task:\nRespond to the user query using the provided context.\n\n### Guidelines:\n- Cite.\n\n<context>\n<source id="1">a</source>\n</context>\n\n{TASK}',
    "Open WebUI, files": f'<attached_files>\n<file type="file" url="a"/>\n</attached_files>\n\n{TASK}',
    "opencode": f"{TASK}\n<file>\n00001| a\n</file>",
    "Gemini CLI": f"{TASK}\n--- Content from referenced files ---\na\n--- End of content ---\n",
    "a file in which an element is not closed": f"<file>\na\n<file>\nb\n</file>\n{TASK}\n<file>\nc\n</file>",
    "aider": f"{TASK}\n\n# *SEARCH/REPLACE block* Rules:\n\nEvery block must use this format.",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_blocks_stand_around_the_users_words(program: str) -> None:
    text = PROGRAMS[program]
    said = without(text, (block.span for block in blocks_in(text)))
    assert said.replace("\n", "").strip() in (
        TASK,
        *(f"<{tag}>{TASK}</{tag}>" for tag in ("task", "user_query", "userRequest")),
    )
    assert authored_text({"role": "user", "content": text}) == said


@pytest.mark.parametrize(
    "text",
    [
        "<notes>\nmine\n</notes>\nWhat is missing?",
        "```xml\n<file>\na\n</file>\n```\nWhy is it invalid?",
        "1. Why is it invalid?\n   ```xml\n<file>\na\n</file>\n   ```",
        "<rules>\nNever use tabs.\n</rules>\n<task>\nMend the door.\n</task>",
        "Why does <context>a</context> appear in my prompt?",
        "<system-reminder> is a tag that I saw. Why?",
        "<ul>\n<li>a</li>\n</ul>\nIs it valid?",
        "<FileList>\n<File/>\n</FileList>\nIs it valid?",
        "--- a/x.py ---\n+ b\nWhat changed?",
        "### Task:\nTranslate this.\n",
        "# Rules:\nEvery block must be short.",
    ],
)
def test_other_text_is_the_users(text: str) -> None:
    assert list(blocks_in(text)) == []
