"""Histories that a backend would refuse are mended; all others stay the objects they are."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.profile import RepairRules
from proxy.core.history.marks import BEGIN
from proxy.core.history.turns import is_result
from proxy.core.jsontext import loads
from proxy.core.request import Message, text_of
from proxy.shaping.repair import LOST, repair, rules_for
from tests.fakes.history import check_history
from tests.histories import assistant, call, flaws, histories, tool, user

LENIENT = RepairRules()
STRICT = RepairRules(alternate=True, one_system=True)
SYSTEM: Message = {"role": "system", "content": "Be brief."}


def mended(messages: Sequence[Message], rules: RepairRules = LENIENT) -> tuple[list[Message], list[str]]:
    """The repaired history; the one handed in stays as it is, and a second repair finds nothing to do."""
    before = copy.deepcopy(messages)
    done, kinds = repair(messages, rules)
    assert messages == before
    assert repair(done, rules) == (done, [])
    return list(done), kinds


def errors(messages: Sequence[Message]) -> list[str]:
    """What strict backends refuse, but for system messages in the middle, which only some families do."""
    found = [flaw.text for flaw in check_history(messages) if flaw.severity == "error"]
    return [text for text in found if "system messages in the middle" not in text]


# What is valid stays


@given(histories())
def test_a_valid_history_comes_back_as_the_same_object(messages: list[Message]) -> None:
    whole = [SYSTEM, *(m for m in messages if m["role"] != "assistant" or text_of(m).strip() or m.get("tool_calls"))]
    done, kinds = repair(whole, LENIENT)
    assert done is whole
    assert kinds == []


@pytest.mark.parametrize(
    "messages",
    [
        [user("a"), user("b")],
        [user("a"), SYSTEM, user("b")],
        [SYSTEM, SYSTEM, user("a")],
        [user("a"), assistant(None, reasoning_content="Hm."), user("b")],
        [user("a"), assistant(None, tool_calls=[call(1)]), {"role": "tool", "content": "no id"}],
        [user("a"), {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [],
    ],
)  # fmt: skip
def test_what_most_backends_take_is_left_alone(messages: list[Message]) -> None:
    assert repair(messages, LENIENT)[0] is messages


# Calls and results


def test_a_result_without_its_call_becomes_text() -> None:
    done, kinds = mended([user("a"), {**tool(7, "42 files"), "name": "list_files"}, assistant("b")])
    assert kinds == ["orphaned_result"]
    assert [m["role"] for m in done] == ["user", "user", "assistant"]
    for part in ("list_files", "call_7", "42 files"):
        assert part in done[1]["content"]


def test_a_call_without_its_result_gets_one() -> None:
    done, kinds = mended([user("a"), assistant(None, tool_calls=[call(1)]), user("b")])
    assert kinds == ["orphaned_call"]
    assert done[2] == {"role": "tool", "tool_call_id": "call_1", "content": LOST}


def test_a_late_or_second_result_is_told_after_the_batch() -> None:
    call_1 = assistant(None, tool_calls=[call(1), call(2)])
    done, kinds = mended([user("a"), call_1, tool(1, "x"), tool(1, "again"), tool(2, "y"), user("b"), tool(2, "z")])
    assert kinds == ["orphaned_result"]
    assert [m["role"] for m in done] == ["user", "assistant", "tool", "tool", "user", "user", "user"]
    assert "again" in done[4]["content"]
    assert "read_file" in done[6]["content"]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ('{"path": "a', {"input": '{"path": "a'}), ("", {}), (None, {}), ("[1]", {"input": [1]}), ('"a"', {"input": "a"}),
        ("null", {}),
    ],
)  # fmt: skip
def test_arguments_that_are_no_object_are_wrapped_in_one(sent: Any, expected: Any) -> None:
    broken = {**call(1, arguments=sent), "x_meta": 1}
    done, kinds = mended([user("a"), assistant("b", tool_calls=[broken, call(2)]), tool(1, "x"), tool(2, "y")])
    assert kinds == ["arguments"]
    first, second = done[1]["tool_calls"]
    assert loads(first["function"]["arguments"]) == expected
    assert (first["id"], first["x_meta"], second) == ("call_1", 1, call(2))


# Messages


@pytest.mark.parametrize("content", [None, "", " \n", [], [{"type": "text", "text": ""}]])
def test_an_empty_answer_is_dropped(content: Any) -> None:
    assert mended([user("a"), assistant(content), user("b")]) == ([user("a"), user("b")], ["empty_answer"])


def test_an_answer_to_be_continued_may_be_empty() -> None:
    messages = [user("a"), assistant("")]
    assert repair(messages, RepairRules(keep_last=True))[0] is messages


@pytest.mark.parametrize("messages", [[SYSTEM], [assistant("Hello.")], [SYSTEM, assistant("Hello.")]])
def test_a_conversation_without_a_user_gets_one_in_front(messages: list[Message]) -> None:
    done, kinds = mended(messages)
    assert kinds == ["no_user"]
    lead = 1 if messages[0] is SYSTEM else 0
    assert done == [*messages[:lead], user(BEGIN), *messages[lead:]]


# Families


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        ("mistral-small-3.2-24b", STRICT),
        ("mistralai/Devstral-Small-2-24B", STRICT),
        ("google/gemma-3-12b-it", STRICT),
        ("llama-2-13b-chat", STRICT),
        ("Qwen3.5-27B-GGUF", RepairRules(one_system=True)),
        *(("qwen3:8b", LENIENT), ("qwen2.5-coder", LENIENT), ("llama-3.1-8b", LENIENT), ("gpt-oss-20b", LENIENT)),
    ],
)
def test_which_family_demands_what(model: str, rules: RepairRules) -> None:
    assert rules_for(model) == rules


def test_neighbours_of_one_role_are_joined() -> None:
    parts = [{"type": "text", "text": "two"}]
    done, kinds = mended(
        [user("one"), user("1b"), assistant("x"), assistant("y"), {"role": "user", "content": parts}, user("three")], STRICT
    )
    assert kinds == ["alternation"]
    assert [m["role"] for m in done] == ["user", "assistant", "user"]
    assert (done[0]["content"], done[1]["content"]) == ("one\n\n1b", "x\n\ny")
    assert text_of(done[2]).split() == ["two", "three"]


def test_a_user_who_speaks_right_after_a_tool_result_is_answered_first() -> None:
    done, kinds = mended([user("a"), assistant(None, tool_calls=[call(1)]), tool(1, "x"), user("b")], STRICT)
    assert kinds == ["alternation"]
    assert [m["role"] for m in done] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_system_message_in_the_middle_becomes_a_marked_user_message() -> None:
    done, kinds = mended([SYSTEM, user("a"), assistant("b"), {"role": "developer", "content": "Be kind."}, user("c")],
                         RepairRules(one_system=True))  # fmt: skip
    assert kinds == ["developer", "middle_system"]
    assert [m["role"] for m in done] == ["system", "user", "assistant", "user", "user"]
    assert done[3]["content"].endswith("]\nBe kind.")


# Anything at all

ids = st.integers(0, 3)
anything = st.one_of(
    st.builds(user, st.sampled_from(["a", "b", ""])),
    st.builds(assistant, st.sampled_from(["a", "", None])),
    st.builds(
        lambda numbers, text, arguments: assistant(text, tool_calls=[call(n, arguments=arguments) for n in numbers]),
        st.lists(ids, min_size=1, max_size=3, unique=True),
        st.sampled_from(["a", None]),
        st.sampled_from(["{}", '{"a', "", "[]"]),
    ),
    st.builds(tool, ids, st.just("result")),
    st.just(SYSTEM),
)
any_history = st.lists(anything, max_size=12)
any_rules = st.sampled_from([LENIENT, STRICT, RepairRules(one_system=True)])


@given(any_history, any_rules)
def test_whatever_comes_is_valid_afterwards(messages: list[Message], rules: RepairRules) -> None:
    done, kinds = mended(messages, rules)
    assert errors(done) == [] or not messages
    assert bool(kinds) == (done != messages)
    roles = [m["role"] for m in done]
    if rules.one_system:
        assert "system" not in roles[1:]
    if rules.alternate and done:
        assert flaws(done) == []


@given(any_history, any_history, any_rules)
def test_a_longer_history_is_repaired_in_the_same_way(messages: list[Message], more: list[Message], rules: RepairRules) -> None:
    messages = [SYSTEM, user("start"), *messages]
    short, kinds = mended(messages, rules)
    longer, _ = mended([*messages, *more], rules)
    settled = max(i for i, m in enumerate(short) if not is_result(m))
    if "orphaned_call" in kinds:
        # The result may only be late.
        settled = max(i for i, m in enumerate(short) if m.get("tool_calls"))
    assert longer[:settled] == short[:settled]


@given(any_history, any_rules)
def test_no_word_is_lost(messages: list[Message], rules: RepairRules) -> None:
    done, _ = mended(messages, rules)
    said = "\n".join(map(text_of, done))
    for word in ("result", "Be brief."):
        told = sum(word in text_of(message) for message in messages)
        assert said.replace(LOST, "").replace("[Tool result", "").count(word) >= told


def test_a_speakers_name_stays_with_the_words_when_messages_are_joined() -> None:
    messages = [user("I am for Monday.", name="Ann"), user("And I for Friday.", name="Bo"), user("So?")]
    assert repair(messages, STRICT)[0] == [user("Ann: I am for Monday.\n\nBo: And I for Friday.\n\nSo?")]
    assert repair([user("a", name="Ann"), user("b", name="Ann")], STRICT)[0] == [user("a\n\nb", name="Ann")]
