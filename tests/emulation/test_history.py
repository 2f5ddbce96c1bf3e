from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ladder.results import results_of
from proxy.core.history.turns import is_result, is_user
from proxy.emulation import Call, CallScanner, Offer, Text, as_text, protocol
from proxy.emulation.protocol import rule
from tests.emulation.outputs import TAGGED, offer

OFFER = offer()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)
SILENT = Offer({}, "none")
PROTOCOL = protocol(OFFER)


def call(name: str = "get_weather", arguments: Any = '{"city": "Paris"}', call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asked(content: Any, *calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def tool(content: Any, call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def rewritten(*messages: dict[str, Any]) -> list[Any]:
    """The messages alone, without a protocol."""
    return [dict(m) for m in as_text(messages, SILENT)]


def test_the_protocol_goes_into_the_last_leading_system_message() -> None:
    first, second = {"role": "system", "content": "A"}, {"role": "developer", "content": "B", "name": "x"}
    user = {"role": "user", "content": "hi"}
    done = as_text([first, second, user], OFFER)
    assert done == [first, {**second, "content": f"B\n\n{PROTOCOL}"}, user]
    assert done[0] is first
    assert done[2] is user
    assert as_text(done, OFFER) == done
    assert all(new is old for new, old in zip(as_text(done, OFFER), done, strict=True))


def test_the_protocol_is_a_part_where_there_are_parts() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "A"}]}
    done = as_text([system], OFFER)
    assert done[0]["content"] == [{"type": "text", "text": "A"}, {"type": "text", "text": f"\n\n{PROTOCOL}"}]
    assert as_text(done, OFFER) == done


@pytest.mark.parametrize("content", [None, "", []])
def test_an_empty_system_message_gets_the_protocol(content: Any) -> None:
    assert as_text([{"role": "system", "content": content}], OFFER)[0]["content"] == PROTOCOL


def test_without_a_system_message_one_comes_first() -> None:
    user = {"role": "user", "content": "hi"}
    done = as_text([user], OFFER)
    assert done == [{"role": "system", "content": PROTOCOL}, user]
    assert as_text(done, OFFER) == done


def test_where_no_tool_is_offered_the_history_is_rewritten_all_the_same() -> None:
    assert rewritten(asked(None, call())) == [{"role": "assistant", "content": TAGGED}]


def test_calls_stand_behind_the_content() -> None:
    message = asked("I look.", call(), call("now", ""), reasoning_content="hm", name="bot")
    now = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert rewritten(message) == [
        {"role": "assistant", "content": f"I look.\n{TAGGED}\n{now}", "reasoning_content": "hm", "name": "bot"}
    ]
    parts = [{"type": "text", "text": "I look."}]
    assert rewritten(asked(parts, call()))[0]["content"] == [*parts, {"type": "text", "text": f"\n{TAGGED}"}]


def test_calls_of_the_older_api_and_of_ollama() -> None:
    legacy = {"role": "assistant", "content": "", "function_call": {"name": "now", "arguments": "{}"}}
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert rewritten(legacy, {"role": "function", "name": "now", "content": "5"}) == [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "<tool_result tool_name='now'>5</tool_result>"},
    ]
    as_object = asked("", call(arguments={"city": "Paris"}))
    assert '"arguments": {"city":"Paris"}' in rewritten(as_object)[0]["content"]


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


def test_a_result_of_images_alone_is_said_to_be_one() -> None:
    image = {"type": "image_url", "image_url": {}}
    (done,) = rewritten(tool([image], name="shot"))
    assert done["content"] == [{"type": "text", "text": "<tool_result tool_name='shot'></tool_result>"}, image]


@pytest.mark.parametrize(("content", "text"), [(None, ""), ({"a": 1}, '{"a":1}'), ("", "")])
def test_results_of_other_kinds(content: Any, text: str) -> None:
    assert [r.text for r in results_of(rewritten(tool(content)))] == [text]


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
    scanner = CallScanner(OFFER)
    pieces = [*scanner.feed(done["content"]), *scanner.close()]
    calls = [piece for piece in pieces if isinstance(piece, Call)]
    assert calls == [Call("now", text, "tool_call"), Call("search", "{}", "tool_call")]
    assert "".join(p.text for p in pieces if isinstance(p, Text)).strip() == said.strip()


