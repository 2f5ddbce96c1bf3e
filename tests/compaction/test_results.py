import re
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.results import note_for, results_of, with_texts
from proxy.core.request import Message
from tests.histories import assistant, call, tool, user

TAGGED = "Look: <tool_result tool_name='read' id=\"7\">\nfirst\n</tool_result> and [TOOL_RESULT]second[/TOOL_RESULT] thanks"


def texts(message: Message) -> list[str]:
    return [result.text for result in results_of([message])]


def test_results_are_found_in_every_form_and_know_their_call() -> None:
    messages = [
        user("a"),
        assistant(None, tool_calls=[call(1, "grep", '{"q": 1} '), call(2, "ls")]),
        tool(1, "one"),
        {"role": "tool", "tool_call_id": "call_2", "name": "renamed", "content": [{"type": "text", "text": "two"}]},
        assistant(None, tool_calls=[{"id": "call_3", "function": {"name": "deep", "arguments": {"deep": 1}}}]),
        tool(3, "three"),
        user(TAGGED),
        {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": TAGGED}]},
    ]
    found = [(r.index, r.part, r.name, r.arguments, r.text) for r in results_of(messages)]
    assert found == [
        (2, None, "grep", '{"q": 1}', "one"), (3, 0, "renamed", '{"path":"a.py"}', "two"),
        (5, None, "deep", '{"deep":1}', "three"), (6, None, "read", None, "\nfirst\n"), (6, None, "tool", None, "second"),
        (7, 1, "read", None, "\nfirst\n"), (7, 1, "tool", None, "second"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<tool_result>a</tool_result>", ["a"]),
        ("<tool_result tool_name='x'>a</tool_result><tool_result tool_name='x'>b</tool_result>", ["a", "b"]),
        ("<tool_results>a</tool_results>", []),
        ("[TOOL_RESULT]never closed", []),
        ("closed only[/TOOL_RESULT]", []),
        ("what is [TOOL_RESULT]? <tool_result>a</tool_result>", ["a"]),
        ("what is <tool_result>? <tool_result>a</tool_result>", ["a"]),
        ("[TOOL_RESULT]a <tool_result> b[/TOOL_RESULT] c</tool_result>", ["a <tool_result> b"]),
        ("[TOOL_RESULT]a</tool_result>[/TOOL_RESULT]", ["a</tool_result>"]),
        ("<tool_result arguments='{}' name=\"n\">a</tool_result>", ["a"]),
    ],
)
def test_only_what_is_surely_between_marks_is_a_result(text: str, found: list[str]) -> None:
    assert texts(user(text)) == found


@pytest.mark.parametrize("message", [assistant(TAGGED), {"role": "system", "content": TAGGED}, user(""), {"role": "tool"}])
def test_other_messages_have_none(message: Message) -> None:
    assert [text for text in texts(message) if text] == []


def test_only_the_results_are_replaced() -> None:
    odd: dict[str, Any] = {"type": "text", "text": TAGGED, "cache_control": {"type": "ephemeral"}}
    message: Message = {"role": "user", "content": [{"type": "image_url"}, odd, "loose", odd], "x": 1}
    results = results_of([message])
    done = with_texts(message, {r: f"<{n}>" for n, r in enumerate(results)})
    assert done["content"][1] == {**odd, "text": odd["text"].replace("\nfirst\n", "<0>").replace("second", "<1>")}
    assert done["content"][3]["text"] == odd["text"].replace("\nfirst\n", "<2>").replace("second", "<3>")
    assert {**done, "content": 0} == {**message, "content": 0}
    assert done["content"][0::2] == message["content"][0::2]
    assert with_texts(message, {}) is message


marks = st.sampled_from(
    ["<tool_result>", "<tool_result name='a'>", "</tool_result>", "[TOOL_RESULT]", "[/TOOL_RESULT]", "<", "x", "\n", "'"]
)


@given(st.lists(marks, max_size=30).map("".join))
def test_replacing_each_result_with_itself_changes_nothing(text: str) -> None:
    message = user(text)
    results = results_of([message])
    assert with_texts(message, {r: r.text for r in results}) == message
    noted = with_texts(message, dict.fromkeys(results, "note"))
    assert texts(noted) == ["note"] * len(results)
    assert all(text[r.start : r.end] == r.text for r in results)


@pytest.mark.parametrize(
    "piece",
    ["<tool_result ", "<tool_result '", "[TOOL_RESULT]", "<tool_result a><", "[TOOL_RESULT]x[/TOOL_RESULT]", "</tool_result>"],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    message = user(piece * (1_000_000 // len(piece)))
    started = process_time()
    results = results_of([message])
    with_texts(message, dict.fromkeys(results, ""))
    assert process_time() - started < 3


FILE = "<path>/src/a.py</path>\n<type>file</type>\n<content>\n" + "1: import os\n" * 90 + "</content>"


def note_of(text: str) -> str:
    (result,) = results_of([tool(1, text)])
    return note_for(result)


@pytest.mark.parametrize(
    ("text", "began"),
    [
        (FILE, "/src/a.py file 1: import os"),
        (f"<file><content lang='py'>\n{'x = 1 ' * 90}</content></file>", "x = 1 x = 1"),
        (f"{'word ' * 20}<content of='a long name'>{'x ' * 300}</content>", "word " * 17),
        (f"a < b and c > d, e<f\nthen {'x ' * 300}", "a < b and c > d, e<f then x"),
        (f"[<tool_result> <tool_call> {'x ' * 300}", "[ x"),
    ],
)
def test_a_note_shows_the_beginning_without_its_tags(text: str, began: str) -> None:
    assert note_of(text).split("It began: ")[1].startswith(began)


TRACEBACK = """Traceback (most recent call last):
  File "<frozen importlib._bootstrap>", line 1178, in _find_and_load
  File "app.py", line 3, in <module>
    import traitlets
ModuleNotFoundError: No module named 'traitlets'
(Current directory: /src)
"""


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        (TRACEBACK * 3, "ModuleNotFoundError: No module named 'traitlets'"),
        (f"{'ok ' * 300}\n12 passed in 3 s\n", "12 passed in 3 s"),
        ("x " * 400, "x"),
    ],
)
def test_a_note_tells_the_last_error_or_the_last_line(text: str, ended: str) -> None:
    note = note_of(text)
    assert note.endswith(f"… {ended} Call the tool again if you need it.]") or ended == "x"
    assert "</" not in note


def test_what_its_note_would_save_little_of_is_not_left_out() -> None:
    short, long = results_of([tool(1, "a line of it\n" * 20), tool(2, "a line of it\n" * 40)])
    assert (short.is_long, long.is_long) == (False, True)


@given(st.lists(st.sampled_from(["<a>", "</a>", "<b x='1'>", "</b>", "<i/>", "<", ">", "word ", "</"]), max_size=90))
def test_a_note_has_no_tag(parts: list[str]) -> None:
    assert not re.search(r"</?[a-z]+(?: x='1')?>", note_of("".join(parts)))


def test_a_result_in_a_users_message_has_the_name_of_the_call_that_it_answers() -> None:
    asked = assistant(None, tool_calls=[call(1, "grep"), call(2, "ls")])
    found = results_of([asked, tool(1, "one"), user("See: [TOOL_RESULT]two[/TOOL_RESULT]")])
    assert [result.name for result in found] == ["grep", "ls"]
