"""Moments of a request at which an add-on may act. The pipeline itself works without any add-on."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from proxy.attempts.client import ClientStream
from proxy.core.jsontext import JsonObject
from proxy.core.request import Request
from proxy.core.settings import Settings
from proxy.job import Job
from proxy.outcome import Observer, Outcome, overriding
from proxy.prompt import OfferedTools
from proxy.routing import Route

MakeRoom: TypeAlias = Callable[[], Awaitable[None]]
"""Makes room for the prompt: compacts its history if that is due, or requested."""
Prepared: TypeAlias = Callable[[Route], Awaitable[Job]]
"""Prepares the request of a job for another model."""


class Command(NamedTuple):
    """A command that users send as a message, such as `/compact`."""

    answer: Callable[[Job, str, MakeRoom], Awaitable[str]]
    """Carries the command out, given the text after its name, and returns the answer. The job's prompt ends before the
    command."""
    marks: tuple[str, ...]
    """Words by which an answer to the command is recognised in a history: each of its answers has one of them. Never
    empty."""
    takes_text: bool = False
    """Whether text of several lines may follow the command."""


class AddOn(Observer):
    """Base of an add-on: a feature in one file that can be left out. Override the moments that matter; see `Observer` too."""

    commands: Mapping[str, Command] = MappingProxyType({})
    """Its commands, by name."""

    def shape(self, request: Request, route: Route, settings: Settings, outcome: Outcome) -> Request:
        """Change the client's request before anything is looked up for it."""
        return request

    async def reroute(self, job: Job, prepared: Prepared) -> Job:
        """Have another model serve a job, right after it was prepared; returns the job `prepared` for that model's route."""
        return job

    async def offer(self, job: Job, offered: OfferedTools, *, emulate: bool) -> None:
        """Change the tools offered to the model, or add some that Spillway answers; `emulate`: the backend has refused tools."""

    async def complete(self, job: Job) -> None:
        """Restore parts that the client left out of its messages, before they are edited, covered and counted."""

    async def enrich(self, job: Job, *, reserve: int = 0) -> None:
        """Add to a prompt whose history is final, whether as sent or rewritten.

        `reserve`: tokens to leave free for later additions.
        """

    async def before_room(self, job: Job) -> None:
        """Act before the decision whether the prompt has room."""

    async def before_compaction(self, job: Job, client: ClientStream) -> None:
        """Shorten a prompt that may be due, other than by compacting its history; `client` shows the user notices."""

    async def answer(self, job: Job, make_room: MakeRoom) -> str:
        """Answer a request with a text of Spillway's own. If it is empty, room is made, and the model answers."""
        return ""

    async def give_way(self, job: Job, *, refused: bool) -> bool:
        """Remove additions from a prompt that is due or was refused; returns False if that makes no room."""
        return False

    async def place(self, job: Job, beside: JsonObject | None = None) -> None:
        """Choose where in the backend a prompt is read, right before it is sent.

        `beside`: fields of a request that begins differently, and should not replace the job's own prompt in the
        backend's cache.
        """

    def before_sending(self, job: Job, *, again: bool) -> None:
        """Act on a prompt that is about to be sent; `again`: it is sent again after a refusal."""

    async def before_resuming(self, job: Job) -> None:
        """Act on a prompt from which an answer is about to be continued, in the place where it was begun."""

    def after_answer(self, job: Job) -> None:
        """Act after an answer has ended, whether it succeeded or not."""

    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Stop work that would restore a deleted checkpoint: a viewer deletes one of a history of this chain.

        With the `outcomes` of a conversation's requests, delete everything that is stored of the conversation.
        """

    def close(self) -> None:
        """Stop starting new work."""


class AddOns:
    """Installed add-ons.

    The parts of the pipeline that call them get this object while it is empty, since add-ons need those parts first.
    """

    def __init__(self) -> None:
        self.all: tuple[AddOn, ...] = ()
        """All add-ons, in the order in which they are called."""

    def at(self, moment: Callable[..., Any]) -> tuple[AddOn, ...]:
        """Return the add-ons that act at a moment, which is a method of `AddOn`."""
        return overriding(self.all, moment)

    async def make_way(self, job: Job, *, refused: bool) -> bool:
        """Have all add-ons give way; returns False if that makes no room."""
        return any([await addon.give_way(job, refused=refused) for addon in self.at(AddOn.give_way)])

    async def place(self, job: Job, beside: JsonObject | None = None) -> None:
        """Let the add-ons choose where in the backend a prompt is read, or a request with the fields `beside` it."""
        if job.route.known.has_places or job.profile.rolls_back is not None:
            for addon in self.at(AddOn.place):
                await addon.place(job, beside)
