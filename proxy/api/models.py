"""The model list: the union of all backends', each object as its backend sent it, and what Spillway knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from proxy.attempts.emulating import CallLedger
from proxy.backends.base import Listed
from proxy.backends.profile import ModelProfile
from proxy.compaction.budget import budget_for
from proxy.compaction.policy import SMALL_WINDOW, answer_cap_for, limit_origins, prune_limits
from proxy.core.settings import Settings
from proxy.core.settings.settings import OFF
from proxy.dialects.listing import VIRTUAL_WINDOW, Offered
from proxy.net.upstream import Upstream
from proxy.routing import Route, Router, is_managed
from proxy.shaping.diet import diet_from

_YEAR_3000 = 32_503_680_000
"""Seconds since the epoch; a moment after that is none."""
PROBED = 24
"""Models of one backend that are probed one by one for the list; longer lists tell enough themselves."""


async def model_list(router: Router, settings: Settings) -> dict[str, Any]:
    """OpenAI's list object."""
    table = await router.table()
    known = {id(upstream): await _known(upstream) for upstream in router.upstreams}
    data = [_object(public, route, known[id(route.upstream)], settings) for public, route in table.items()]
    return {"object": "list", "data": data}


def offered(listed: Mapping[str, Any]) -> Offered:
    """Read an object of the list for a dialect that has a list of its own."""
    created = listed.get("created")
    return Offered(
        id=listed["id"],
        window=listed["spillway"]["window"],
        virtual_window=listed["spillway"]["virtual_window"],
        created=created if isinstance(created, int) and 0 < created < _YEAR_3000 else 0,
        vision=bool(listed["spillway"]["vision"]),
    )


async def with_native(router: Router, path: str, listed: dict[str, Any]) -> dict[str, Any]:
    """The list with what a backend tells beside it that has a list of its own at the path that was asked for.

    LM Studio's is at `/api/v1/models`, where clients whose base URL ends in `/api/v1` look for OpenAI's: each finds its own.
    """
    owner = await router.owner(path)
    native = None if owner is None else (await owner.prober.ask(path)).json
    return {**native, **listed} if isinstance(native, dict) and "error" not in native else listed


async def _known(upstream: Upstream) -> dict[str, Listed]:
    listed = await upstream.prober.models()
    if len(listed) > PROBED:
        return {model.id: model for model in listed}
    profiles = await asyncio.gather(*(upstream.prober.profile(model.id) for model in listed))
    return {model.id: Listed(model.id, model.raw, profile) for model, profile in zip(listed, profiles, strict=True)}


async def one_model(router: Router, settings: Settings, public: str) -> dict[str, Any] | None:
    """One model's object; None if no backend lists it."""
    route = (await router.table()).get(public)
    if route is None:
        return None
    profile = await route.upstream.prober.profile(route.model)
    listed = route.listed or Listed(route.model, {})
    known = {route.model: Listed(listed.id, listed.raw, profile)}
    return _object(public, route, known, settings)


async def profiles(router: Router, settings: Settings, meter: Any, ledger: CallLedger) -> dict[str, Any]:
    """Return the known facts about every backend and model, with the origin of every field, for `/spillway/models`."""
    backends = []
    await router.table()
    for upstream in router.upstreams:
        for listed in await upstream.prober.listed():
            await upstream.prober.profile(listed.id)
        snapshot = upstream.prober.snapshot()
        models = {
            model: {
                **info,
                "effective": _effective(settings, upstream, model, info),
                **_counting(meter, upstream, model),
                "emulated_calls": ledger.describe((upstream.name, model)),
            }
            for model, info in snapshot["models"].items()
        }
        backends.append({"name": upstream.name, "url": upstream.url, **snapshot, "models": models})
    return {"backends": backends}


def _counting(meter: Any, upstream: Upstream, model: str) -> dict[str, Any]:
    return {"counting": meter.describe((upstream.name, model))}


