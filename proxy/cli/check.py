"""`spillway check`: finds and probes the backends, and prints them with their problems and cures."""

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from proxy.app import open_wire, upstreams
from proxy.backends import LOCAL, backend_of
from proxy.backends.base import MODELS, UNKNOWN, Probe, Reply
from proxy.backends.ollama import Ollama
from proxy.backends.profile import SMALL, ModelProfile, Trust
from proxy.cli import say
from proxy.cli.serve import NOTHING_FOUND, discovered
from proxy.cli.store import look
from proxy.config import config_files, is_here
from proxy.core.errors import printable
from proxy.core.settings import BackendSetting, Settings
from proxy.net.flows import failure_at, nearby
from proxy.net.loading import memory_here
from proxy.net.transport import NO_HOST, NO_TLS, UNTRUSTED
from proxy.net.upstream import Upstream
from proxy.routing import Route, Router, is_managed, not_listed

MOST_MODELS = 40
"""Most models of one backend that are probed one by one and printed; OpenRouter has hundreds, which its list describes."""
CONTAINERS = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Files that Docker and Podman put into containers."""
_REFUSED = (401, 403)
_HEAD = ("BACKEND", "KIND", "MODEL", "WINDOW", "FROM", "TOOLS", "VISION")
_CURES = {
    NO_HOST: ("unknown_host", "look for a typo, or use the machine's IP address"),
    UNTRUSTED: ("untrusted_certificate", "use the host name in it, and name its authority's file in SSL_CERT_FILE"),
    NO_TLS: ("no_tls", "try an http:// URL"),
}
"""Codes and cures by the beginning of a failure's text."""
_OLLAMA, _OLLAMA_CHAT = Ollama(), Probe("POST", "/api/chat", {})
"""An Ollama refuses this probe because it names no model."""
_DOCKER_HOSTS = ("host.docker.internal", "host.containers.internal")


