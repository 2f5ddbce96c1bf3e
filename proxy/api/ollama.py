"""Ollama's routes about models, for its clients: all backends' models in its form, with the window that is loaded.

Fields: Ollama's API reference (docs/api.md, 0.14).
"""

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

from fastapi import APIRouter, Depends, Response

from proxy import __version__
from proxy.api.access import AlreadySent, Authorized, On, Services, as_json, bearer
from proxy.api.models import listed_models
from proxy.api.schemas import answers, takes
from proxy.backends.base import Probe
from proxy.backends.fields import mapping
from proxy.backends.profile import ModelProfile, value_of
from proxy.core.errors import ModelNotFound
from proxy.core.jsontext import loads_object
from proxy.dialects.bodies import object_in, text_in
from proxy.exchange import Exchange

VERSION = "0.14.0"
"""Version of Ollama whose API is emulated; clients require a minimum."""
_SINCE = "2026-01-01T00:00:00Z"
"""Placeholder for the time of a model's last change, which no backend reports."""
_UNTIL = "2318-01-01T00:00:00Z"
"""Placeholder for the time when a model will be unloaded, which no backend reports."""
_FAMILY = "llama"

OllamaHandler = Callable[[Services, Exchange], Awaitable[dict[str, Any] | None]]
router = APIRouter(tags=["ollama"], dependencies=[Depends(bearer)])


def _route(
    method: str, path: str, schema: str, *, always: bool = False, **extra: Any
) -> Callable[[OllamaHandler], None]:
    """Answer at a path, or let the backend answer that owns it; `always`: let it answer only if there is no answer here."""

    def add(answer: OllamaHandler) -> None:
        async def endpoint(on: On, exchange: Authorized) -> Response:
            asked = always or await on.relay.router.owner(exchange.path) is None
            if asked and (answered := await answer(on, exchange)) is not None:
                return as_json(answered)
            await on.relay.passthrough(exchange)
            return AlreadySent()

        router.add_api_route(
            path,
            endpoint,
            methods=[method],
            description=answer.__doc__,
            name=answer.__name__.strip("_"),
            responses=answers(schema),
            openapi_extra=extra,
        )

    return add


@_route("GET", "/api/version", "Version")
async def _version(_: Services, __: Exchange) -> dict[str, Any]:
    """Report the emulated version and Spillway's own, so that a Spillway in front of this one does not take it for an Ollama."""
    return {"version": VERSION, "spillway": __version__}


@_route("GET", "/api/tags", "Tags")
async def _tags(on: Services, _: Exchange) -> dict[str, Any]:
    """List all backends' models in Ollama's form."""
    return {"models": [_entry(name, profile) for name, profile in await _profiles(on)]}


@_route("GET", "/api/ps", "Tags")
async def _loaded(on: Services, _: Exchange) -> dict[str, Any]:
    """List the models that are loaded, or whose window does not depend on being loaded."""
    return {
        "models": [
            {**_entry(name, profile), "expires_at": _UNTIL, "size_vram": 0, "context_length": profile.window.value}
            for name, profile in await _profiles(on)
            if profile.window is not None and not profile.provisional
        ]
    }


@_route("POST", "/api/show", "Shown", always=True, **takes("ShowRequest", "model"))
async def _show(on: Services, exchange: Exchange) -> dict[str, Any] | None:
    """Describe one model in Ollama's form; one of an Ollama in its own words, but with the loaded window, not the trained one."""
    body = loads_object(await exchange.peek(on.settings.max_body)) or {}
    field = "model" if "model" in body else "name"
    route = await on.relay.router.route(text_in(body, field))
    if not (await route.prober.backend()).speaks_ollama:
        return await _described(on, exchange)
    window, probe = (await route.known.profile()).window, Probe("POST", exchange.path, body | {field: route.model})
    shown = mapping((await route.prober.runner.exchange(probe)).json)
    info = mapping(shown.get("model_info"))
    if window is None or not info:
        return None
    lengths = {name: window.value for name in info if name.endswith(".context_length")}
    return {**shown, "model_info": info | lengths}


async def _described(on: Services, exchange: Exchange) -> dict[str, Any]:
    body = object_in(await exchange.body(on.settings.max_body))
    name, table = text_in(body, "model") or text_in(body, "name"), await on.relay.router.table()
    route = table.get(name.removesuffix(":latest")) or table.get(name)
    if route is None:
        raise ModelNotFound(f"model '{name}' not found")
    profile = await route.known.profile()
    details = _details(profile)
    length = details.get("context_length")
    window = {} if length is None else {f"{_FAMILY}.context_length": length}
    return {
        "license": "",
        "modelfile": f"FROM {route.model}",
        "parameters": "" if length is None else f"num_ctx {length}",
        "template": "",
        "details": details,
        "model_info": {"general.architecture": _FAMILY, **window},
        "capabilities": _capabilities(profile),
        "modified_at": _SINCE,
    }


async def _profiles(on: Services) -> list[tuple[str, ModelProfile]]:
    table = await on.relay.router.table()
    known = {id(upstream): await listed_models(upstream) for upstream in on.relay.router.upstreams}
    listed = {name: known[id(route.upstream)].get(route.model) for name, route in table.items()}
    return [(name, ModelProfile() if each is None else each.profile) for name, each in listed.items()]


def _entry(name: str, profile: ModelProfile) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": _SINCE,
        "size": 0,
        "digest": blake2b(name.encode(), digest_size=32).hexdigest(),
        "details": _details(profile),
        "capabilities": _capabilities(profile),
    }


def _details(profile: ModelProfile) -> dict[str, Any]:
    names = {"parent_model": "", "format": "", "family": _FAMILY, "families": [_FAMILY]}
    length = {} if profile.window is None else {"context_length": profile.window.value}
    return {**names, "parameter_size": "", "quantization_level": "", **length}


def _capabilities(profile: ModelProfile) -> list[str]:
    """Return a model's capabilities; tools always, because they are emulated where a model has none of its own."""
    facts = {"vision": profile.vision, "thinking": profile.thinks}
    return ["completion", "tools", *(name for name, fact in facts.items() if value_of(fact))]
