import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.results import results_of
from proxy.core.history.turns import is_result, is_user
from proxy.emulation.forms import Call, CallFault
from proxy.emulation.offer import Offer, offer_of
from proxy.emulation.prompt import as_text, complaint, protocol, rule
from tests.emulation.outputs import TAGGED, offer, scanned
from tests.emulation.test_arguments import values

OFFER = offer()
SILENT = Offer({}, "none")
PROTOCOL = protocol(OFFER)


def call(name: str = "get_weather", arguments: Any = '{"city": "Paris"}', call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asked(content: Any, *calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def tool(content: Any, call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def rewritten(*messages: dict[str, Any]) -> list[Any]:
    return [dict(m) for m in as_text(messages, SILENT)]


def test_the_protocol_goes_into_the_last_leading_system_message() -> None:
    first, second = {"role": "system", "content": "A"}, {"role": "developer", "content": "B", "name": "x"}
    user = {"role": "user", "content": "hi"}
    done = as_text([first, second, user], OFFER)
    assert done == [first, {**second, "content": f"B\n\n{PROTOCOL}"}, user]
    assert done[0] is first
    assert done[2] is user


def test_calls_stand_behind_the_content() -> None:
    message = asked("I look.", call(), call("now", ""), reasoning_content="hm", name="bot")
    now = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert rewritten(message) == [
        {"role": "assistant", "content": f"I look.\n{TAGGED}\n{now}", "reasoning_content": "hm", "name": "bot"}
    ]
    parts = [{"type": "text", "text": "I look."}]
    assert rewritten(asked(parts, call()))[0]["content"] == [*parts, {"type": "text", "text": f"\n{TAGGED}"}]


@pytest.mark.parametrize("broken", ["{", "[1]", 5, None, {"function": 3}, "not json"])
def test_calls_that_are_broken_are_told_somehow(broken: Any) -> None:
    messages = [asked("x", call(arguments=broken), {"id": "d", "function": broken}, broken)]
    (done,) = rewritten(*messages)
    assert done["content"].startswith("x\n<tool_call>")
    assert rewritten(done) == [done]


def test_results_are_found_by_the_ladder() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        asked("", call(), call("now", "{}", "c2")),
        tool("rain"),
        tool([{"type": "text", "text": "5"}, {"type": "image_url", "image_url": {}}], "c2"),
        tool("?", "c9"),
    ]
    done = rewritten(*messages)
    assert len(done) == len(messages)
    assert [(r.index, r.part, r.name, r.text) for r in results_of(done)] == [
        (2, None, "get_weather", "rain"),
        (3, 0, "now", "5"),
        (4, None, "tool", "?"),
    ]
    assert done[2] == {"role": "user", "content": "<tool_result tool_name='get_weather'>rain</tool_result>"}
    assert done[3]["content"][1] == {"type": "image_url", "image_url": {}}


@given(st.lists(st.sampled_from(["<tool_result", "</tool_result>", "[TOOL_RESULT]", "[/tool_result]", ">", "\\", "x"])))
def test_no_data_closes_its_own_tag(words: list[str]) -> None:
    body = "".join(words)
    done = rewritten(tool(body, name="read'><b"))
    (found,) = results_of(done)
    assert found.name == "read___b"
    assert done[0]["content"] == f"<tool_result tool_name='read___b'>{found.text}</tool_result>"
    assert found.text.replace("\\", "") == body.replace("\\", "")


@given(st.dictionaries(st.text(), values, max_size=4), st.booleans(), st.text("abc \n", max_size=9))
def test_what_is_written_for_a_call_is_read_back(arguments: dict[str, Any], ascii_only: bool, said: str) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    (done,) = rewritten(asked(said, call("now", text), call("search", "{}")))
    found = scanned([done["content"]])
    assert [each for each in found if isinstance(each, Call)] == [
        Call("now", json.dumps(arguments, ensure_ascii=False), "tool_call"),
        Call("search", "{}", "tool_call"),
    ]
    assert "".join(each for each in found if isinstance(each, str)).strip() == said.strip()


@st.composite
def messages_of_any_kind(draw: st.DrawFn) -> list[dict[str, Any]]:
    kinds = st.sampled_from(["system", "user", "assistant", "calls", "tool"])
    contents = st.none() | st.text(max_size=5) | st.just([{"type": "text", "text": "t"}])
    made: list[dict[str, Any]] = []
    for kind in draw(st.lists(kinds, max_size=8)):
        content = draw(contents)
        if kind == "calls":
            made.append(asked(content, call()))
        elif kind == "tool":
            made.append(tool(content))
        else:
            made.append({"role": kind, "content": content, "own": 1})
    return made


OFFERS = [OFFER, *(offer(tool_choice=c) for c in ("none", "required")), offer(parallel_tool_calls=False)]


@given(messages_of_any_kind(), st.sampled_from(OFFERS), st.booleans())
def test_one_message_for_each(messages: list[dict[str, Any]], of: Offer, system: bool) -> None:
    done = as_text(messages, of, system=system)
    leads = bool(messages) and messages[0]["role"] == "system"
    speaks = any(m["role"] in {"user", "tool"} for m in messages)
    assert len(done) == len(messages) + (not leads and (system or not speaks))
    assert all(not m.get("tool_calls") and m["role"] in {"system", "user", "assistant"} for m in done)
    plain = [m for m in messages if m["role"] in {"user", "assistant"} and "tool_calls" not in m]
    kept = [m for m in done if any(m is p for p in plain)]
    if system and not rule(of):
        assert kept == plain
    assert len(kept) >= len(plain) - bool(rule(of)) - (not system)
    said = str(done)
    assert said.count("# Tools") == 1
    assert said.count("[For this answer") == bool(rule(of))


REQUIRED = offer(tool_choice="required")
RULE = "[For this answer: you must call a tool.]"
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "A"}, {"role": "user", "content": "hi"}, asked(None, call()), tool("rain"),
]  # fmt: skip


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("choice", ["none", "required", {"function": {"name": "now"}}])
def test_another_choice_changes_the_end_of_the_prompt_only(choice: Any, length: int) -> None:
    history, of = HISTORY[:length], offer(tool_choice=choice, parallel_tool_calls=False)
    plain, done = as_text(history, OFFER), as_text(history, of)
    assert done[:-1] == plain[:-1]
    assert done[-1]["content"] == f"{plain[-1]['content']}\n\n{rule(of)}"


