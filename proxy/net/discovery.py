"""Looking for local backends on the ports that they use by default."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from proxy.backends import backend_of, detect
from proxy.net.flows import FlowRunner

DEFAULT_PORTS = (1234, 11434, 8080, 8000)
"""LM Studio, Ollama, llama.cpp and vLLM, as they are installed."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """A backend that answered: its kind, and its root without `/v1`."""

    kind: str
    url: str


async def discover(
    transport: httpx.AsyncBaseTransport,
    *,
    host: str = "127.0.0.1",
    ports: tuple[int, ...] = DEFAULT_PORTS,
    timeout: float = 1.0,  # noqa: ASYNC109 - of each exchange, not of the whole search
) -> list[Discovered]:
    """Ask all ports at once, and tell what is there by the shape of replies, in the order of `ports`.

    Ports 8080 and 8000 belong to many other programs: a server of no known kind counts only if it lists
    models the way OpenAI does.
    """
    urls = [f"http://{host}:{port}" for port in ports]
    kinds = await asyncio.gather(*(_kind(FlowRunner(transport, url, timeout=timeout)) for url in urls))
    return [Discovered(kind, url) for kind, url in zip(kinds, urls, strict=True) if kind is not None]


async def discover_all(transport: httpx.AsyncBaseTransport, hosts: Sequence[str]) -> list[Discovered]:
    """Look on several hosts, in their order; what two names reach is found twice."""
    found = await asyncio.gather(*(discover(transport, host=host) for host in hosts))
    return [each for some in found for each in some]


async def _kind(runner: FlowRunner) -> str | None:
    outcome = await runner.trace(detect(runner.url))
    if not outcome.reached:
        return None
    if outcome.value.kind == "generic" and not await runner.run(backend_of("generic").detect(runner.url)):
        return None
    return outcome.value.kind
