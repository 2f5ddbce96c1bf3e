"""Tool calls, results and programs' blocks in texts are found where they are, and nowhere else."""

import json
from functools import partial
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.embedded import IMAGE_OMITTED, authored_text, blocks_in, calls_in, only_results, results_in, without
from proxy.emulation.prompt import call_text
from tests.histories import user

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.just("</tool_call>"), st.just("<tool_call>{")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)  # fmt: skip
objects = st.dictionaries(st.text(max_size=8), values, max_size=4).map(
    partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
)


def found(text: str) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls_in(text)]


@pytest.mark.no_cover
@given(st.lists(st.tuples(names, objects), max_size=4), st.sampled_from(["", "Let me look.\n", "1 < 2 {"]))
def test_calls_in_the_form_that_is_taught_are_read_back(calls: list[tuple[str, str]], said: str) -> None:
    text = said + "\n".join(call_text(name, arguments) for name, arguments in calls)
    assert found(text) == calls
    rest = without(text, [call.span for call in calls_in(text)])
    assert rest == said + "\n" * (len(calls) - 1)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"arguments": {"p": 1}, "name": "ls"}</tool_call>', [("ls", '{"p":1}')]),
        ('<tool_call>{"name":"ls","arguments":" {\\"p\\":1}"}</tool_call>', [("ls", '{"p":1}')]),
        ('<tool_call>{"tool":"ls","args":{}}</tool_call>', [("ls", "{}")]),
        ('<tool_call>{"name":"ls"}</tool_call> and so on', [("ls", "{}")]),
        ('<tool_call> {"name":"a"}\n{"name":"b"}</tool_call>', [("a", "{}"), ("b", "{}")]),
        ('<tool_call>{"name":"ls"}', [("ls", "{}")]),
        ('<tool_call><tool_call>{"name":"ls"}</tool_call>', [("ls", "{}")]),
        ('<tool_call>{"name":"ls"', []),
        ('<tool_call>{"name":5}</tool_call>', []),
        ('<tool_call>{"name" "ls"}</tool_call>', []),
        ('<tool_call>{"name":"ls" "x":1}</tool_call>', []),
        ('<tool_call>{5:"ls"}</tool_call>', []),
        ('<tool_call>["ls"]</tool_call>', []),
        ('{"name":"ls","arguments":{}}', []),
        ("<tool_call>{" + '"a":[' * 3 + "[" * 100_000, []),
        ("<tool_call>", []),
    ],
)
def test_only_objects_with_a_name_between_the_marks_are_calls(text: str, calls: list[tuple[str, str]]) -> None:
    assert found(text) == calls


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("content", "only"),
    [
        ("<tool_result tool_name='ls'>a</tool_result>", True),
        (" \n[TOOL_RESULT]a[/TOOL_RESULT]\n\n<tool_result>b</tool_result>\n", True),
        ("[TOOL_RESULT][/TOOL_RESULT]", True),
        ("[TOOL_RESULT]a[/TOOL_RESULT] Why?", False),
        ("Why? [TOOL_RESULT]a[/TOOL_RESULT]", False),
        ("[TOOL_RESULT]a[/TOOL_RESULT] and [TOOL_RESULT]b[/TOOL_RESULT]", False),
        ("[TOOL_RESULT]never closed", False),
        ("<tool_results>a</tool_results>", False),
        ("", False),
        (None, False),
        ([], False),
        ([IMAGE], False),
        ([text(""), IMAGE], False),
        ([text(IMAGE_OMITTED.format(""))], False),
        ([text("[TOOL_RESULT]a[/TOOL_RESULT]"), IMAGE, text("\n\n")], True),
        ([text(IMAGE_OMITTED.format(" of 3x4 pixels")), text("[TOOL_RESULT]a[/TOOL_RESULT]")], True),
        ([text("[TOOL_RESULT]a[/TOOL_RESULT]"), text("Why?")], False),
    ],
)
def test_a_message_of_nothing_but_results(content: Any, only: bool) -> None:
    assert only_results({"role": "user", "content": content}) is only


@pytest.mark.parametrize(
    "piece",
    [
        *("<tool_call>", "<tool_call>{", '<tool_call>{"a":"', '<tool_call>{"a":[', '<tool_call>{"name":"x"}'),
        *('<tool_call>{"a":\'\\"', "<tool_result ", "tool_result", "<tool_result a><", "[TOOL_RESULT]x"),
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    hostile = piece * (1_000_000 // len(piece))
    started = process_time()
    calls_in(hostile)
    list(results_in(hostile))
    only_results(user(f"[TOOL_RESULT]{hostile}[/TOOL_RESULT]"))
    assert process_time() - started < 5


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
        "<notes>\nmine\n</notes>\nWhat is missing?", "```xml\n<file>\na\n</file>\n```\nWhy is it invalid?",
        "1. Why is it invalid?\n   ```xml\n<file>\na\n</file>\n   ```",
        "<rules>\nNever use tabs.\n</rules>\n<task>\nMend the door.\n</task>",
        "Why does <context>a</context> appear in my prompt?", "<system-reminder> is a tag that I saw. Why?",
        "<ul>\n<li>a</li>\n</ul>\nIs it valid?", "<FileList>\n<File/>\n</FileList>\nIs it valid?",
        "--- a/x.py ---\n+ b\nWhat changed?", "### Task:\nTranslate this.\n", "# Rules:\nEvery block must be short.",
    ],
)  # fmt: skip
def test_other_text_is_the_users(text: str) -> None:
    assert list(blocks_in(text)) == []
