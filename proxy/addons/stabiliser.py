"""Billing lines and cache marks taken out of prompts: they have no meaning to a model, and change where its cache ends."""

from __future__ import annotations

from typing_extensions import override

from proxy.addon import AddOn
from proxy.core.request import Request
from proxy.core.settings import Settings
from proxy.routing import Route
from proxy.shaping.stabilise import stabilised
from proxy.telemetry.outcome import Outcome


class Stabiliser(AddOn):
    """Strips them where the user has not turned that off."""

    @override
    def shape(self, request: Request, route: Route, settings: Settings, outcome: Outcome) -> Request:
        """Strip them; cache marks stay for backends that take them."""
        if not settings.stabilise:
            return request
        backend = route.upstream.prober.known_backend
        request, stripped = stabilised(request, takes_marks=backend is None or backend.takes_marks)
        if stripped:
            outcome.add("stabilised", kinds=tuple(stripped))
        return request