def test_a_choice_does_not_make_a_result_the_users_words() -> None:
    done = as_text(HISTORY, REQUIRED)
    assert done[-1]["content"] == f"<tool_result tool_name='get_weather'>rain</tool_result>\n\n{RULE}"
    parts = as_text([*HISTORY[:3], tool([{"type": "text", "text": "rain"}])], REQUIRED)
    assert parts[-1]["content"][-1] == {"type": "text", "text": f"\n\n{RULE}"}
    for message in (done[-1], parts[-1]):
        assert is_result(message)
        assert not is_user(message)
    assert is_user(as_text(HISTORY[:2], REQUIRED)[-1])


@pytest.mark.parametrize("last", [{"role": "assistant", "content": "So"}, {"role": "user", "content": {"x": 1}}])
def test_a_choice_that_can_not_stand_at_the_end_stands_behind_the_protocol(last: dict[str, Any]) -> None:
    system, *_, same = as_text([*HISTORY, last], REQUIRED)
    assert system["content"] == f"A\n\n{PROTOCOL}\n\n{RULE}"
    assert same is last


def test_without_a_system_role_the_protocol_opens_the_first_user_message() -> None:
    first, answer = {"role": "user", "content": "hi", "name": "x"}, {"role": "assistant", "content": "B"}
    done = as_text([first, answer, {"role": "user", "content": "C"}], OFFER, system=False)
    assert done[0] == {**first, "content": f"{PROTOCOL}\n\nhi"}
    assert done[1:] == [answer, {"role": "user", "content": "C"}]
    both = as_text([first], REQUIRED, system=False)
    assert both[0]["content"] == f"{PROTOCOL}\n\nhi\n\n{RULE}"
    assert as_text(HISTORY, OFFER, system=False) == as_text(HISTORY, OFFER)
    assert as_text([answer], OFFER, system=False) == [{"role": "user", "content": PROTOCOL}, answer]


# -- the protocol

TEXT = """\
# Tools

To call a tool, write exactly this and stop:
<tool_call>
{"name": "NAME", "arguments": {"PARAMETER": VALUE}}
</tool_call>
Arguments are strict JSON. For several calls, write one such block after the other. Results come in the next message as \
<tool_result tool_name='NAME'>...</tool_result>: never write one yourself. If no tool is needed, answer in plain text.

Tools (? marks optional parameters):
- get_weather: Get the weather of a city.
  city: string /* Name of the city */
  days?: integer
  unit?: "celsius" | "fahrenheit"
  hourly?: boolean
  height?: number | null
- write_file: Write a file.
  path: string
  content: string
- search
  query?: string
  tags?: string[]
  filter?: object
- now: Tell the time."""


