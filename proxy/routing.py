"""Routing: which backend serves which model, and the options that only this backend has."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import is_
from typing import Any

from proxy.backends.base import Listed
from proxy.backends.profile import ModelKey, ModelProfile
from proxy.core.errors import BadRequest, ModelNotFound
from proxy.core.request import Request
from proxy.core.settings import OFF, Settings
from proxy.net.prober import KnownModel, Prober
from proxy.net.upstream import Upstream

# One client could otherwise fill the labels of metrics, the memory of windows and the lines of the log with names that
# it makes up.
LONGEST_NAME = 512
"""Most characters of a model's name from a client (it may be a file's path). Limited because logs, metrics and memory keep it."""
_NOT_FOR_CHATS = re.compile("embed|rerank", re.IGNORECASE)
"""Names of models that can't chat. LM Studio ships with an embedding model and lists it with the others."""
_EMBEDS = re.compile(r"(?!.*rerank)(?:.*embed|.*minilm|(?:.*[^a-z0-9])?(?:bge|e5|gte)(?![a-z0-9]))", re.IGNORECASE)
"""Names of embedding models, as their makers give them."""


@dataclass(frozen=True, slots=True)
class Route:
    """A backend, the prober for what this client may know about it, and the backend's id for the model."""

    upstream: Upstream
    prober: Prober
    model: str
    listed: Listed | None = None
    unlisted_among: tuple[str, ...] | None = None
    """Public ids of all models if no backend lists this one, in which case the backend is the first."""

    @property
    def key(self) -> ModelKey:
        """Backend and model: the key for facts about models."""
        return self.upstream.key, self.model

    @property
    def known(self) -> KnownModel:
        """Known facts about the model."""
        return self.prober.known(self.model)

    def not_found(self, reason: str) -> ModelNotFound:
        """Return the error for a model that no backend lists, if its backend answered 404 with this reason."""
        # The backend is asked first, since llama-swap and LM Studio serve models that they do not list, and
        # llama-server answers to any name: only its 404 shows that a name is unknown.
        backend, ids = f"{self.upstream.name} at {self.upstream.url}", self.unlisted_among or ()
        answered = f"Backend {backend} answered 404{reason and f' ({reason})'}"
        if not ids:
            return ModelNotFound(f"{answered}, and no backend lists any model. `spillway check` says what to do.")
        return ModelNotFound(
            f"No backend lists the model {self.model!r}{nearest(self.model, ids)}. {answered}. GET /v1/models shows what there is."
        )

    async def profile(self, body: Mapping[str, Any], *, fresh: bool = False, load: bool = False) -> ModelProfile:
        """Read the model's profile, as it applies to a request with this body; `fresh` as for `KnownModel.profile`.

        `load`: load the model first if it is not loaded.
        """
        known = self.known
        profile = await (known.loaded(body) if load else known.profile(fresh=fresh))
        backend = self.prober.known_backend
        if backend.reloads and known.window_request.governs:
            return profile
        return backend.profile_for(body, profile)

    async def with_options(self, request: Request) -> Request:
        """Add fields that only this backend has to a request; returns the same object if there are none."""
        if request.thinking is None and not request.for_ollama:
            return request
        backend = await self.prober.backend()
        if backend.speaks_ollama and request.for_ollama:
            request = replace(request, body={**request.body, **request.for_ollama})
        if request.thinking is None or "think" in request.body:
            return request
        options = backend.thinking_options(request.thinking, await self.known.profile())
        return request.changed(**options) if options else request


_LOADED = 2
"""Rank of a model with a loaded instance and its window."""


def _readiness(route: Route) -> int:
    """Rank a model as a default: 2 if it is loaded with a known window, 1 if it need not be loaded first, else 0.

    The models of a hosted service need no loading.
    """
    if route.listed is None or route.listed.profile.provisional:
        return 0
    return 1 if route.listed.profile.loaded_window is None else _LOADED


def is_managed(route: Route, settings: Settings) -> bool:
    """Return whether requests on this route are managed: by the model's setting, or else by the backend's.

    Requests that are only observed are not managed.
    """
    managed = route.upstream.managed
    for overrides in settings.matching(route.model):
        managed = managed if overrides.managed is None else overrides.managed
    return managed and settings.for_model(route.model).strategy != "observe"


def not_listed(named: Iterable[tuple[str, str]], table: Mapping[str, Route]) -> list[str]:
    """Build a warning for each model that an option names, by its id or a pattern, and that is not in the `table` of routes."""
    backends = [(public, (route.upstream.name, route.upstream.key)) for public, route in table.items()]
    ids = [*table, *(f"{backend}/{public}" for public, names in backends for backend in names)]
    return [
        f"SPILLWAY_{option.upper()}={model}: no backend lists such a model{nearest(model, table)}"
        for option, model in sorted(named)
        if not any(fnmatchcase(each, model) or each == f"{model}:latest" for each in ids)
    ]


def nearest(model: str, ids: Iterable[str]) -> str:
    """Name the ids nearest to a model's, as the end of a sentence; empty if none is near."""
    by_lower = {listed.lower(): listed for listed in ids}
    close = get_close_matches(model.lower(), by_lower, n=3, cutoff=0.4)
    return f"; the nearest are {', '.join(by_lower[each] for each in close)}" if close else ""


