"""Tool calls and results as text are found where they are, and nowhere else."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.tooltext import IMAGE_OMITTED, calls_in, only_results, results_in, spoken, without
from proxy.emulation.protocol import call_text
from tests.histories import assistant, tool, user

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.just("</tool_call>"), st.just("<tool_call>{")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)  # fmt: skip
objects = st.dictionaries(st.text(max_size=8), values, max_size=4).map(json.dumps)


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
        ('<tool_call>{"arguments": {"p": 1}, "name": "ls"}</tool_call>', [("ls", '{"p": 1}')]),
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


def test_what_is_around_calls_and_results_is_said() -> None:
    call = call_text("ls", "{}")
    assert spoken(assistant(f"One {call} two {call}")) == "One  two "
    result = "<tool_result tool_name='ls'>a b</tool_result>"
    assert spoken(user(f"See {result} and [TOOL_RESULT]x[/TOOL_RESULT].")) == "See  and ."
    assert spoken(assistant(result)) == result
    assert spoken(user(call)) == call
    assert spoken(tool(1, result)) == result
    parts = [{"type": "text", "text": f"a {result}"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert spoken({"role": "user", "content": parts}) == "a \nb"


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
        "<tool_call>",
        "<tool_call>{",
        '<tool_call>{"a":"',
        '<tool_call>{"a":[',
        '<tool_call>{"name":"x"}',
        '<tool_call>{"a":\'\\"',
        "<tool_result ",
        "tool_result",
        "<tool_result a><",
        "[TOOL_RESULT]x",
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    hostile = piece * (1_000_000 // len(piece))
    started = process_time()
    calls_in(hostile)
    list(results_in(hostile))
    only_results(user(f"[TOOL_RESULT]{hostile}[/TOOL_RESULT]"))
    assert process_time() - started < 5
