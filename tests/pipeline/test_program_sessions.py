"""Sessions that open as programs open theirs: after many steps the task, the rules and the files are still there."""

from dataclasses import dataclass
from typing import Any

import pytest

from proxy.core.jsontext import dumps
from proxy.core.request import Message, text_of
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.fakes.brains import asks_summary
from tests.proxying import UNREDUCED, running_proxy

pytestmark = pytest.mark.slow

TASK = "Rename the setting timeout_ms to deadline in config/limits.toml and wherever it is read."
NEXT = "Now do the same for retries_max, in the same file. Stop when the tests pass."
RULE = "Always run make lint-all before you say that you are done."
FILE = "config/limits.toml"
TOOL = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "What to run, as it is typed."}},
    "required": ["command"],
}
AS_TEXT = "<tool_result tool_name='execute_command' success='true'><message>ok</message><content>{}</content></tool_result>"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


PROMPT = system("You are an interactive agent that helps with software. Be concise, direct and safe. " * 40)
REMINDER = "<system-reminder>\nAs you answer, you can use the following context:\n# CLAUDE.md\n{}\nIt may or may not be relevant.\n</system-reminder>\n"
FOLDERS = "\n".join(f"├───src/module{n}/part{n * 3}.py" for n in range(120))
OPENINGS: dict[str, list[Message]] = {
    "claude": [
        PROMPT,
        user(f"{REMINDER.format(RULE)}{TASK}"),
        system("Available agent types:\n- claude: for any task that fits no other. " + "- guide: knows it. " * 90),
    ],
    "codex": [
        PROMPT,
        user(f"# AGENTS.md instructions\n\n<INSTRUCTIONS>\n{RULE}\n</INSTRUCTIONS>"),
        user("<environment_context>\n  <cwd>/home/me/shop</cwd>\n  <shell>bash</shell>\n</environment_context>"),
        user(TASK),
    ],
    "qwen": [
        PROMPT,
        user(f"This is the Qwen Code. We are setting up the context for our chat.\nFolders:\n{FOLDERS}\n{RULE}"),
        said("Got it. Thanks for the context!"),
        user(TASK),
    ],
    "opencode": [system(f"{PROMPT['content']}\nInstructions from: AGENTS.md\n{RULE}"), user(f'"{TASK}"')],
    "auto-coder": [
        user("You call tools as text, one at a time.\n" + "<read_file><path>the file to read</path></read_file>\n" * 90),
        said("I understand."),
        user(f"Custom Rules, which must always be followed:\n{RULE}"),
        said("I will."),
        user(TASK),
    ],
}


@dataclass(frozen=True)
class Step:
    """A call of the tool, and what it returned."""

    number: int
    result: str

    @property
    def command(self) -> str:
        return f"sed -n {self.number}p src/module{self.number}.py"


def native(step: Step) -> list[Message]:
    function = {"name": "bash", "arguments": dumps({"command": step.command}).decode()}
    call = {"id": f"c{step.number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{step.number}", "content": step.result},
    ]


def as_text(step: Step) -> list[Message]:
    call = f"<execute_command><command>{step.command}</command></execute_command>"
    return [said(call), user(AS_TEXT.format(step.result))]


def tools(name: str) -> dict[str, Any]:
    function = {"name": "bash", "description": "Run a command.", "parameters": TOOL}
    return {} if name == "auto-coder" else {"tools": [{"type": "function", "function": function}]}


def brain(question: Question) -> Reply:
    if asks_summary(question):
        return Reply(text=f"The agent renames timeout_ms to deadline, from {FILE} on, and read the modules in src one by one.")
    return Reply(text="I go on with the next one.")


@pytest.mark.parametrize("program", OPENINGS)
@pytest.mark.rows(2)
def test_task_rules_and_files_outlast_a_long_session(program: str) -> None:
    """Two tasks of many steps each; every reduction comes down to the target, and no further than that asks for."""
    window, stepped = 8192, as_text if program == "auto-coder" else native
    result = "\n".join(f"line {n} of the module reads the limit {n * 7} from the settings" for n in range(window // 320))
    messages, fills, number = list(OPENINGS[program]), [], 0
    with LlamaCppFake([FakeModel("m", window)], brain) as fake, running_proxy(fake) as proxy:
        for task in (TASK, NEXT):
            if task is NEXT:
                messages += [said(f"Done: {FILE} has deadline now."), user(NEXT)]
            for _ in range(14):
                number += 1
                messages += stepped(Step(number, f"{number}: {result}"))
                answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 400, **tools(program)})
                assert answer.status_code == 200, answer.text
                sent = [r.json for r in fake.chats() if not asks_summary(Question(r.json["messages"]))][-1]
                text = "\n".join(map(text_of, sent["messages"]))
                assert task in text
                assert RULE in text
                assert FILE in text
                assert f"{number}: {result}" in text
                if answer.headers["x-spillway-action"] not in {*UNREDUCED, ""}:
                    fills.append(fake.count(sent) / window)
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])
        assert fills
        assert 0.4 <= min(fills) <= max(fills) <= 0.65
