"""`spillway check`: find and probe the backends, print what was found, what is wrong with it, and the cure."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proxy.app import open_wire, upstreams
from proxy.backends.profile import Fact, ModelProfile
from proxy.commands.launch import listens, url_of
from proxy.config import is_here
from proxy.core.settings import BackendSetting, Settings
from proxy.net.flows import DEFAULT_PORTS, discover_all
from proxy.net.transport import HttpTransport
from proxy.net.upstream import Upstream
from proxy.routing import Router, not_listed

SMALL = 4096
"""Tokens of a window that is hardly ever meant."""
MOST_MODELS = 40
"""Of one backend that are looked at; OpenRouter has hundreds."""
CONTAINERS = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Files that Docker and Podman put into containers."""
_HEAD = ("BACKEND", "KIND", "MODEL", "WINDOW", "FROM", "TOOLS", "VISION")
_DOCKER_HOSTS = ("host.docker.internal", "host.containers.internal")


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A server of models that people run on their own machines: how it is named, started, opened and filled."""

    name: str
    start: str
    listen: str = "start it with `--host 0.0.0.0`"
    load: str = "have it load one"
    program: str = ""
    folder: str = ""
    """That its installation makes."""


UNKNOWN = KnownServer("the backend", "start it", "have it listen on all addresses (0.0.0.0)")
SERVERS = {
    "lmstudio": KnownServer(
        "LM Studio",
        "start its server (Developer, Status: Running; or `lms server start`)",
        'switch on "Serve on Local Network" in its server settings (or `lms server start --bind 0.0.0.0`)',
        "download one in LM Studio, or `lms get MODEL`",
        program="lms",
        folder="~/.lmstudio",
    ),
    "ollama": KnownServer(
        "Ollama",
        "start it (the application, or `ollama serve`)",
        'start it with OLLAMA_HOST=0.0.0.0 (in the application: "Expose Ollama to the network")',
        "`ollama pull MODEL`",
        program="ollama",
        folder="~/.ollama",
    ),
    "llamacpp": KnownServer("llama-server", "start it: `llama-server -m MODEL.gguf`", program="llama-server"),
    "vllm": KnownServer("vLLM", "start it: `vllm serve MODEL`", program="vllm"),
}
"""By kind, in the order of `DEFAULT_PORTS`."""


@dataclass(frozen=True, slots=True)
class SeenModel:
    """A model that a backend lists."""

    id: str
    profile: ModelProfile
    reported: int | None
    """Tokens of the window that the backend itself reports; None: it reports none."""
    for_chats: bool | None
    """Whether it has a chat template; None: the backend does not say."""


@dataclass(frozen=True, slots=True)
class SeenBackend:
    """A backend that was asked for its models."""

    name: str
    url: str
    expected: str
    """The kind that is configured, or usual at its port; empty: any."""
    kind: str = ""
    """Empty: it does not answer."""
    enlarge: str = ""
    """How its windows are made larger."""
    status: int = 200
    """Of its list of models."""
    models: tuple[SeenModel, ...] = ()
    listed: int = 0
    """How many models it lists; `models` are the first of them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and its cure. `code` is for programs."""

    code: str
    text: str
    cure: str
    backend: str = ""
    models: tuple[str, ...] = ()


async def check(settings: Settings, *, as_json: bool = False) -> int:
    """Print what was found; 0 if any backend answered, else 1."""
    backends = settings.backends or await _discovered(settings)
    async with open_wire(backends, connect_timeout=5.0, read_timeout=10.0) as wire:
        found = upstreams(backends, settings, wire)
        seen = [await _seen(each, backend) for each, backend in zip(found, backends, strict=True)]
        table = await Router(found).table() if found else {}
    answers = any(backend.kind for backend in seen)
    findings = [*findings_of(settings, seen), *await asyncio.to_thread(_findings_of_machine, settings, seen)]
    if answers:
        cure = "name one of those that are listed, or have it loaded"
        findings += [Finding("model_not_listed", text, cure) for text in not_listed(settings.helpers, table)]
    if as_json:
        report = {"answers": answers, "backends": list(map(_as_json, seen)), "findings": list(map(asdict, findings))}
        _print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_all(settings, seen, findings)
    return 0 if answers else 1


# What is wrong


def findings_of(settings: Settings, seen: Sequence[SeenBackend]) -> Iterator[Finding]:
    """Yield what is wrong with backends and models, what keeps them from working first."""
    in_container = any(mark.exists() for mark in CONTAINERS)
    for backend in seen:
        if not backend.kind:
            yield _silent(backend, in_container=in_container)
    if not seen and in_container:
        listen = "; ".join(f"{server.name}: {server.listen}" for server in SERVERS.values())
        yield Finding(
            "host_out_of_reach",
            f"this is a container, and no backend takes connections from it at {', '.join(settings.discover)}.",
            f"have it listen on more than its own loopback ({listen}), and look for it at host.docker.internal (SPILLWAY_DISCOVER)",
        )
    for backend in seen:
        if backend.kind:
            yield from _of_backend(backend)


def _findings_of_machine(settings: Settings, seen: Sequence[SeenBackend]) -> list[Finding]:
    """Look for servers that are installed and do not serve, and at the port that Spillway is to listen on."""
    found = []
    for kind, server in SERVERS.items() if not seen and not any(mark.exists() for mark in CONTAINERS) else ():
        folder = Path(server.folder).expanduser()
        where = shutil.which(server.program) or (str(folder) if server.folder and folder.exists() else "")
        if where:
            text = f"{server.name} is installed ({where}), but does not serve."
            found.append(Finding("not_serving", text, server.start, kind))
    if listens(url_of(settings)) is False:
        found.append(
            Finding(
                "port_taken",
                f"something else listens on {settings.host}:{settings.port}.",
                "stop it, or start Spillway with `--port 8485`, and give that port to clients",
            )
        )
    return found


def _silent(backend: SeenBackend, *, in_container: bool) -> Finding:
    """Why one that is configured does not answer."""
    host, server = urlsplit(backend.url).hostname or "", SERVERS.get(backend.expected, UNKNOWN)
    text = f"{backend.name} does not answer at {backend.url}"
    if host in _DOCKER_HOSTS:
        cure = (
            f"{server.listen}, so that it takes connections from containers; on Linux the container needs "
            f"`extra_hosts: [{host}:host-gateway]`; then look at the machine's firewall"
        )
        return Finding("host_out_of_reach", f"{text}, the machine that the container runs on.", cure, backend.name)
    if in_container and is_here(host):
        cure = f"name the machine instead (http://host.docker.internal:PORT), and {server.listen}"
        text = f"{text}: inside a container {host} is the container itself."
        return Finding("loopback_in_container", text, cure, backend.name)
    away = "" if is_here(host) else f"; on another machine {server.listen}, and look at its firewall"
    return Finding("no_answer", f"{text}.", f"{server.start}{away}", backend.name)


def _of_backend(backend: SeenBackend) -> Iterator[Finding]:
    place = f"{backend.name} at {backend.url}"
    if backend.status in (401, 403):
        cure = 'give it one: SPILLWAY_BACKENDS=[{"url": "…", "api_key": "…"}], or have clients send theirs'
        yield Finding("wants_a_key", f"{place} wants a key.", cure, backend.name)
    elif not backend.listed:
        cure = SERVERS.get(backend.kind, UNKNOWN).load
        yield Finding("no_models", f"{place} lists no models.", cure, backend.name)

    def about(code: str, models: Sequence[SeenModel], text: str, cure: str) -> Finding:
        ids = tuple(model.id for model in models)
        listed = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        return Finding(code, f"{listed} on {backend.name}: {text}", cure, backend.name, ids)

    unknown = [model for model in backend.models if model.profile.window is None and not model.profile.provisional]
    if unknown:
        cure = f'set it: SPILLWAY_MODELS=\'{{"{unknown[0].id}": {{"window": 32768}}}}\''
        yield about("unknown_window", unknown, "nobody reports the window, so that it is not managed.", cure)
    small = {model.id: trained for model in backend.models if (trained := _trained_above_small(model))}
    if small and backend.enlarge:
        text = (
            f"a window of {SMALL:,} tokens or less, though made for up to {max(small.values()):,}: often a default that "
            "nobody chose, and little for tools or documents."
        )
        yield about("small_window", [m for m in backend.models if m.id in small], text, backend.enlarge)
    for model in backend.models:
        window = model.profile.window
        if model.reported is not None and window is not None and window.value > model.reported:
            text = f"your setting is a window of {window.value:,} tokens; the backend reports {model.reported:,}."
            cure = f"take the window out of SPILLWAY_MODELS, or {backend.enlarge or 'have it loaded with that much'}"
            yield about("window_too_large", [model], text, cure)
    if untemplated := [model for model in backend.models if model.for_chats is False]:
        yield about(
            "no_chat_template",
            untemplated,
            "no chat template: such a model gets words, not who wrote them, and answers like a book that goes on.",
            "take the -instruct or -chat variant, or give it the template of its family "
            "(llama-server and vLLM: `--chat-template`; Ollama: TEMPLATE in the Modelfile)",
        )


def _trained_above_small(model: SeenModel) -> int:
    """Return the tokens that a model with a small window was made for; 0: it is not small, or was made small."""
    window, trained = model.profile.window, model.profile.trained_window
    return trained.value if window and trained and window.value <= SMALL < trained.value else 0


# What there is


async def _discovered(settings: Settings) -> tuple[BackendSetting, ...]:
    async with HttpTransport(connect_timeout=5.0, read_timeout=10.0) as transport:
        found = await discover_all(transport, settings.discover)
    return tuple(BackendSetting(url=each.url, name=each.name) for each in found)


async def _seen(upstream: Upstream, setting: BackendSetting) -> SeenBackend:
    prober, usual = upstream.prober, dict(zip(DEFAULT_PORTS, SERVERS, strict=True))
    is_kind = setting.kind not in ("auto", "generic")
    expected = setting.kind if is_kind else usual.get(urlsplit(upstream.url).port or 0, "")
    backend = await prober.backend()
    if backend is None:
        return SeenBackend(upstream.name, upstream.url, expected)
    listed = await prober.listed()
    models = []
    for model in listed[:MOST_MODELS]:
        profile, reported = await prober.profile(model.id), prober.reported_window(model.id)
        for_chats = await prober.is_for_chats(model.id)
        models.append(SeenModel(model.id, profile, None if reported is None else reported.value, for_chats))
    status = 200 if listed else (await prober.ask("/v1/models")).status
    return SeenBackend(
        upstream.name, upstream.url, expected, backend.kind, backend.wider, status, tuple(models), len(listed)
    )


# How it is printed


def _as_json(backend: SeenBackend) -> dict[str, Any]:
    models = [{"id": model.id, **_facts(model.profile), "chat_template": model.for_chats} for model in backend.models]
    head = {"name": backend.name, "url": backend.url, "kind": backend.kind or None, "listed": backend.listed}
    return {**head, "models": models}


def _facts(profile: ModelProfile) -> dict[str, Any]:
    facts: dict[str, Fact[Any] | None] = {
        name: getattr(profile, name) for name in ("window", "trained_window", "tools", "vision")
    }
    shown = {name: None if each is None else {"value": each.value, "from": each.origin} for name, each in facts.items()}
    return {**shown, "loaded": not profile.provisional}


def _print_all(settings: Settings, seen: Sequence[SeenBackend], findings: Sequence[Finding]) -> None:
    rows = [row for backend in seen for row in _rows(backend)]
    table = [_HEAD, *rows] if rows else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        _print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not any(backend.kind for backend in seen):
        ports = ", ".join(f"{host}:{port}" for host in settings.discover for port in DEFAULT_PORTS)
        where = ", ".join(each.url for each in seen) or f"the usual ports ({ports})"
        _print(
            f"\nNo backend answers at {where}.\n"
            "Start LM Studio (and its server), Ollama, llama-server or vLLM, or say where it is:\n"
            "  spillway check --backend http://HOST:PORT"
        )
    for finding in findings:
        _print(f"\n! {finding.text}\n  {finding.cure[0].upper()}{finding.cure[1:]}.")
    if rows and not findings:
        _print("\nNothing is wrong with that.")


def _rows(backend: SeenBackend) -> list[tuple[str, ...]]:
    head = (backend.name, backend.kind or "-")
    rows: list[tuple[str, ...]] = [(*head, model.id, *_cells(model.profile)) for model in backend.models]
    note = f"… and {backend.listed - len(rows)} more" if backend.listed > len(rows) else ""
    if not rows:
        note = "(lists no models)" if backend.kind else f"does not answer at {backend.url}"
    return rows + ([(*head, note, "", "", "", "")] if note else [])


def _cells(profile: ModelProfile) -> tuple[str, str, str, str]:
    window = profile.window
    size, origin = ("unknown", "set SPILLWAY_MODELS") if window is None else (str(window.value), window.origin)
    if profile.provisional:
        origin = "not loaded" if window is None else f"not loaded; {origin}"
    return size, origin, _yes_no(profile.tools), _yes_no(profile.vision)


def _yes_no(fact: Fact[bool] | None) -> str:
    return "?" if fact is None else ("yes" if fact.value else "no")


def _print(text: str) -> None:
    print(text)  # noqa: T201 - a command line tool prints
