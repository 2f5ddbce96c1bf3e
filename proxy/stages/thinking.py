"""Telling a backend, in its own words, how much the client wishes its model to think."""

from __future__ import annotations

from proxy.neutral.request import Request
from proxy.stages.routing import Route


async def with_thinking(request: Request, route: Route) -> Request:
    """The request with the options for it that this backend has; the same object where the client wishes nothing."""
    if request.thinking is None:
        return request
    backend = await route.upstream.prober.backend()
    profile = await route.upstream.prober.profile(route.model)
    told = {} if backend is None else backend.told_to_think(request.thinking, profile)
    return request.changed(**told) if told else request
