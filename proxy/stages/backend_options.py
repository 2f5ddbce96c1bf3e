"""Options of a request that hang on the backend: its own fields, and how much its model is to think."""

from __future__ import annotations

from dataclasses import replace

from proxy.neutral.request import Request
from proxy.stages.routing import Route

OLLAMA = "ollama"
"""The chat dialect of backends that take Ollama's own fields."""


async def with_backend_options(request: Request, route: Route) -> Request:
    """The request with the fields that only this backend has; the same object where there are none."""
    if request.thinking is None and not request.for_ollama:
        return request
    backend = await route.upstream.prober.backend()
    if backend is None:
        return request
    if backend.chat_dialect == OLLAMA and request.for_ollama:
        request = replace(request, body={**request.body, **request.for_ollama})
    if request.thinking is None or "think" in request.body:
        return request
    profile = await route.upstream.prober.profile(route.model)
    options = backend.told_to_think(request.thinking, profile)
    return request.changed(**options) if options else request
