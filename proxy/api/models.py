"""Routes for models: lists in OpenAI's, Anthropic's and Codex's forms, what is known of each model, and explaining a request."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from proxy.api.access import MODELS, On, Viewing, as_json, bearer, viewing
from proxy.api.catalogs import VIRTUAL_WINDOW, anthropic_model, anthropic_page, codex_catalog
from proxy.api.schemas import answers, takes
from proxy.backends.base import Listed
from proxy.backends.profile import ModelProfile, value_of
from proxy.compaction.budget import budget_for
from proxy.compaction.decision import Compact
from proxy.compaction.policy import SMALL_WINDOW, answer_cap_for, limit_origins, prune_limits
from proxy.core.errors import ModelNotFound
from proxy.core.settings import Settings
from proxy.dialects import CHAT
from proxy.emulation.prompt import protocol
from proxy.exchange import Exchange
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.net.upstream import Upstream
from proxy.relay import Relay
from proxy.routing import Route, is_managed

ANTHROPIC = "anthropic-version"
"""Header that all clients of Anthropic's API send, and no others."""
_CLAUDE_CODE = re.compile("claude-(cli|code)/")
"""Beginning of the user agent of Claude Code (2.1): `cli` when it sends messages, `code` when it lists models."""
# `GET /api/tags` once asked an Ollama with 120 models 120 questions at the same time.
PROBED = 24
"""Most models of a backend that are probed one by one for the list. Longer lists, as of hosted backends, describe
models themselves."""

_MANY = 200
"""Models above which the list is made in a thread."""

router = APIRouter(tags=["models"], dependencies=[Depends(bearer), Depends(viewing)])


@router.get(MODELS, responses=answers("Models"))
async def list_models(on: On, request: Request, client_version: str | None = None) -> Response:
    """List all backends' models, in Anthropic's form if `anthropic-version` is sent, and with a catalog for Codex."""
    table = await on.relay.router.table()
    known = {id(upstream): await listed_models(upstream) for upstream in on.relay.router.upstreams}

    def described() -> list[dict[str, Any]]:
        return [_object(public, route, known[id(route.upstream)], on.settings) for public, route in table.items()]

    data = await offload_if(len(table) > _MANY, described)
    listed = {"object": "list", "data": data}
    if ANTHROPIC in request.headers:
        return as_json(anthropic_page(data, virtual=_is_claude_code(request)))
    if client_version is None:
        return as_json(listed)
    response = as_json({**listed, **codex_catalog(data)})
    # Codex keeps its catalog until the ETag changes.
    response.headers["etag"] = f'"{blake2b(bytes(response.body), digest_size=12).hexdigest()}"'
    return response


@router.get(MODELS + "/{model:path}", responses=answers("Model"))
@router.get("/models/{model:path}", include_in_schema=False)
async def get_model(on: On, request: Request, model: str) -> Response:
    """Describe one model; ids may contain slashes."""
    route = await on.relay.router.route(model)
    if route.unlisted_among is not None:
        raise ModelNotFound(f"No backend lists the model {model!r}; GET /v1/models shows what there is.")
    listed = route.listed or Listed(route.model, {})
    known = {route.model: Listed(listed.id, listed.raw, await route.known.profile())}
    found = _object(model, route, known, on.settings)
    if ANTHROPIC in request.headers:
        return as_json(anthropic_model(found, virtual=_is_claude_code(request)))
    return as_json(found)


@router.get("/spillway/models", responses=answers("KnownModels"))
async def known_models(on: On) -> Response:
    """Describe every backend and model, with the origin of every field."""
    backends, line, table = [], on.relay.pipeline, await on.relay.router.table()
    chosen = line.compactor.summaries.chosen
    for upstream in on.relay.router.upstreams:
        listed = await listed_models(upstream)
        snapshot = upstream.prober.snapshot()
        if len(listed) > PROBED:
            snapshot["models"] = {model: each.profile.as_json({}) for model, each in listed.items()}
        models = {
            model: {
                **info,
                "effective": _effective(on.settings, upstream, model, info)
                | ({"summary_model": chosen} if chosen else {}),
                "counting": line.counting.meter.describe((upstream.key, model)),
                "emulated_calls": line.replies.ledger.describe((upstream.key, model)),
            }
            for model, info in snapshot["models"].items()
        }
        backends.append({"name": upstream.name, "url": upstream.url, **snapshot, "models": models})
    return as_json({"backends": backends, "summary_model": chosen or None, "names": [*table]})