@st.composite
def messages_of_any_kind(draw: st.DrawFn) -> list[dict[str, Any]]:
    kinds = st.sampled_from(["system", "user", "assistant", "calls", "tool", "function"])
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
def test_one_message_for_each_and_the_same_when_done_again(
    messages: list[dict[str, Any]], of: Offer, system: bool
) -> None:
    done = as_text(messages, of, system=system)
    leads = bool(messages) and messages[0]["role"] == "system"
    speaks = any(m["role"] in {"user", "tool", "function"} for m in messages)
    assert len(done) == len(messages) + (not leads and (system or not speaks))
    again = as_text(done, of, system=system)
    assert again == done
    assert all(new is old for new, old in zip(again, done, strict=True))
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
    {"role": "system", "content": "A"},
    {"role": "user", "content": "hi"},
    asked(None, call()),
    tool("rain"),
]


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("choice", ["none", "required", {"function": {"name": "now"}}])
def test_another_choice_changes_the_end_of_the_prompt_only(choice: Any, length: int) -> None:
    history, of = HISTORY[:length], offer(tool_choice=choice, parallel_tool_calls=False)
    plain, done = as_text(history, OFFER), as_text(history, of)
    assert done[:-1] == plain[:-1]
    assert done[-1]["content"] == f"{plain[-1]['content']}\n\n{rule(of)}"
    assert as_text(done, of) == done


def test_a_choice_does_not_make_a_result_the_users_words() -> None:
    done = as_text(HISTORY, REQUIRED)
    assert done[-1]["content"] == f"<tool_result tool_name='get_weather'>rain</tool_result>\n\n{RULE}"
    parts = as_text([*HISTORY[:3], tool([{"type": "text", "text": "rain"}])], REQUIRED)
    assert parts[-1]["content"][-1] == {"type": "text", "text": f"\n\n{RULE}"}
    for message in (done[-1], parts[-1]):
        assert is_result(message)
        assert not is_user(message)
    assert is_user(as_text(HISTORY[:2], REQUIRED)[-1])


@pytest.mark.parametrize("content", [None, "", []])
def test_a_choice_behind_nothing(content: Any) -> None:
    assert as_text([{"role": "user", "content": content}], REQUIRED)[-1]["content"] == RULE


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
    assert as_text(both, REQUIRED, system=False) == both
    assert as_text(HISTORY, OFFER, system=False) == as_text(HISTORY, OFFER)
    assert as_text([answer], OFFER, system=False) == [{"role": "user", "content": PROTOCOL}, answer]


def test_without_a_system_role_the_protocol_is_a_part_where_there_are_parts() -> None:
    image = {"type": "image_url", "image_url": {}}
    (done,) = as_text([{"role": "user", "content": [image]}], OFFER, system=False)
    assert done["content"] == [{"type": "text", "text": f"{PROTOCOL}\n\n"}, image]
    assert as_text([done], OFFER, system=False) == [done]


def test_results_of_one_tool_called_twice_tell_which_call_they_belong_to() -> None:
    calls = [
        {"id": city, "type": "function", "function": {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}}
        for city in ("Paris", "Rome")
    ]
    results = [
        {"role": "tool", "tool_call_id": city, "content": weather}
        for city, weather in (("Rome", "Hot."), ("Paris", "Wet."))
    ]
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
    ]
    *_, rome, paris = as_text(history, offer())
    assert 'arguments=\'{"city": "Rome"}\'' in rome["content"]
    assert 'arguments=\'{"city": "Paris"}\'' in paris["content"]
    found = results_of([*as_text(history, offer())][1:])
    assert [(one.arguments, one.text) for one in found] == [('{"city": "Rome"}', "Hot."), ('{"city": "Paris"}', "Wet.")]
