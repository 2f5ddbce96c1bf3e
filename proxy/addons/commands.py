"""Commands: messages such as `/compact` that Spillway answers in the model's place. Each add-on lists its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from proxy.addon import AddOn, Command, MakeRoom
from proxy.compaction.budget import NEXT
from proxy.core.request import Message, Request, is_text_part, text_of
from proxy.core.settings import Settings
from proxy.job import Job
from proxy.outcome import Outcome
from proxy.routing import Route

_LONGEST_LINE = 2_000
"""Most characters after a command that takes one line; a longer message is not a command."""


class Commands(AddOn):
    """Takes commands and their answers out of the history, and has the one at its end answered."""

    def __init__(self, addons: Sequence[AddOn]) -> None:
        """Use the commands of these add-ons."""
        self._table = {name: command for addon in addons for name, command in addon.commands.items()}

    @override
    def shape(self, request: Request, route: Route, settings: Settings, outcome: Outcome) -> Request:
        """Take commands and their answers out of the history; one that the model answered stays, with that answer.

        After an answer of the model, a command leaves a placeholder for the user's next message.
        """
        messages, found = request.messages, commands_in(request.messages, self._table)
        ends = len(messages) - 1
        if request.structured:  # Spillway's own answer would not have the required format
            found.pop(ends, None)
        gone: set[int] = set()
        for at, (name, _) in found.items():
            following = messages[at + 1] if at < ends else {"role": "user"}
            if following.get("role") == "user":
                gone.add(at)
            elif following.get("role") == "assistant" and any(
                mark in text_of(following) for mark in self._table[name].marks
            ):
                gone |= {at, at + 1}
        command = request.command or found.get(ends)
        if not gone and command is None:
            return request
        history = [message for at, message in enumerate(messages) if at not in gone]
        if command is None:
            return request.changed(messages=history)
        if history and history[-1].get("role") == "assistant":
            history.append({"role": "user", "content": NEXT})
        return replace(request.changed(messages=history), command=command)

    @override
    async def answer(self, job: Job, make_room: MakeRoom) -> str:
        """Answer the command at the end of the history, if there is one."""
        if job.request.command is None:
            return ""
        name, argument = job.request.command
        job.outcome.add("commanded", command=name)
        return await self._table[name].answer(job, argument, make_room)


def commands_in(messages: Sequence[Message], table: Mapping[str, Command]) -> dict[int, tuple[str, str]]:
    """Return the commands of a table among the messages, by index, each with its argument, which may be empty.

    A command is the whole message and, unless it takes a text, one line: lines pasted from a log may begin with one.
    """
    found: dict[int, tuple[str, str]] = {}
    for at, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and len(content) == 1 and is_text_part(content[0]):
            content = content[0]["text"]
        if message.get("role") != "user" or not isinstance(content, str):
            continue
        text = content.strip()
        name = text.split(maxsplit=1)[0] if text.startswith("/") else ""
        if (command := table.get(name)) is not None:
            argument = text[len(name) :]
            one_line = len(argument) <= _LONGEST_LINE and {"\n", "\r"}.isdisjoint(argument)
            if one_line or command.takes_text:
                found[at] = name, argument.strip()
    return found
