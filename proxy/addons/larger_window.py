"""A larger window instead of a compaction: at the trigger a conversation moves to the model that `overflow` names.

Each request is decided anew, by the size of what its client sends: the first model of the chain below whose trigger that is takes it,
or else the last, which compacts. So it survives a restart. An estimate may come out lower on a later turn, though, or what was
compacted for the first model may be found again. A mark under the history keeps a conversation where it moved to. It ends where
the first model has compacted the conversation since, because the other one did not answer, or the client has shortened it.
"""

from collections.abc import Sequence

from typing_extensions import override

from proxy.addon import AddOn, Prepared
from proxy.backends.profile import value_of
from proxy.compaction.decision import NEAR, Compact
from proxy.core.errors import UpstreamUnavailable
from proxy.core.history.turns import newest_user
from proxy.job import Job
from proxy.outcome import Outcome
from proxy.pipeline import Pipeline
from proxy.routing import Route, is_managed
from proxy.store import Store


class LargerWindow(AddOn):
    """Moves conversations to the model that `overflow` names."""

    def __init__(self, pipeline: Pipeline, store: Store) -> None:
        self._pipeline, self._store = pipeline, store

    @override
    async def reroute(self, job: Job, prepared: Prepared) -> Job:
        """Return the job for the model that its conversation moves, or has moved to."""
        links, pipeline, budget = job.prompt.links, self._pipeline, job.budget
        if job.settings.overflow is None or job.background or not links:
            return job
        names = [link.hex() for link in reversed(links)]
        mark = await self._store.document(_owner(job.exchange.tenant), *names) or {}
        shrunk = budget is not None and job.estimate.tokens < budget.due * NEAR
        if shrunk or mark.get("checkpoint") != job.prompt.beginning:
            mark = {}
            # Not where there is a mark: in memory that takes one model, it would take the place of the other.
            if job.profile.provisional and job.outcome.observers:  # they are none if a request is only explained
                await pipeline.preparer.load(job)
        routes = await self._larger(job)
        job.may_move = bool(routes)
        if not mark:
            await pipeline.counting.refresh(job)
            decision = pipeline.decide(job)
            if not (routes and isinstance(decision, Compact) and decision.too_large):
                return job
        moved, to, keys = job, mark.get("to"), [[*route.key] for route in routes]
        for route in routes[keys.index(to) if to in keys else 0 :]:
            moved = await prepared(route)
            moved.may_move = route is not routes[-1]
            if not moved.is_due:
                break
        if [*moved.key] != to and moved is not job:
            moved.outcome.add("moved", model=moved.route.model)
        return moved

    async def _larger(self, job: Job) -> list[Route]:
        """Find the models to which its conversation may move, each with a larger window than the one before, as far as that is known."""
        settings, largest, routes = self._pipeline.settings, job.window or 0, list[Route]()
        for name in settings.overflows(job.route.model):
            route = await self._pipeline.router.route(name)
            profile = await route.profile(job.request.body)
            window = value_of(profile.window or (profile.trained_window if profile.provisional else None)) or 0
            takes = job.settings.strategy == "observe" or is_managed(route, settings)
            if route.unlisted_among is None and takes and window > largest:
                routes.append(route)
                largest = window
        return routes

    @override
    async def before_room(self, job: Job) -> None:
        """Mark a history that has moved.

        Raises:
            UpstreamUnavailable: its model has been loaded since, with a window that is no larger.
        """
        first, outcome = job.moved_from, job.outcome
        if first is None:
            return
        if (job.window or 0) <= (first.window or 0):
            raise UpstreamUnavailable(f"{job.route.model} has a window of {job.window} tokens, which is no larger.")
        if any(outcome.each("moved")):
            # Under the message before the newest user message, which clients may rewrite later.
            name = first.prompt.links[(newest_user(first.prompt.sent) or 1) - 1].hex()
            mark = {"to": [*job.key], "checkpoint": first.prompt.beginning}
            await self._store.put_document(_owner(job.exchange.tenant), name, mark)

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Delete the marks of a conversation."""
        for link in links if outcomes else ():
            await self._store.drop_document(_owner(scope.split("|", maxsplit=1)[0]), link.hex())


def _owner(tenant: str) -> str:
    return f"{tenant}|moved"
