"""Which backend serves which model."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import is_not

from proxy.backends.base import Listed
from proxy.backends.profile import ModelKey
from proxy.net.upstream import Upstream
from proxy.options import Options

_log = logging.getLogger("spillway")


@dataclass(frozen=True, slots=True)
class Route:
    """A backend and the id by which it knows the model."""

    upstream: Upstream
    model: str
    listed: Listed | None = None

    @property
    def key(self) -> ModelKey:
        """Backend and model, by which things are told apart that are known of models."""
        return self.upstream.name, self.model


def is_managed(route: Route, options: Options) -> bool:
    """Whether requests on this route are managed: what the user said of the model, else of the backend."""
    chosen = options.for_model(route.model).managed
    return route.upstream.managed if chosen is None else chosen


async def has_path(upstream: Upstream, path: str) -> bool:
    """Whether a path is one of the backend's own."""
    backend = await upstream.prober.backend()
    return backend is not None and any(fnmatchcase(path, glob) for glob in backend.native)


def not_listed(helpers: Iterable[tuple[str, str]], ids: Collection[str]) -> list[str]:
    """A warning for each of the models chosen by an option that is none of the listed `ids`."""
    by_lower = {listed.lower(): listed for listed in ids}
    warnings = []
    for option, model in sorted(helpers):
        if model not in ids and f"{model}:latest" not in ids:
            close = get_close_matches(model.lower(), by_lower, n=3, cutoff=0.4)
            nearest = f"; the nearest are {', '.join(by_lower[each] for each in close)}" if close else ""
            warnings.append(f"SPILLWAY_{option.upper()}={model}: no backend lists this model{nearest}")
    return warnings


class Router:
    """Routes by the union of the backends' model lists; unknown models go to the first backend."""

    def __init__(self, upstreams: Sequence[Upstream], *, helpers: Collection[tuple[str, str]] = ()) -> None:
        """`upstreams` in the user's order, at least one; `helpers` are warned of if nobody lists them."""
        self.upstreams = tuple(upstreams)
        self.manages_all = all(upstream.managed for upstream in upstreams)
        self._unchecked = helpers
        self._lists: list[list[Listed]] = []
        self._table: dict[str, Route] = {}

    async def route(self, model: str) -> Route:
        """The route for a public model id."""
        table = await self.table()
        found = table.get(model)
        if found is None:
            # Ollama lists `name:latest` and answers to `name` as well.
            alias = table.get(f"{model}:latest")
            found = Route(alias.upstream if alias is not None else self.upstreams[0], model)
        return found

    async def unnamed(self, path: str) -> Route:
        """The route of a request that names no model: to the first backend whose own path it is, else to the first."""
        owner = await self.owner(path) if len(self.upstreams) > 1 else None
        return Route(owner or self.upstreams[0], "")

    async def owner(self, path: str) -> Upstream | None:
        """The first backend of the kind whose own path it is; None if it is no kind's that is there."""
        for upstream in self.upstreams:
            if await has_path(upstream, path):
                return upstream
        return None

    async def table(self) -> dict[str, Route]:
        """All models by public id: as it is, and as `NAME/id` where two backends have the same."""
        if len(self.upstreams) == 1:
            lists = [await self.upstreams[0].prober.listed()]
        else:
            lists = list(await asyncio.gather(*(u.prober.listed() for u in self.upstreams)))
        if len(lists) != len(self._lists) or any(map(is_not, lists, self._lists)):
            self._lists, self._table = lists, self._build(lists)
            self._check_helpers()
        return self._table

    def _check_helpers(self) -> None:
        """Warn once, as soon as every backend has listed its models."""
        if self._unchecked and all(self._lists):
            for warning in not_listed(self._unchecked, self._table):
                _log.warning("%s", warning)
            self._unchecked = ()

    def _build(self, lists: Sequence[Sequence[Listed]]) -> dict[str, Route]:
        held = Counter(listed.id for models in lists for listed in {m.id: m for m in models}.values())
        table: dict[str, Route] = {}
        for upstream, models in zip(self.upstreams, lists, strict=True):
            for listed in models:
                route = Route(upstream, listed.id, listed)
                table.setdefault(listed.id, route)
                if held[listed.id] > 1:
                    table.setdefault(f"{upstream.name}/{listed.id}", route)
        return table
