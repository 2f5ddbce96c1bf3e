"""Commands: messages such as `/compact` that Spillway answers in the model's place. Each add-on lists its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from proxy.addon import AddOn, AddOns, Command, MakeRoom
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

    def __init__(self, addons: AddOns) -> None:
        self._addons = addons

    @property
    def _table(self) -> dict[str, Command]:
        return {name: command for addon in self._addons.all for name, command in addon.commands.items()}

    @override
    def shape(self, request: Request, route: Route, settings: Settings, outcome: Outcome) -> Request:
        """Take commands and their answers out of the history. After an answer, a placeholder for the next message is added."""
        history, command = without_commands(request.messages, self._table)
        if command is not None and request.structured:  # Spillway's own answer would not have the required format
            history, command = [*history, request.messages[-1]], None
        command = request.command or command
        if command is None:
            return request if len(history) == len(request.messages) else request.changed(messages=history)
        answered = bool(history) and history[-1].get("role") == "assistant"
        following = [{"role": "user", "content": NEXT}] if answered else []
        return replace(request.changed(messages=[*history, *following]), command=command)

    @override
    async def answer(self, job: Job, make_room: MakeRoom) -> str:
        """Answer the command at the end of the history, if there is one."""
        if job.request.command is None:
            return ""
        name, argument = job.request.command
        return await self._table[name].answer(job, argument, make_room)


def without_commands(
    messages: Sequence[Message], table: Mapping[str, Command]
) -> tuple[Sequence[Message], tuple[str, str] | None]:
    """Return the history without commands and Spillway's answers to them, and the command at its end with its argument, or None.

    A command that the model answered stays, with that answer.
    """
    found = {at: command for at, message in enumerate(messages) if (command := _command_in(message, table)) is not None}
    if not found:
        return messages, None
    gone: set[int] = set()
    for at, (name, _) in found.items():
        following = messages[at + 1] if at + 1 < len(messages) else {"role": "user"}
        if following.get("role") == "user":
            gone.add(at)
        elif following.get("role") == "assistant" and any(mark in text_of(following) for mark in table[name].marks):
            gone |= {at, at + 1}
    return [message for at, message in enumerate(messages) if at not in gone], found.get(len(messages) - 1)


def _command_in(message: Message, table: Mapping[str, Command]) -> tuple[str, str] | None:
    """Return the command that a message is, with its argument, which may be empty, or None.

    A command is the whole message and, unless it takes a text, one line: lines pasted from a log may begin with one.
    """
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and is_text_part(content[0]):
        content = content[0]["text"]
    if message.get("role") != "user" or not isinstance(content, str):
        return None
    text = content.strip()
    name = text.split(maxsplit=1)[0] if text.startswith("/") else ""
    command, argument = table.get(name), text[len(name) :]
    if command is None:
        return None
    one_line = len(argument) <= _LONGEST_LINE and {"\n", "\r"}.isdisjoint(argument)
    return (name, argument.strip()) if one_line or command.takes_text else None
