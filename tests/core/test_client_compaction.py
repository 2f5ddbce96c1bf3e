"""Requests of real programs, in the words of the versions that were seen, and texts that only look alike."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.client_compaction import asks_to_compact, brought_from, taken_apart
from proxy.core.history.rules import constraints
from proxy.core.request import text_of
from tests.agent_prompts import PROMPT
from tests.compacting import CLIENTS, OTHERS, history

CODEX = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will resume "
    "the task.\n\nInclude:\n- Current progress and key decisions made\n"
)
CLAUDE = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Do NOT use Read, Bash, Grep, Glob, Edit, Write, or "
    "ANY other tool.\n\nYour task is to create a detailed summary of the conversation so far, paying close attention "
    "to the user's explicit requests and your previous actions.\n" + "Be thorough. " * 300 + "<analysis>\n</analysis>"
)
CLAUDE_UP_TO = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed summary of this "
    "conversation. This summary will be placed at the start of a continuing session."
)
OPENCODE_OLD = (
    "Provide a detailed prompt for continuing our conversation above. Focus on information that would be helpful for "
    "continuing the conversation, including what we did, considering new session will not have access to our conversation."
)
OPENCODE = (
    "<conversation>\nuser: hello\nassistant: hi\n</conversation>\n\nCreate a new anchored summary from the conversation "
    "history in the <conversation> tags above so another coding agent can continue the work."
)
SDK = (
    "You have been working on the task described above but have not yet completed it. Write a continuation summary that "
    "will allow you (or another instance of yourself) to resume work efficiently. Wrap your summary in "
    "<summary></summary> tags."
)
CLINE = "Your task is to create a detailed summary of the conversation so far. The next assistant will continue the task."
QWEN_SYSTEM = (
    "You are the component that summarizes internal chat history into a given structure.\n\nFirst, you will think through "
    "the entire history in a private <scratchpad>. Then generate the final <state_snapshot> XML object."
)
QWEN = "First, reason in your scratchpad. Then, generate the <state_snapshot>."
AIDER_SYSTEM = "*Briefly* summarize this partial conversation about programming.\nInclude less detail about older parts."

BEFORE: list[dict[str, Any]] = [
    {"role": "system", "content": "You code."},
    {"role": "user", "content": "Build it."},
    {"role": "assistant", "content": "Built. " * 400},
]


def asking(*texts: str, system: str = "You code.") -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, *BEFORE[1:], *({"role": "user", "content": text} for text in texts)]


@pytest.mark.parametrize("text", [CODEX, CLAUDE, CLAUDE_UP_TO, OPENCODE_OLD, OPENCODE, SDK, CLINE], ids=range(7))
def test_what_clients_say_when_they_compact(text: str) -> None:
    assert asks_to_compact(asking(text))
    reminded = f"<system-reminder>\nThe date is today.\n</system-reminder>\n{text}"
    assert asks_to_compact(asking(reminded))
    assert asks_to_compact([*BEFORE, {"role": "user", "content": [{"type": "text", "text": text}]}])
    assert not asks_to_compact([*asking(text), {"role": "assistant", "content": "Done."}])
    assert not asks_to_compact([*asking(text), {"role": "user", "content": "Now go on with the door."}])


def test_some_say_it_in_their_system_prompt() -> None:
    assert asks_to_compact(asking(QWEN, system=QWEN_SYSTEM))
    whole = [{"role": "system", "content": AIDER_SYSTEM}, {"role": "user", "content": "# USER\nhello " * 200}]
    assert asks_to_compact(whole)
    assert not asks_to_compact(asking("What is in a snapshot of ZFS?"))


@pytest.mark.parametrize(
    "text",
    [
        "Write a summary of the session module into README.md, then continue with the tests.",
        "Summarize this: the cat sat on the mat.",
        "Compact the JSON in config.json and do not use any library.",
        "Take a snapshot of the database, then resume the task.",
        "Can another model read a summary of the code?",
        "",
    ],
)
def test_what_users_say(text: str) -> None:
    assert not asks_to_compact(asking(text))
    assert not asks_to_compact([])
    assert not asks_to_compact(BEFORE)
    assert not asks_to_compact([*BEFORE[:2], {"role": "user", "content": CLINE}]), "nothing is lost of so little"


SUMMARY = "<analysis>\nHm.\n</analysis>\n\n<summary>\n1. Primary Request:\n   Build a shed.\n" + "More. " * 200 + "\n</summary>"


@pytest.mark.parametrize(
    "wrapped",
    [
        "Another language model started to solve this problem and produced a summary of its thinking process. {}",
        "This session is being continued from a previous conversation that ran out of context.\n\nSummary:\n{}",
    ],
)
def test_a_summary_is_known_where_a_client_puts_it_into_other_words(wrapped: str) -> None:
    inside = SUMMARY.partition("<summary>")[2].partition("</summary>")[0].strip()
    message = {"role": "user", "content": f"Always use screws.\n{wrapped.format(inside)} Never use nails."}
    assert constraints([message], limit=1000) == ["Always use screws."]
    assert brought_from("Build a shed.") == len("Build a shed.")


TALK = [(f"The code of c{n} is K-{n}." + " There is more." * 20, "Noted. " * 12) for n in range(40)]


@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_asked_is_told_from_what_it_is_asked_about(name: str) -> None:
    messages = CLIENTS[name](TALK)
    assert asks_to_compact(messages)
    apart = taken_apart(messages)
    rest = apart.with_notes("NOTES")
    inside = [text_of(messages[at])[start:end] for at, (start, end) in apart.spans.items()]
    inside += [text_of(messages[at]) for at in apart.history]
    for n in range(40):
        assert f"K-{n}." in str(inside)
        assert f"K-{n}." not in str(rest)
    assert str(rest).count("NOTES") == 1
    assert any(message["role"] == "user" for message in rest) or not any(each["role"] == "user" for each in messages)
    # What is asked comes from the request itself, and no word of it is lost.
    bare = " ".join(text_of(message) for message in rest).replace("NOTES", " ").split()
    assert set(apart.question.split()) <= set(bare)


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_it(name: str) -> None:
    assert not asks_to_compact(OTHERS[name](TALK))
    system = [{"role": "system", "content": PROMPT}]
    assert not asks_to_compact([*system, *history(TALK), {"role": "user", "content": "Summarise what you changed."}])


@given(st.lists(st.sampled_from([*"ab:\n<>#*[]\"'", "user", "assistant", "\n\n", "summary of the chat "])).map("".join))
def test_any_text_is_taken_apart_without_losing_a_character(text: str) -> None:
    messages = [{"role": "user", "content": text * 400}]
    asks_to_compact(messages)
    apart = taken_apart(messages)
    (made,) = apart.with_notes("N")
    for start, end in apart.spans.values():
        assert made["content"] == f"{messages[0]['content'][:start]}\nN\n{messages[0]['content'][end:]}"
        assert 0 <= start <= end