@dataclass(slots=True)
class SeenBackend:
    """Result of probing one backend."""

    name: str
    url: str
    kind: str
    """Kind of backend; if it does not answer, the configured kind, or the usual one at its port."""
    answers: bool = False
    failure: str = ""
    """Reason why it does not answer; empty if unknown."""
    nearby: str = ""
    """URL at which a backend lists models, if this one lists none."""
    status: int = 200
    """HTTP status of its list of models."""
    keyed: bool = False
    """Whether a key for it is set."""
    imitates: bool = False
    """Whether it has Ollama's own paths without being an Ollama."""
    left_alone: list[str] = field(default_factory=list)
    """Models whose requests pass unmanaged, because the settings say so."""
    listed: int = 0
    """Number of models that it lists."""
    models: dict[str, ModelProfile] = field(default_factory=dict)
    loaded: dict[str, int] = field(default_factory=dict)
    """Windows in tokens with which models are loaded now."""
    fits: dict[str, int] = field(default_factory=dict)
    """Largest windows in tokens that surely fit into memory, for models where that is known."""
    unfitted: str = ""
    """Reason why `fits` is empty."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and its cure. `code` is for programs."""

    code: str
    text: str
    cure: str
    backend: str = ""


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Probe the backends and the store, print the results, and return 1 if no model can be used or the store fails, else 0."""
    seen, unlisted = asyncio.run(_look(settings))
    store, problems = look(settings)
    findings = [*findings_of(settings, seen), *(Finding(*each) for each in problems)]
    answers, store_works = any(backend.answers for backend in seen), "store_fails" not in {each[0] for each in problems}
    if usable := any(each.listed or (each.status in _REFUSED and not each.keyed) for each in seen):
        cure = "name a model that is listed, or load this one"
        findings += [Finding("model_not_listed", f"{text}.", cure) for text in unlisted]
    if args.json:
        files = list(map(str, config_files(args.config)))
        lists = {"backends": list(map(_as_json, seen)), "findings": list(map(asdict, findings))}
        say(json.dumps({"answers": answers, "config": files, "store": store, **lists}, indent=2))
    else:
        _print_all(settings, seen, findings, config_files(args.config), store)
    return 0 if usable and store_works else 1


def _as_json(seen: SeenBackend) -> dict[str, Any]:
    return {
        **asdict(replace(seen, models={})),
        "models": {model: profile.as_json({}) for model, profile in seen.models.items()},
    }


async def _look(settings: Settings) -> tuple[list[SeenBackend], list[str]]:
    """Probe the backends; also returns warnings about models in the settings that no backend lists."""
    backends = settings.backends or await discovered(settings)
    async with open_wire(backends, connect_timeout=5.0, read_timeout=10.0) as wire:
        known = upstreams(backends, settings, wire)
        seen = await asyncio.gather(*map(partial(_seen, settings=settings, wire=wire), known, backends))
        answering = [each for each, found in zip(known, seen, strict=True) if found.answers]
        named = [*settings.helpers, *(("models", glob) for glob in settings.models)]
        return seen, not_listed(named, await Router(answering).table() if answering else {})


async def _seen(
    upstream: Upstream, setting: BackendSetting, settings: Settings, wire: httpx.AsyncBaseTransport
) -> SeenBackend:
    prober, usual = upstream.prober, {each.port: each.kind for each in LOCAL}
    kind = usual.get(urlsplit(upstream.url).port or 0, "generic") if setting.kind == "auto" else setting.kind
    seen = SeenBackend(upstream.name, upstream.url, kind, keyed=setting.authorization is not None)
    if failure := await failure_at(upstream.url, wire):
        seen.failure, seen.nearby = failure, await nearby(upstream.url, wire)
        return seen
    refused = await prober.runner.exchange(_OLLAMA_CHAT) if (await prober.backend()).speaks_ollama else Reply(0)
    if refused.status not in (0, 200) and not isinstance(refused.json, dict):
        prober.give_up_door()  # use its /v1 instead of /api/chat, as the first chat would find out
    if (backend := prober.known_backend) is not UNKNOWN:
        seen.name, seen.kind = upstream.name, backend.kind
        listed = [model.id for model in await prober.listed()]
        seen.listed = len(listed)
        seen.status = 200 if listed else (await prober.runner.exchange(MODELS)).status
        seen.imitates = not backend.speaks_ollama and await prober.runner.run(_OLLAMA.has_doors())
        managed = {model: Route(upstream, prober, model) for model in listed}
        seen.left_alone = [model for model, route in managed.items() if not is_managed(route, settings)]
        memory = await memory_here() if is_here(urlsplit(upstream.url).hostname or "") else None
        if backend.sets_windows and backend.guards_memory:
            seen.unfitted = "the backend decides what fits into memory"
        elif backend.sets_windows and memory is None:
            seen.unfitted = "it is not known here how much fits into its memory"
        for known in map(prober.known, listed[:MOST_MODELS]):
            seen.models[known.model] = await known.profile()
            window = known.reported_window
            if window is not None and window.trust is Trust.LOADED:
                seen.loaded[known.model] = window.value
            if (fits := await prober.runner.run(backend.fitting_window(known.model, memory))) is not None:
                seen.fits[known.model] = fits
        seen.models |= {each.id: each.profile for each in (await prober.models())[MOST_MODELS:]}
        seen.nearby = "" if listed else await nearby(upstream.url, wire)
    seen.answers = backend is not UNKNOWN and seen.status != 0  # a configured kind is known even without an answer
    return seen


def findings_of(settings: Settings, seen: Sequence[SeenBackend]) -> Iterator[Finding]:
    """Yield the problems of backends and models, those that keep a backend from working first."""
    in_container = any(map(Path.exists, CONTAINERS))
    if not seen and in_container:
        listen = "; ".join(f"{each.title}: {each.listen}" for each in LOCAL)
        yield Finding(
            "host_out_of_reach",
            f"this is a container, and no backend takes connections from it at {', '.join(settings.discover)}.",
            f"set SPILLWAY_DISCOVER=host.docker.internal, and have the backend listen on all addresses. {listen}",
        )
    for backend in sorted(seen, key=lambda each: each.answers):
        if backend.answers:
            yield from _of_backend(backend)
            yield from _of_kind(backend)
        else:
            yield _unreachable(backend, in_container=in_container)


def _unreachable(backend: SeenBackend, *, in_container: bool) -> Finding:
    """Return the finding for a backend that does not answer."""
    host, server = urlsplit(backend.url).hostname or "", backend_of(backend.kind)
    text = f"{backend.name} does not answer at {backend.url}{backend.failure and f': {backend.failure}'}"
    if backend.nearby:
        return _wrong_url(backend, f"{text}.")
    for failure, (code, cure) in _CURES.items():
        if backend.failure.startswith(failure):
            return Finding(code, f"{text}.", cure, backend.name)
    if host in _DOCKER_HOSTS:
        cure = (
            f"{server.listen}, so that it takes connections from containers; on Linux the container needs "
            f"`extra_hosts: [{host}:host-gateway]`; then look at the machine's firewall"
        )
        return Finding("host_out_of_reach", f"{text}, the machine that the container runs on.", cure, backend.name)
    if in_container and is_here(host):
        cure = f"name the machine instead (http://host.docker.internal:PORT), and {server.listen}"
        text = f"{text}. Inside a container {host} is the container itself."
        return Finding("loopback_in_container", text, cure, backend.name)
    away = f"; on another machine {server.listen}, and look at its firewall" if server.listen else ""
    return Finding("no_answer", f"{text}.", f"{server.start}{'' if is_here(host) else away}", backend.name)


def _wrong_url(backend: SeenBackend, text: str) -> Finding:
    return Finding("wrong_url", text, f"name {backend.nearby}, where a backend lists models", backend.name)


def _lists_none(backend: SeenBackend, place: str) -> Finding:
    text, cure = f"{place} lists no models (status {backend.status}).", backend_of(backend.kind).add_model
    if backend.status in _REFUSED and backend.keyed:
        cure = "correct it: the backend's `api_key` in SPILLWAY_BACKENDS"
        return Finding("refused_key", f"{place} refuses the key that is set for it.", cure, backend.name)
    if backend.status in _REFUSED:
        cure = 'give it one: SPILLWAY_BACKENDS=[{"url": "…", "api_key": "…"}], or have clients send theirs'
        return Finding("wants_a_key", f"{place} wants a key.", cure, backend.name)
    return _wrong_url(backend, text) if backend.nearby else Finding("no_models", text, cure, backend.name)


def _of_backend(backend: SeenBackend) -> Iterator[Finding]:
    place, server = f"{backend.name} at {backend.url}", backend_of(backend.kind)
    if not backend.listed:
        yield _lists_none(backend, place)
    unknown, small, smaller = list[str](), list[str](), list[str]()
    for model, profile in backend.models.items():
        window, loaded = profile.window, backend.loaded.get(model)
        if window is None and not profile.provisional:
            unknown.append(model)
        elif profile.has_small_window:
            small.append(model)
        is_set = window is not None and window.trust is Trust.USER and (profile.provisional or not server.sets_windows)
        if is_set and window and loaded is not None and loaded < window.value:
            smaller.append(f"{model} is loaded with {loaded:,} tokens, though a window of {window.value:,} is set")
    if smaller:
        reload = "send it a message through Spillway, which reloads it; if the window stays smaller, a larger one does not fit into memory"
        cure = reload if server.sets_windows else f"set the window that it has, or {server.wider}"
        yield Finding("smaller_window", f"{'; '.join(smaller[:3])}.", cure, backend.name)
    if unknown:
        text = f"the backend does not report the window of {_listed(unknown)}, so requests pass unmanaged."
        cure = f'set it: SPILLWAY_MODELS=\'{{"{unknown[0]}": {{"window": 32768}}}}\''
        yield Finding("unknown_window", text, cure, backend.name)
    if small and server.wider:
        text = (
            f"{_listed(small)}: the window is {SMALL:,} tokens or less, often by default; the model was made for more."
        )
        yield Finding("small_window", text, server.wider, backend.name)


def _of_kind(backend: SeenBackend) -> Iterator[Finding]:
    """Yield findings that are not problems, but may surprise a user."""
    if backend.left_alone:
        text = f"requests for {_listed(backend.left_alone)} pass unmanaged, as the settings have it."
        yield Finding("left_alone", text, "have them managed: `managed = true`, or leave it out", backend.name)
    if backend.imitates:
        text = f"{backend.name} at {backend.url} has Ollama's paths without being one, so it is spoken to by its /v1."
        yield Finding(
            "imitates_ollama", text, "nothing has to be done; what its /v1 tells of windows is used", backend.name
        )


def _listed(models: Sequence[str]) -> str:
    return ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")


def _print_all(
    settings: Settings, seen: Sequence[SeenBackend], findings: Sequence[Finding], files: Sequence[Path], store: str
) -> None:
    rows = [tuple(map(printable, row)) for backend in seen for row in _rows(backend)]
    table = [_HEAD, *rows] if rows else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    say(f"\nSettings: {', '.join(map(str, files)) or 'from the environment alone (there is no spillway.toml)'}")
    say(f"Store: {store}")
    if not seen:
        say(f"\n{NOTHING_FOUND}. Looked at {', '.join(settings.discover)}.")
    for finding in findings:
        cure = finding.cure[0].upper() + finding.cure[1:]
        say(f"\n! {printable(finding.text)}\n  {printable(cure)}.")
    if rows and not findings:
        say("\nNo problems found.")


def _rows(backend: SeenBackend) -> Iterator[tuple[str, ...]]:
    for model, profile in islice(backend.models.items(), MOST_MODELS):
        window, loaded, fits = profile.window, backend.loaded.get(model), backend.fits.get(model)
        state = "not loaded" if profile.provisional and loaded is None else ""
        size, origin = ("unknown", "") if window is None else (str(window.value), window.origin)
        more = (
            f"loaded with {loaded}" if loaded is not None and window is not None and window.value != loaded else "",
            f"about {fits} fit into memory" if fits is not None else backend.unfitted,
        )
        flags = ("?" if fact is None else "yes" if fact.value else "no" for fact in (profile.tools, profile.vision))
        yield (backend.name, backend.kind, model, size, "; ".join(filter(None, (state, origin, *more))), *flags)
    if not backend.models or backend.listed > MOST_MODELS:
        note = f"… and {backend.listed - MOST_MODELS} more" if backend.models else "(lists no models)"
        kind, note = (backend.kind, note) if backend.answers else ("-", f"does not answer at {backend.url}")
        yield (backend.name, kind, note, "", "", "", "")
