"""Servers of models: one file per kind of backend, with pure flows of requests and replies.

To add a kind: a file with a subclass of `Backend`, and an entry in `BACKENDS`.
"""

from __future__ import annotations

from typing import TypeVar

from proxy.backends.base import Backend, Flow, Generic, Reply
from proxy.backends.llamacpp import LlamaCpp
from proxy.backends.llamaswap import LlamaSwap
from proxy.backends.lmstudio import LmStudio
from proxy.backends.ollama import Ollama
from proxy.backends.openrouter import OpenRouter, is_openrouter
from proxy.backends.vllm import Vllm

T = TypeVar("T")

BACKENDS: tuple[Backend, ...] = (Ollama(), LmStudio(), LlamaCpp(), LlamaSwap(), Vllm(), OpenRouter(), Generic())
"""In order of detection: the more a kind's replies say, the earlier; the last one takes what is left."""


def backend_of(kind: str) -> Backend:
    """The backend of that kind.

    Raises:
        KeyError: there is no such kind.
    """
    return {backend.kind: backend for backend in BACKENDS}[kind]


def detect(url: str) -> Flow[Backend | None]:
    """Tell what the server at `url` (root, without /v1) is, by the shape of its replies; None: no kind fits.

    No path is asked for twice.
    """
    if is_openrouter(url):
        return backend_of("openrouter")
    seen: dict[str, Reply] = {}
    for backend in BACKENDS:
        if (yield from _remembering(backend.detect(url), seen)):
            return backend
    return None


def _remembering(flow: Flow[T], seen: dict[str, Reply]) -> Flow[T]:
    """Run `flow`, answering from `seen` what was asked before."""
    reply: Reply | None = None
    while True:
        try:
            probe = next(flow) if reply is None else flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if probe.path not in seen:
            seen[probe.path] = yield probe
        reply = seen[probe.path]
