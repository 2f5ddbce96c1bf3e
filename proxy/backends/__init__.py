"""Model servers: one file per kind of backend, with pure flows of requests and replies.

A kind of backend is a program or service, such as Ollama. A flow is a generator that yields probes, small requests to the
server, and receives replies; `proxy.net` runs it. A fact is a value with its origin and how far to trust it. A model's
profile is the facts known about it, such as its window. An overflow is a backend's refusal of a prompt for its length; a
remedy is Spillway's action upon a refusal.

To add a kind, add a file with a subclass of `Backend`, and an entry in `BACKENDS`.
"""

from urllib.parse import urlsplit

from proxy.backends.base import Backend, Flow, Generic
from proxy.backends.llamacpp import LlamaCpp
from proxy.backends.llamaswap import LlamaSwap
from proxy.backends.lmstudio import LmStudio
from proxy.backends.ollama import Ollama
from proxy.backends.openrouter import OpenRouter
from proxy.backends.vllm import Vllm

# A kind is recognised by something that its imitators lack: KoboldCpp, LocalAI, Lemonade and Docker Model Runner all
# answer at Ollama's paths, and several servers answer to any path with 200.
BACKENDS: tuple[Backend, ...] = (Ollama(), LmStudio(), LlamaCpp(), LlamaSwap(), Vllm(), OpenRouter(), Generic())
"""Kinds in order of detection: those with the most distinctive replies first; the last one takes any server."""
LOCAL = tuple(backend for backend in BACKENDS if backend.port)
"""Kinds that are discovered on their usual ports."""
USUAL = ", ".join(f"{backend.title} ({backend.port})" for backend in LOCAL)
KINDS = ("auto", *(backend.kind for backend in BACKENDS))
"""Kinds that a setting may name."""


def backend_of(kind: str) -> Backend:
    """Return the backend of a kind.

    Raises:
        KeyError: there is no such kind.
    """
    return {backend.kind: backend for backend in BACKENDS}[kind]


def detect(url: str) -> Flow[Backend | None]:
    """Detect the kind of the server at `url` (root, without /v1) by the shape of its replies; None if no kind fits."""
    host = f".{urlsplit(url).hostname}"
    for backend in BACKENDS:
        if host.endswith(backend.domains):
            return backend
    for backend in BACKENDS:
        if (yield from backend.detect()):
            return backend
    return None