def _effective(settings: Settings, upstream: Upstream, model: str, info: Mapping[str, Any]) -> dict[str, Any]:
    chosen = settings.for_model(model)
    effective: dict[str, Any] = {
        "managed": info.get("window") is not None and is_managed(Route(upstream, model), settings),
        "trigger": chosen.trigger,
        "target": chosen.target,
        "pause": chosen.pause,
        "strategy": chosen.strategy,
        "policy": chosen.policy,
        "status": chosen.status,
        "summary_model": chosen.summary_model,
        **_policy(settings, model, info),
    }
    if info.get("window") is None:
        effective["advice"] = f'set SPILLWAY_MODELS=\'{{"{model}": {{"window": TOKENS}}}}\''
    return effective


def _policy(settings: Settings, model: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effective policy for a model: figures in tokens, lines and characters, and the origin of each."""
    chosen = settings.for_model(model)
    window = info["window"]["value"] if info.get("window") is not None else None
    limits: dict[str, Any] = {}
    if window is not None:
        budget = budget_for(chosen, window)
        limits = asdict(prune_limits(chosen, budget.zone))
        limits |= {"trigger_tokens": int(budget.due), "target_tokens": budget.goal}
        limits["limits_from"] = limit_origins(settings, model, window)
    descriptions = {
        "standard": "as sent",
        "local": "first sentence",
        "auto": f"first sentence above {diet_from(window)} bytes" if window is not None else "as sent",
    }
    return {
        **limits,
        "answer_cap": answer_cap_for(chosen, window),
        "tools_allowed": list(chosen.tools_allowed) or "all",
        "tool_descriptions": descriptions[chosen.policy],
        "system_prompt": _system_prompt(chosen),
        "guide_file": _guide(limits.get("guide")),
    }


def _guide(tokens: int | None) -> str:
    """Describe the treatment of guide files in prompts, of which so many tokens may stay; None: all."""
    return "as sent" if tokens is None else f"within {tokens} tokens"


def _system_prompt(chosen: Settings) -> str:
    if chosen.policy != "local" or chosen.system_prompt == OFF:
        return "as sent"
    return "short, of coding agents" if chosen.system_prompt is None else "replaced"


def _object(public: str, route: Route, known: Mapping[str, Listed], settings: Settings) -> dict[str, Any]:
    listed = known.get(route.model) or route.listed or Listed(route.model, {"id": route.model, "object": "model"})
    profile = listed.profile
    window = profile.window.value if profile.window is not None else None
    chosen = settings.for_model(route.model)
    managed = window is not None and is_managed(route, settings)
    spillway = {
        "backend": route.upstream.name,
        "window": window,
        "virtual_window": max(window, VIRTUAL_WINDOW) if window and managed else window,
        "window_origin": profile.window.origin if profile.window is not None else None,
        "trigger": _trigger(chosen, window),
        "pause": chosen.pause,
        "managed": managed,
        "tools": _tools(profile, chosen),
        "vision": None if profile.vision is None else profile.vision.value,
    }
    return {
        **listed.raw,
        "id": public,
        "context_length": window,
        "supports_tools": profile.tools.value if profile.tools is not None else None,
        "spillway": spillway,
        **_for_open_webui(listed.raw, profile),
    }


def _trigger(chosen: Settings, window: int | None) -> float:
    """Return the fill at which a prompt is compacted, as a share of the window."""
    if window is None:
        return min(chosen.trigger, 1.0)
    budget = budget_for(chosen, window)
    return budget.trigger if budget.within is None else round(budget.due / window, 4)


def _tools(profile: ModelProfile, settings: Settings) -> str:
    """Describe how a request's tools reach the model."""
    if profile.tools is None:
        return "native, until they are refused"
    if profile.tools.value:
        return "native"
    return "none" if settings.tool_mode == "native" else "emulated"


def _for_open_webui(raw: Mapping[str, Any], profile: ModelProfile) -> dict[str, Any]:
    """`info.meta` as Open WebUI 0.12 reads it: a description; its 36 built-in tools off in small windows."""
    if profile.window is None or "info" in raw:
        return {}
    window = profile.window.value
    meta: dict[str, Any] = {"description": f"{_short(window)} context window, compacted automatically by Spillway"}
    if window <= SMALL_WINDOW:
        meta["capabilities"] = {"builtin_tools": False}
    return {"info": {"meta": meta}}


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
