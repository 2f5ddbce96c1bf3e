"""Looking for local backends on the ports that they use by default."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from proxy.backends import backend_of, detect
from proxy.backends.base import Probe
from proxy.backends.fields import dig, nonblank
from proxy.net.flows import FlowRunner

DEFAULT_PORTS = (1234, 11434, 8080, 8000)
"""LM Studio, Ollama, llama.cpp and vLLM, as they are installed."""
_VLLM_UNAUTHORIZED = {"error": "Unauthorized"}
"""Body of vLLM (0.33) where its key is missing; in those of others `error` is an object."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """A backend that answered: its kind (`auto`: it wants a key first), and its root without `/v1`."""

    kind: str
    url: str

    @property
    def name(self) -> str:
        """Its name as a backend; empty while its kind is not known."""
        return "" if self.kind == "auto" else self.kind


async def discover(
    transport: httpx.AsyncBaseTransport,
    *,
    host: str = "127.0.0.1",
    ports: tuple[int, ...] = DEFAULT_PORTS,
    timeout: float = 1.0,  # noqa: ASYNC109 - of each exchange, not of the whole search
) -> list[Discovered]:
    """Ask all ports at once, and tell what is there by the shape of replies, in the order of `ports`.

    Ports 8080 and 8000 belong to many other programs: a server of no known kind counts only if it lists
    models, or wants a key for that, the way OpenAI does.
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
    if outcome.value.kind != "generic" or await runner.run(backend_of("generic").detect(runner.url)):
        return outcome.value.kind
    if runner.unauthorized:
        body = (await runner.exchange(Probe("GET", "/v1/models"))).json
        return "auto" if body == _VLLM_UNAUTHORIZED or nonblank(dig(body, "error", "message")) else None
    return None
