"""`spillway check`: find and probe the backends, and print what was found."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from proxy.app import open_wire, options_of, upstreams
from proxy.backends.profile import ModelProfile
from proxy.net.discovery import discover_all
from proxy.net.transport import open_transport
from proxy.net.upstream import Upstream
from proxy.settings import BackendSetting, Settings
from proxy.stages.routing import Router, not_listed

_HEAD = ("BACKEND", "KIND", "MODEL", "WINDOW", "FROM", "TOOLS", "VISION")
_SHOWN = 40
"""Models of one backend that are listed; OpenRouter has hundreds."""


async def check(settings: Settings) -> int:
    """Print a table of backends and models; 0 if any backend answered, else 1 with advice."""
    connect_timeout = min(5.0, settings.connect_timeout)
    async with open_transport(connect_timeout=connect_timeout, read_timeout=10.0) as transport:
        backends = settings.backends or await _found(transport, settings)
    async with open_wire(backends, connect_timeout=connect_timeout, read_timeout=10.0) as wire:
        found = upstreams(backends, settings, wire)
        rows = [row for each in found for row in await _rows(each)]
        table = await Router(found).table() if found else {}
    answered = [row for row in rows if row[1] != "-"]
    if rows:
        _print_table([_HEAD, *rows])
    if answered:
        for warning in not_listed(options_of(settings).helpers, table):
            _say(f"\n{warning}")
        return 0
    where = ", ".join(each.url for each in backends) or "the usual ports (1234, 11434, 8080, 8000)"
    _say(
        f"\nNo backend answers at {where}.\n"
        "Start LM Studio (and its server), Ollama, llama-server or vLLM, or say where it is:\n"
        "  spillway check --backend http://HOST:PORT"
    )
    return 1


async def _found(transport: httpx.AsyncBaseTransport, settings: Settings) -> tuple[BackendSetting, ...]:
    found = await discover_all(transport, settings.discover)
    return tuple(BackendSetting(url=each.url, name=each.kind) for each in found)


async def _rows(upstream: Upstream) -> list[tuple[str, ...]]:
    backend = await upstream.prober.backend()
    if backend is None:
        return [(upstream.name, "-", f"does not answer at {upstream.url}", "", "", "", "")]
    listed = await upstream.prober.listed()
    rows: list[tuple[str, ...]] = []
    for model in listed[:_SHOWN]:
        profile = await upstream.prober.profile(model.id)
        rows.append((upstream.name, backend.kind, model.id, *_cells(profile)))
    if len(listed) > _SHOWN:
        rows.append((upstream.name, backend.kind, f"… and {len(listed) - _SHOWN} more", "", "", "", ""))
    return rows or [(upstream.name, backend.kind, "(lists no models)", "", "", "", "")]


def _cells(profile: ModelProfile) -> tuple[str, str, str, str]:
    window = profile.window
    size = (
        "unknown" if window is None else f"{window.value}{' (until loaded)' if profile.provisional else ''}"
    )
    origin = "set SPILLWAY_MODELS" if window is None else window.origin
    return size, origin, _yes_no(profile.tools), _yes_no(profile.vision)


def _yes_no(fact: object) -> str:
    value = getattr(fact, "value", None)
    return "?" if value is None else ("yes" if value else "no")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a command line tool prints