def one(parameters: Any, **more: Any) -> str:
    found = offer_of({"tools": [{"function": {"name": "f", "parameters": parameters, **more}}]})
    assert found is not None
    return protocol(found).partition("parameters):\n")[2]


def of(schema: Any, **more: Any) -> str:
    return one({"type": "object", "properties": {"x": schema}, "required": ["x"], **more})


def test_the_protocol() -> None:
    assert protocol(offer()) == TEXT
    assert protocol(offer()) == protocol(offer())


NAMED = {"type": "function", "function": {"name": "now"}}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": n}} for n in ("search", "write_file", "fly")]},
}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"tool_choice": "none"}, "[For this answer: do not call a tool.]"),
        ({"tool_choice": "none", "parallel_tool_calls": False}, "[For this answer: do not call a tool.]"),
        ({"tool_choice": "required"}, "[For this answer: you must call a tool.]"),
        ({"tool_choice": NAMED}, "[For this answer: you must call now.]"),
        ({"tool_choice": ALLOWED}, "[For this answer: call none but write_file, search.]"),
        ({"parallel_tool_calls": False}, "[For this answer: write at most one call.]"),
        ({"parallel_tool_calls": False, "tool_choice": "required"}, "[For this answer: you must call a tool; write at most one call.]"),
    ],
)  # fmt: skip
def test_what_holds_for_one_answer_is_told_apart(fields: dict[str, Any], told: str) -> None:
    found = offer(**fields)
    assert rule(found) == told
    assert protocol(found) == TEXT


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"const": "a"}, '"a"'),
        ({"type": "integer", "default": 3}, "integer = 3"),
        ({"type": "string", "default": "x" * 100}, "string"),
        ({"type": "array", "items": {"type": "number"}}, "number[]"),
        ({"type": "array", "items": {"enum": [1, 2]}}, "(1 | 2)[]"),
        ({"type": "array"}, "array"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "{a?: string}"),
        ({"type": "object"}, "object"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "string | string[]"),
        ({"$ref": "#/$defs/d"}, "boolean"),
        ({"$ref": "http://x/y"}, "any"),
        ({"$ref": "#/$defs/loop"}, "any"),
        ({}, "any"),
        (True, "any"),
        ({"type": 5}, "any"),
    ],
)
def test_types(schema: Any, told: str) -> None:
    defs = {"d": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}
    assert of(schema, **{"$defs": defs}) == f"- f\n  x: {told}"


def test_what_is_said_of_parameters_is_told_once_each() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string", "description": "The\n old text."}}}
    told = of({"type": "array", "description": "Edits.", "items": inner})
    assert told == "- f\n  x: {a?: string /* The old text. */}[] /* Edits. */"


def test_schemas_that_multiply_are_bounded() -> None:
    levels = {f"l{n}": {"properties": {k: {"$ref": f"#/$defs/l{n + 1}"} for k in "abcdefgh"}} for n in range(9)}
    assert len(of({"$ref": "#/$defs/l0"}, **{"$defs": levels})) < 20_000
    own = {"properties": {"me": {"$ref": "#"}, "also": {"$ref": "#"}}}
    assert len(one(own)) < 20_000


@given(
    st.recursive(
        st.text(max_size=3) | st.integers() | st.none(),
        lambda s: (
            st.lists(s, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "properties", "items", "required", "enum", "$ref", "anyOf", "x"]), s)
        ),
        max_leaves=10,
    )
)
def test_any_schema_is_told(schema: Any) -> None:
    assert one(schema).startswith("- f")


def test_the_complaint_says_each_reason_once_and_shows_the_form() -> None:
    wrong = [CallFault("not_json", "", "bare", "a")] * 2 + [CallFault("cut", "", "bare", "cut")]
    text = complaint(wrong)
    assert "made: a; it was cut off before its end. Write it again" in text
    assert "<tool_call>" in text
    assert len(complaint([CallFault("not_json", "", "bare", "y" * 5000)] * 9)) < 1000
    assert all(isinstance(each, str) for each in scanned([text]))