_STRICT = "The request names no `model`, and SPILLWAY_DEFAULT_MODEL=off allows no default: name one (GET /v1/models shows them)."
_SEVERAL = (
    "The request names no `model`, and there are several here: name one (GET /v1/models shows them), load only one, or "
    "set SPILLWAY_DEFAULT_MODEL to the one that should answer."
)


class Router:
    """Routes by all backends' model lists together; unknown models go to the first backend."""

    def __init__(self, upstreams: Sequence[Upstream], *, default: str | None = None) -> None:
        """Route to `upstreams`, in the user's order, at least one.

        `default` is the model for requests that name none. None: the only model, or the only loaded one. `OFF`: such
        requests are refused.
        """
        self.upstreams = list(upstreams)
        self._default = default
        self._lists: Sequence[Sequence[Listed] | None] = [None] * len(self.upstreams)
        self._table: dict[str, Route] = {}

    def add(self, upstream: Upstream) -> None:
        """Serve the models of one more backend."""
        self.upstreams.append(upstream)
        self._lists = [None] * len(self.upstreams)

    async def route(self, model: str) -> Route:
        """Find the route for a public model id; unknown ones go to the first backend.

        Raises:
            BadRequest: the id is too long.
        """
        if len(model) > LONGEST_NAME:
            raise BadRequest(
                f"The `model` has {len(model)} characters; at most {LONGEST_NAME} are taken. GET /v1/models shows what there is.",
                param="model",
            )
        table = await self.table()
        if (found := table.get(model)) is not None:
            return found
        if (alias := table.get(f"{model}:latest")) is not None:  # Ollama also accepts `name` for `name:latest`
            return replace(alias, model=model)
        backend, _, name = model.partition("/")
        for upstream in self.upstreams:
            if backend in (upstream.name, upstream.key):
                full = f"{upstream.name}/{name}"
                for each in (full, f"{full}:latest", name, f"{name}:latest"):
                    if (found := table.get(each)) is not None and found.upstream is upstream:
                        return found
        first = self.upstreams[0]
        return Route(first, first.prober, model, unlisted_among=tuple(table))

    async def routed(self, request: Request) -> tuple[Request, Route]:
        """Resolve the model of a request, and find its route.

        If no backend lists any model, a request that names none goes unchanged to the first backend.

        Raises:
            BadRequest: the request names none, and there are several to choose from.
        """
        if not request.model and (model := await self.chosen()):
            request = replace(request.changed(model=model), model=model)
        return request, await self.route(request.model)

    async def chosen(self) -> str:
        """Choose the public id of the default model; empty if no backend lists any.

        Raises:
            BadRequest: there are several to choose from, or the setting demands a name.
        """
        if self._default == OFF:
            raise BadRequest(_STRICT, param="model")
        if self._default is not None:
            return self._default
        items = (await self.table()).items()
        table = [(public, route) for public, route in items if not _NOT_FOR_CHATS.search(route.model)]
        for least in (2, 1, 0):  # surest first: a rank that only one model reaches decides
            candidates = [(public, route.model) for public, route in table if _readiness(route) >= least]
            if len({model for _, model in candidates}) == 1:
                return candidates[0][0]
        if table:
            raise BadRequest(_SEVERAL, param="model")
        return ""

    async def loaded_embedder(self, upstream: Upstream) -> Route | None:
        """Find an embedding model that this backend lists with a loaded instance, or None."""
        for route in (await self.table()).values():
            if route.upstream is upstream and _EMBEDS.match(route.model) and _readiness(route) == _LOADED:
                return route
        return None

    async def unnamed(self, path: str) -> Route:
        """Find the route of a request that names no model: the first backend that owns its path, else the first one."""
        owner = await self.owner(path) if len(self.upstreams) > 1 else None
        upstream = owner or self.upstreams[0]
        return Route(upstream, upstream.prober, "")

    async def owner(self, path: str) -> Upstream | None:
        """Find the first backend that owns this path, or None."""
        for upstream in self.upstreams:
            backend = await upstream.backend()
            if any(fnmatchcase(path, glob) for glob in backend.native):
                return upstream
        return None

    async def table(self) -> dict[str, Route]:
        """Map public ids to routes: each id as it is, and as `NAME/id` if several backends list the same one."""
        probers = [upstream.prober for upstream in self.upstreams]
        if len(probers) == 1:
            lists = [await probers[0].listed()]
        else:
            lists = list(await asyncio.gather(*(prober.listed() for prober in probers)))
        if probers != [upstream.prober for upstream in self.upstreams]:
            return await self.table()  # a backend has just refused its list: now the client's key is sent
        if not all(map(is_, lists, self._lists)):
            self._lists, self._table = lists, self._build(probers, lists)
        return self._table

    def _build(self, probers: Sequence[Prober], lists: Sequence[Sequence[Listed]]) -> dict[str, Route]:
        held = Counter(model for models in lists for model in {listed.id for listed in models})
        table: dict[str, Route] = {}
        for upstream, prober, models in zip(self.upstreams, probers, lists, strict=True):
            for listed in models:
                route = Route(upstream, prober, listed.id, listed)
                table.setdefault(listed.id, route)
                if held[listed.id] > 1:
                    table.setdefault(f"{upstream.name}/{listed.id}", route)
        return table
