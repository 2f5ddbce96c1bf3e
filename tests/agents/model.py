"""The model behind the agents: it calls their shell again and again, and writes summaries when it is asked to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.fakes import Question, Recorded, Reply, ToolCall, summariser
from tests.prefix import common

DONE = "THE TASK IS FINISHED"
_SUMMARY = "Summarise the conversation so far so"
"""How Spillway asks for a summary at the end of the prompt."""
_OWN_COMPACTION = (
    "CONTEXT CHECKPOINT COMPACTION",
    "Respond with TEXT ONLY",
    "Provide a detailed prompt for continuing",
)
"""How agents ask for one themselves."""

LINES = 600
"""That each call gives, some 3 kB, as the results of agents are on average."""

Arguments = Callable[[str], Mapping[str, Any]]
SHELLS: Mapping[str, Arguments] = {
    "Bash": lambda command: {"command": command, "description": "Counts."},
    "bash": lambda command: {"command": command, "description": "Counts."},
    "exec_command": lambda command: {"cmd": command},
    "shell": lambda command: {"command": ["bash", "-lc", command]},
    "run_shell_command": lambda command: {
        "command": command,
        "is_background": False,
        "description": "Counts.",
    },
}
"""The agents' shells, and what each wants to be told."""


class Counter:
    """Calls the shell `steps` times, for some lines each, then says that it is done."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.calls = 0
        self.own_compactions = 0
        self.brain = summariser(self._answer, lambda question: _SUMMARY in question.last_user)

    @property
    def tokens(self) -> int:
        """What all that was told to it weighs, at three characters a token."""
        return (
            sum(len("\n".join(map(str, range(call, call + LINES + 1)))) for call in range(1, self.calls + 1))
            // 3
        )

    def _answer(self, question: Question) -> Reply:
        if any(mark in question.last_user for mark in _OWN_COMPACTION):
            self.own_compactions += 1
        names = [tool["function"]["name"] for tool in question.tools]
        shell = next((name for name in SHELLS if name in names), None)
        if shell is None:
            return Reply(text="Counting")  # a title, or what else is asked beside the task
        if self.calls == self.steps:
            return Reply(text=f"{DONE}.")
        self.calls += 1
        command = f"seq {self.calls} {self.calls + LINES}"
        return Reply(
            text=f"Step {self.calls}.", tool_calls=[ToolCall(shell, json.dumps(SHELLS[shell](command)))]
        )


def prefix_kept(chats: Sequence[Recorded]) -> float:
    """Share of each prompt, in characters, that the one before it began with; of those that offer tools."""
    prompts = [
        _written(chat.json)
        for chat in chats
        if chat.json.get("tools") and chat.json.get("tool_choice") != "none"
    ]
    kept = sum(common(before, after) for before, after in pairwise(prompts))
    return kept / max(1, sum(map(len, prompts[:-1])))


def _written(body: Mapping[str, Any]) -> str:
    return json.dumps(body["tools"]) + "".join(json.dumps(message) for message in body["messages"])
