"""The user's own words are cut last: first what programs put around them, then a summary is tried, and a cut is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from proxy.core.request import text_of
from tests.core.test_embedded import PROGRAMS
from tests.core.test_embedded import TASK as SHORT
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.fakes.brains import asks_summary
from tests.proxying import running_proxy

pytestmark = pytest.mark.slow

TASK = (
    "Rename the setting timeout_ms to deadline in config/limits.toml and wherever it is read, then tell me which of the "
    "callers in the billing service passed seconds, because those must be mended by hand."
)
GUIDE = "\n".join(f"- The module part{n} is written like its neighbours, see part{n + 1}." for n in range(64))
REMINDER = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n# claudeMd\n\n"
    f"Contents of /repo/CLAUDE.md (project instructions, checked into the codebase):\n\n{GUIDE[:4096]}\n"
    "# currentDate\nToday's date is 2026-11-21.\n</system-reminder>\n\n"
)
AGENTS = "Available agent types:\n" + "- agent: Use it for questions of its own kind, and for no others.\n" * 50
PROMPT = "You are an interactive agent that helps users with software engineering tasks. "
TOOLS = [
    {
        "name": name,
        "description": "Does it. " * 60,
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
    for name in ("Bash", "Read", "Edit", "Grep", "Glob", "Write")
]


def session(steps: int, lines: int) -> Iterator[list[dict[str, Any]]]:
    """The messages of each request of a session with Claude Code."""
    opening = [{"type": "text", "text": REMINDER}, {"type": "text", "text": TASK}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": opening}, {"role": "system", "content": AGENTS}]
    for step in range(steps):
        yield list(messages)
        use = {"type": "tool_use", "id": f"c{step}", "name": "Bash", "input": {"command": f"sed -n {step}p a.py"}}
        output = "\n".join(f"{step}.{n} line of the module reads limit {n * 7 + step}" for n in range(lines))
        messages += [
            {"role": "assistant", "content": [{"type": "text", "text": f"Step {step}."}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{step}", "content": output}]},
        ]


def brain(question: Question) -> Reply:
    if asks_summary(question):
        return Reply(
            text="The agent read the modules in src one by one and found nothing that has to be changed by hand so far."
        )
    return Reply(text="I go on with the next one.")


@pytest.mark.parametrize("strategy", ["auto", "summarize"])
@pytest.mark.parametrize(("window", "prompt", "lines"), [(8192, 120, 30), (16384, 270, 60), (32768, 900, 120)])
@pytest.mark.rows(2)
def test_task_between_reminders_outlasts_each_compaction(strategy: str, window: int, prompt: int, lines: int) -> None:
    with LlamaCppFake([FakeModel("m", window)], brain) as fake, running_proxy(fake, strategy=strategy) as proxy:
        for messages in session(24, lines):
            body = {"model": "m", "system": [{"type": "text", "text": PROMPT * prompt}], "messages": messages}
            answer = proxy.client.post("/v1/messages", json={**body, "tools": TOOLS, "max_tokens": 400})
            assert answer.status_code == 200, answer.text
        sent = ["\n".join(map(text_of, request.json["messages"])) for request in fake.chats()]
        assert [TASK in text for text in sent] == [True] * len(sent)
        assert any("left out here" in text for text in sent)
        assert (fake.overflows, fake.invalid_histories) == (0, [])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.rows(3)
def test_newest_message_loses_the_blocks_and_not_the_task(program: str) -> None:
    """What stands before it and behind it is many times as large as the window."""
    state = "\n".join(f"The entry {n} of the list says {n * 7}." for n in range(2500))
    state = f"<environment_details>\n{state}\n</environment_details>"
    text = f"{state}\n{PROGRAMS[program]}\n{state}"
    with LlamaCppFake([FakeModel("m", 4096)], brain) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 40})
        assert answer.status_code == 200, answer.text
        (sent,) = fake.chats()
        assert SHORT in text_of(sent.json["messages"][-1])
        assert "left out here" in text_of(sent.json["messages"][-1])


def note(number: int, size: int) -> str:
    lines = (f"Note {number}.{n}: item {number}{n} costs {n * 7 + 3} coins in town {n * 3}. " for n in range(400))
    return f"Please remember this: {''.join(lines)}"[:size]


@pytest.mark.parametrize(("sizes", "cut"), [((4300, 4300), False), ((3000, 3000, 3000), False), ((8000,), True)])
def test_pasted_notes_are_summarised_before_any_is_cut(sizes: tuple[int, ...], cut: bool, stream: bool) -> None:
    messages: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        messages += [{"role": "user", "content": note(number, size)}, {"role": "assistant", "content": "Noted, I will."}]
    ask = {"role": "user", "content": "What do I have to pay in town 12?"}
    with LlamaCppFake([FakeModel("m", 4096)], brain) as fake, running_proxy(fake) as proxy:
        while fake.count({"model": "m", "messages": [*messages, ask]}) < 0.82 * 4096:
            messages += [
                {"role": "user", "content": f"And what of item {len(messages)}? " * 3},
                {"role": "assistant", "content": "That is fine with me. " * 4},
            ]
        body = {"model": "m", "messages": [*messages, ask], "max_tokens": 40, "stream": stream}
        answer = proxy.chat({**body, "stream_options": {"include_usage": True}})
        assert answer.status_code == 200, answer.text
        *summaries, sent = fake.chats()
        assert summaries
        users = [text_of(message) for message in sent.json["messages"] if message["role"] == "user"]
        assert any("left out here" in text for text in users) is cut
        assert (b'"left_out"' in answer.content) is cut
        if not stream:
            assert ("x-spillway-left-out" in answer.headers) is cut
        elif cut:
            assert "the middle of your message was left out" in answer.text
