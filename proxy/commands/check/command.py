"""`spillway check`: find and probe the backends, print what was found, what is wrong with it, and the cure."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from proxy.app import open_wire, upstreams
from proxy.backends.profile import Fact, ModelProfile
from proxy.commands.check.clients import beliefs
from proxy.commands.check.judging import Around, Finding, SeenBackend, SeenModel, judged
from proxy.commands.launch.serving import listens, url_of
from proxy.core.settings import BackendSetting, Settings
from proxy.net.discovery import DEFAULT_PORTS, discover_all
from proxy.net.transport import HttpTransport
from proxy.net.upstream import Upstream
from proxy.routing import Router, not_listed

_HEAD = ("BACKEND", "KIND", "MODEL", "WINDOW", "FROM", "TOOLS", "VISION")
_SHOWN = 40
"""Models of one backend that are listed; OpenRouter has hundreds."""
_USUAL = dict(zip(DEFAULT_PORTS, ("lmstudio", "ollama", "llamacpp", "vllm"), strict=True))
CONTAINERS = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""What Docker and Podman put into containers."""
PLACES = {
    "lmstudio": ("~/.lmstudio", "~/.cache/lm-studio", "/Applications/LM Studio.app"),
    "ollama": ("~/.ollama", "/Applications/Ollama.app"),
}
PROGRAMS = {"lmstudio": "lms", "ollama": "ollama", "llamacpp": "llama-server", "vllm": "vllm"}


async def check(settings: Settings, *, as_json: bool = False) -> int:
    """Print what was found; 0 if any backend answered, else 1."""
    connect_timeout = 5.0
    async with HttpTransport(connect_timeout=connect_timeout, read_timeout=10.0) as transport:
        backends = settings.backends or await _found(transport, settings)
    async with open_wire(backends, connect_timeout=connect_timeout, read_timeout=10.0) as wire:
        found = upstreams(backends, settings, wire)
        seen = [await _seen(each, backend) for each, backend in zip(found, backends, strict=True)]
        table = await Router(found).table() if found else {}
    answers = any(backend.kind for backend in seen)
    findings = judged(settings, seen, await asyncio.to_thread(_around, settings))
    if answers:
        findings += [
            Finding(code="model_not_listed", text=warning, cure="name one of those that are listed, or have it loaded")
            for warning in not_listed(settings.helpers, table)
        ]
    if as_json:
        _say(json.dumps(_as_json(seen, findings, answers=answers), indent=2, ensure_ascii=False))
    else:
        _print(settings, backends, seen, findings)
    return 0 if answers else 1


def _print(
    settings: Settings, backends: Sequence[BackendSetting], seen: Sequence[SeenBackend], findings: Sequence[Finding]
) -> None:
    if rows := [row for backend in seen for row in _rows(backend)]:
        _print_table([_HEAD, *rows])
    if not any(backend.kind for backend in seen):
        places = ", ".join(f"{host}:{port}" for host in settings.discover for port in DEFAULT_PORTS)
        where = ", ".join(each.url for each in backends) or f"the usual ports ({places})"
        _say(
            f"\nNo backend answers at {where}.\n"
            "Start LM Studio (and its server), Ollama, llama-server or vLLM, or say where it is:\n"
            "  spillway check --backend http://HOST:PORT"
        )
    for finding in findings:
        _say(f"\n! {finding.text}\n  {finding.cure[0].upper()}{finding.cure[1:]}.")
    if not findings and rows:
        _say("\nNothing is wrong with that.")


def _as_json(seen: Sequence[SeenBackend], findings: Sequence[Finding], *, answers: bool) -> dict[str, Any]:
    return {
        "answers": answers,
        "backends": [
            {
                "name": backend.name,
                "url": backend.url,
                "kind": backend.kind or None,
                "listed": backend.listed,
                "models": [
                    {"id": model.id, **_facts(model.profile), "chat_template": model.for_chats}
                    for model in backend.models
                ],
            }
            for backend in seen
        ],
        "findings": [asdict(finding) for finding in findings],
    }


def _facts(profile: ModelProfile) -> dict[str, Any]:
    facts: dict[str, Fact[Any] | None] = {
        "window": profile.window,
        "trained_window": profile.trained_window,
        "tools": profile.tools,
        "vision": profile.vision,
    }
    shown = {name: None if each is None else {"value": each.value, "from": each.origin} for name, each in facts.items()}
    return {**shown, "loaded": not profile.provisional}


# What there is


async def _found(transport: httpx.AsyncBaseTransport, settings: Settings) -> tuple[BackendSetting, ...]:
    found = await discover_all(transport, settings.discover)
    return tuple(BackendSetting(url=each.url, name=each.name) for each in found)


async def _seen(upstream: Upstream, setting: BackendSetting) -> SeenBackend:
    prober = upstream.prober
    port = urlsplit(upstream.url).port
    expected = setting.kind if setting.kind not in ("auto", "generic") else _USUAL.get(port or 0, "")
    backend = await prober.backend()
    if backend is None:
        return SeenBackend(upstream.name, upstream.url, expected)
    listed = await prober.listed()
    models = []
    for model in listed[:_SHOWN]:
        profile, reported = await prober.profile(model.id), prober.reported_window(model.id)
        for_chats = await prober.is_for_chats(model.id)
        models.append(SeenModel(model.id, profile, None if reported is None else reported.value, for_chats))
    status = 200 if listed else (await prober.ask("/v1/models")).status
    return SeenBackend(
        upstream.name, upstream.url, expected, backend.kind, backend.wider, status, tuple(models), len(listed)
    )


def _around(settings: Settings) -> Around:
    """Look at this machine: reads files and asks a port."""
    url = url_of(settings)
    return Around(
        in_container=any(mark.exists() for mark in CONTAINERS),
        installed=dict(_installed()),
        beliefs=beliefs(Path.home(), url),
        port_in_use=listens(url) is False,
    )


def _installed() -> list[tuple[str, str]]:
    found = []
    for kind, program in PROGRAMS.items():
        where = shutil.which(program)
        there = [str(path) for place in PLACES.get(kind, ()) if (path := Path(place).expanduser()).exists()]
        if where or there:
            found.append((kind, where or there[0]))
    return found


# How it is shown


def _rows(backend: SeenBackend) -> list[tuple[str, ...]]:
    if not backend.kind:
        return [(backend.name, "-", f"does not answer at {backend.url}", "", "", "", "")]
    rows: list[tuple[str, ...]] = [
        (backend.name, backend.kind, model.id, *_cells(model.profile)) for model in backend.models
    ]
    if (more := backend.listed - len(rows)) > 0:
        rows.append((backend.name, backend.kind, f"… and {more} more", "", "", "", ""))
    return rows or [(backend.name, backend.kind, "(lists no models)", "", "", "", "")]


def _cells(profile: ModelProfile) -> tuple[str, str, str, str]:
    window = profile.window
    size = "unknown" if window is None else str(window.value)
    origin = "set SPILLWAY_MODELS" if window is None else window.origin
    if profile.provisional:
        origin = "not loaded" if window is None else f"not loaded; {origin}"
    return size, origin, _yes_no(profile.tools), _yes_no(profile.vision)


def _yes_no(fact: Fact[bool] | None) -> str:
    return "?" if fact is None else ("yes" if fact.value else "no")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a command line tool prints
