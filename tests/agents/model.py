"""The model behind the agents: it calls their shell again and again, and writes summaries when it is asked to."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from proxy.core.request import text_of
from tests.agents.programs import QUESTION, TASK
from tests.fakes import Question, Recorded, Reply, ToolCall, summariser
from tests.fakes.brains import facts
from tests.prefix import common

WORDS = "amber heron 4471"
DONE = f"THE TASK IS FINISHED: {WORDS}"
"""The last answer, whose end the model reads from the task."""
CLOSING = re.compile("close with the words '(.+?)'")
HARBOUR = "the code of harbour is H-4471"
"""What the first command prints."""
_SUMMARY = "Summarise the conversation "
"""How Spillway asks for a summary at the end of the prompt."""
_PART = "of a text that is too long to be read at once"
"""How it asks for notes on a part of what an agent wants to have compacted."""
_OWN_COMPACTION = (
    "CONTEXT CHECKPOINT COMPACTION", "Respond with TEXT ONLY", "Provide a detailed prompt for continuing", "<state_snapshot>",
)  # fmt: skip
"""How agents ask for one themselves."""

LINES = 600
"""That each call gives, some 3 kB, as the results of agents are on average."""

Arguments = Callable[[str], Mapping[str, Any]]
SHELLS: Mapping[str, Arguments] = {
    "Bash": lambda command: {"command": command, "description": "Counts."},
    "bash": lambda command: {"command": command, "description": "Counts."},
    "exec_command": lambda command: {"cmd": command},
    "shell": lambda command: {"command": ["bash", "-lc", command]},
    "run_shell_command": lambda command: {"command": command, "is_background": False, "description": "Counts."},
}
"""The agents' shells, and what each wants to be told."""


class Counter:
    """Calls the shell `steps` times, for some lines each, then says that it is done; without the task in the prompt it gives up."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.calls = 0
        self.forgotten = 0
        """Prompts without the task in them, word for word."""
        self.own_compactions = 0
        self.brain = summariser(self._answer, lambda question: _SUMMARY in question.last_user)

    @property
    def tokens(self) -> int:
        """What all that was told to it weighs, at three characters a token."""
        return sum(len("\n".join(map(str, range(call, call + LINES + 1)))) for call in range(1, self.calls + 1)) // 3

    def _answer(self, question: Question) -> Reply:
        prompt = "\n".join(map(text_of, question.messages))
        if any(mark in question.last_user for mark in _OWN_COMPACTION):
            self.own_compactions += _PART not in question.last_user
            return Reply(text=_known(prompt))
        if QUESTION in question.last_user:
            return Reply(text=_known(prompt))
        names = [tool["function"]["name"] for tool in question.tools]
        shell = next((name for name in SHELLS if name in names), None)
        if shell is None:
            return Reply(text="Counting")  # a title, or what else is asked beside the task
        if TASK not in prompt:
            self.forgotten += 1
            return Reply(text="I do not know what I was to do.")
        if self.calls == self.steps:
            return Reply(text=f"THE TASK IS FINISHED: {CLOSING.findall(prompt)[-1]}")
        self.calls += 1
        first = f"echo {HARBOUR}; " if self.calls == 1 else ""
        command = f"{first}seq {self.calls} {self.calls + LINES}"
        return Reply(text=f"Step {self.calls}.", tool_calls=[ToolCall(shell, json.dumps(SHELLS[shell](command)))])


def _known(prompt: str) -> str:
    """All that it was told and is shown."""
    words = [f"It is to close with the words '{each}'." for each in dict.fromkeys(CLOSING.findall(prompt))]
    codes = [f"It was told that the code of {name} is {code}." for name, code in facts([{"content": prompt}]).items()]
    return "\n".join(["A user had it count with the shell.", *words, *codes])


def prefix_kept(chats: Sequence[Recorded]) -> float:
    """Share of each prompt, in characters, that the one before it began with; of those that offer tools."""
    prompts = _prompts(chats)
    kept = sum(common(before, after) for before, after in pairwise(prompts))
    return kept / max(1, sum(map(len, prompts[:-1])))


def shortened(chats: Sequence[Recorded]) -> int:
    """Count the prompts that do not begin with all of the one before; of those that offer tools."""
    return sum(not after.startswith(before) for before, after in pairwise(_prompts(chats)))


def _prompts(chats: Sequence[Recorded]) -> list[str]:
    return [_written(chat.json) for chat in chats if chat.json.get("tools") and chat.json.get("tool_choice") != "none"]


def _written(body: Mapping[str, Any]) -> str:
    return json.dumps(body["tools"]) + "".join(json.dumps(message) for message in body["messages"])
