"""Ollama's lists for its clients, where no Ollama is behind: the same models, told in its way, with the window that is loaded.

Fields: Ollama's API reference (docs/api.md, 0.14).
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any

from proxy import __version__
from proxy.backends.profile import ModelProfile
from proxy.core.errors import ModelNotFound
from proxy.routing import Route, Router

VERSION = "0.14.0"
"""Of Ollama's whose API is answered: clients ask for a least one."""
_SINCE = "2026-01-01T00:00:00Z"
"""Nobody tells when a model was changed, or when it will be unloaded."""
_UNTIL = "2318-01-01T00:00:00Z"
_FAMILY = "llama"


async def version() -> dict[str, str]:
    """`GET /api/version`; it says whose it really is, so that one Spillway in front of another is not taken in."""
    return {"version": VERSION, "spillway": __version__}


async def tags(router: Router) -> dict[str, Any]:
    """`GET /api/tags`: every model of every backend."""
    return {"models": [_entry(name, profile) for name, profile in await _profiles(router)]}


async def loaded(router: Router) -> dict[str, Any]:
    """`GET /api/ps`: those that are loaded, or whose window does not depend on it."""
    models = []
    for name, profile in await _profiles(router):
        if profile.window is not None and not profile.provisional:
            entry = {
                **_entry(name, profile),
                "expires_at": _UNTIL,
                "size_vram": 0,
                "context_length": profile.window.value,
            }
            models.append(entry)
    return {"models": models}


async def show(router: Router, name: str) -> dict[str, Any]:
    """`POST /api/show`: what is known of one model.

    Raises:
        ModelNotFound: no backend lists it.
    """
    route = (await router.table()).get(name.removesuffix(":latest")) or (await router.table()).get(name)
    if route is None:
        raise ModelNotFound(f"model '{name}' not found")
    profile = await _profile(route)
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


async def _profiles(router: Router) -> list[tuple[str, ModelProfile]]:
    table = await router.table()
    profiles = await asyncio.gather(*map(_profile, table.values()))
    return list(zip(table, profiles, strict=True))


async def _profile(route: Route) -> ModelProfile:
    return await route.upstream.prober.profile(route.model)


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
    """Tools always: where a model has none of its own, they are put into its prompt."""
    may = {"vision": profile.vision, "thinking": profile.thinks}
    return ["completion", "tools", *(name for name, fact in may.items() if fact is not None and fact.value)]
