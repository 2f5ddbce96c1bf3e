"""Requests of real programs, in the words of the versions that were seen, and texts that only look alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.client_compaction import asks_to_compact, brought_from, unfolded
from proxy.core.history.rules import constraints
from proxy.core.request import text_of

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
OPENCODE_ASKS = OPENCODE.rsplit("\n", 1)[-1]
SDK = (
    "You have been working on the task described above but have not yet completed it. Write a continuation summary that "
    "will allow you (or another instance of yourself) to resume work efficiently. Wrap your summary in "
    "<summary></summary> tags."
)
CLINE = (
    "Your task is to create a detailed summary of the conversation so far. The next assistant will continue the task."
)
QWEN_SYSTEM = (
    "You are the component that summarizes internal chat history into a given structure.\n\nFirst, you will think through "
    "the entire history in a private <scratchpad>. Then generate the final <state_snapshot> XML object."
)
QWEN = "First, reason in your scratchpad. Then, generate the <state_snapshot>."
AIDER_SYSTEM = (
    "*Briefly* summarize this partial conversation about programming.\nInclude less detail about older parts."
)

BEFORE: list[dict[str, Any]] = [
    {"role": "system", "content": "You code."},
    {"role": "user", "content": "Build it."},
    {"role": "assistant", "content": "Built."},
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
        "Please summarise the conversation so far.",
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


SUMMARY = (
    "<analysis>\nHm.\n</analysis>\n\n<summary>\n1. Primary Request:\n   Build a shed.\n"
    + "More. " * 200
    + "\n</summary>"
)


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


@given(st.integers(0, 40_000), st.booleans())
def test_a_transcript_in_one_message_is_unfolded_without_losing_a_character(size: int, lines: bool) -> None:
    said = (("a line of it\n" if lines else "word ") * (size // 8))[:size]
    text = f"<conversation>\n{said}\n</conversation>\n\n{OPENCODE_ASKS}"
    messages = [*BEFORE, {"role": "user", "content": text}]
    done = unfolded(messages)
    assert done[:3] == messages[:3]
    assert "".join(map(text_of, done[3:])) == text
    assert asks_to_compact(done)
    if len(text) > 12_000:
        assert done[-1]["content"].startswith("Create a new anchored summary")
        assert max(len(text_of(message)) for message in done[3:]) <= 1_600
    else:
        assert done == messages