@router.post("/spillway/explain", responses=answers("Explanation"), openapi_extra=takes("ChatRequest", "messages"))
async def explain_request(on: On, exchange: Viewing) -> Response:
    """Report what would be done to a chat request, without asking a model."""
    return as_json(await _explain(on.relay, exchange))


def _is_claude_code(request: Request) -> bool:
    return _CLAUDE_CODE.match(request.headers.get("user-agent", "")) is not None


async def listed_models(upstream: Upstream) -> dict[str, Listed]:
    """Map the ids of a backend's models to what is known of them; models are probed one by one only if there are few."""
    listed = await upstream.prober.models()
    if len(listed) > PROBED:
        return {model.id: model for model in listed}
    profiles = [await upstream.prober.known(model.id).profile() for model in listed]
    return {model.id: Listed(model.id, model.raw, profile) for model, profile in zip(listed, profiles, strict=True)}


def _effective(settings: Settings, upstream: Upstream, model: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings and limits in force for a model, in tokens, lines and characters, and the origin of each limit."""
    chosen = settings.for_model(model)
    window = info["window"]["value"] if info.get("window") is not None else None
    limits: dict[str, Any] = {"advice": f'set SPILLWAY_MODELS=\'{{"{model}": {{"window": TOKENS}}}}\''}
    if window is not None:
        budget = budget_for(chosen, window)
        limits = asdict(prune_limits(chosen, budget.zone))
        limits |= {"trigger_tokens": budget.due, "target_tokens": budget.goal}
        limits["limits_from"] = limit_origins(settings, model, window)
    return {
        "managed": window is not None and is_managed(Route(upstream, upstream.prober, model), settings),
        **{
            name: getattr(chosen, name)
            for name in ("trigger", "target", "pause", "strategy", "policy", "status", "summary_model")
        },
        **limits,
        "answer_cap": answer_cap_for(chosen, window),
        "tools_allowed": list(chosen.tools_allowed) or "all",
    }


def _object(public: str, route: Route, known: Mapping[str, Listed], settings: Settings) -> dict[str, Any]:
    """Describe a model: the fields that its backend lists, and what Spillway knows about it."""
    listed = known.get(route.model) or route.listed or Listed(route.model, {"id": route.model, "object": "model"})
    profile = listed.profile
    window = value_of(profile.window)
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
        "vision": value_of(profile.vision),
    }
    return {
        **listed.raw,
        "id": public,
        "context_length": window,
        "supports_tools": value_of(profile.tools),
        "spillway": spillway,
        **_for_open_webui(listed.raw, window),
    }


def _trigger(chosen: Settings, window: int | None) -> float:
    """Return the share of the window at which a prompt is compacted."""
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


def _for_open_webui(raw: Mapping[str, Any], window: int | None) -> dict[str, Any]:
    """Return `info.meta` for Open WebUI 0.12: a description, and in small windows its 36 built-in tools switched off."""
    if window is None or "info" in raw:
        return {}
    size = f"{window // 1024}k" if window >= 1024 else str(window)
    meta: dict[str, Any] = {"description": f"{size} context window, compacted automatically by Spillway"}
    if window <= SMALL_WINDOW:
        meta["capabilities"] = {"builtin_tools": False}
    return {"info": {"meta": meta}}


# Explaining a request without asking a model


async def _explain(relay: Relay, exchange: Exchange) -> dict[str, Any]:
    """Describe what would happen to a request for chat completions.

    Raises:
        ClientError: the request is malformed.
    """
    # A compaction is not rehearsed: the real summary, and what is recalled after it, come out differently.
    wire = await exchange.body(relay.pipeline.settings.max_body)
    with exchange.watched():
        job = await relay.pipeline.prepare(exchange, relay.telemetry.silent(), CHAT, wire)
        return _explanation(job, relay)


def _explanation(job: Job, relay: Relay) -> dict[str, Any]:
    """Describe the parts of a prepared request, the checkpoint found, the action, and the messages to send.

    Token figures are estimates. If the prompt would be shortened first, the messages are those before shortening.
    """
    key, budget = job.key, job.budget
    costs = relay.pipeline.counting.meter.costs(key, job.prompt.messages)
    explanation: dict[str, Any] = {
        "model": job.route.model,
        "backend": job.route.upstream.name,
        "window": None if budget is None else budget.window,
        "prompt_tokens": job.estimate.tokens,
        "prompt_tokens_upper": job.estimate.upper,
        "counted_by": job.estimate.source,
        "fill": None if budget is None else round(job.estimate.tokens / budget.window, 4),
        "parts": _parts(job, costs),
        "tools": _offered(job, relay),
        "shaped": dict(job.outcome.sent.shaped),
        "checkpoint": _checkpoint(job),
        "recalled": _recalled(job),
        "action": job.outcome.action,
        "messages": job.prompt.messages,
    }
    if not is_managed(job.route, job.settings) and job.settings.strategy != "observe":
        note = "The user set managed = false: it passes through untouched."
        return {**explanation, "action": "passed", "note": note}
    if budget is None:
        return {**explanation, "note": "The window is not known: the request is forwarded as it is."}
    explanation["budget"] = {"trigger": budget.due, "target": budget.goal, "pause": budget.pause_point}
    explanation["limits"] = asdict(prune_limits(job.settings, budget.zone))
    if isinstance(relay.pipeline.decide(job), Compact):
        note = "It is due: Spillway would bring it down to about the target first, and send other messages than these."
        explanation |= {"action": "due", "note": note}
    return explanation


def _recalled(job: Job) -> dict[str, Any] | None:
    """Describe the recalled block of the newest turn, and the tokens of earlier turns' blocks."""
    recalled, prompt = job.prompt.recalled, job.prompt
    if not recalled.blocks:
        return None
    passages = () if recalled.newest is None else recalled.newest.passages
    return {
        "tokens": recalled.newest_tokens,
        "tokens_of_earlier_turns": recalled.tokens - recalled.newest_tokens,
        "passages": [
            {
                "message": None if (at := passage.index - len(prompt.archived)) < 0 else len(prompt.system) + at,
                "role": prompt.conversation[passage.index].get("role"),
                "tokens": round(passage.tokens, 1),
                "text": passage.text,
            }
            for passage in sorted(passages, key=lambda passage: (passage.index, passage.start))
        ],
    }


def _parts(job: Job, costs: list[float]) -> dict[str, Any]:
    messages = [
        {"index": index, "role": message.get("role"), "tokens": round(cost, 1)}
        for index, (message, cost) in enumerate(zip(job.prompt.messages, costs, strict=True))
    ]
    rest = max(0.0, job.estimate.tokens - sum(costs))
    return {"messages": messages, "template_and_tools": round(rest, 1)}


def _offered(job: Job, relay: Relay) -> dict[str, Any] | None:
    """Describe how tools reach the model, and if they are emulated, the tokens of the instructions for that."""
    if job.prompt.offer is None:
        return {"mode": "native"} if job.offers_tools else None
    tokens = relay.pipeline.counting.meter.count_text(job.key, protocol(job.prompt.offer))
    return {"mode": "emulated", "protocol_tokens": tokens}


def _checkpoint(job: Job) -> dict[str, Any] | None:
    found = job.prompt.checkpoint
    if found is None:
        return None
    return {
        "kind": found.kind,
        "covered_messages": found.covered,
        "replaced_by_messages": len(found.replacement),
        "tokens_before": found.tokens_before,
        "tokens_after": found.tokens_after,
        "summary": found.by,
        "created": found.created,
    }
