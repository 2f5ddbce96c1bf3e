"""Servers of models: one file per kind of backend, with pure flows of requests and replies.

To add a kind: a file with a subclass of `Backend`, and an entry in `BACKENDS`.
"""

from urllib.parse import urlsplit

from proxy.backends.base import Backend, Flow, Generic
from proxy.backends.llamacpp import LlamaCpp
from proxy.backends.llamaswap import LlamaSwap
from proxy.backends.lmstudio import LmStudio
from proxy.backends.ollama import Ollama
from proxy.backends.openrouter import OpenRouter
from proxy.backends.vllm import Vllm

BACKENDS: tuple[Backend, ...] = (Ollama(), LmStudio(), LlamaCpp(), LlamaSwap(), Vllm(), OpenRouter(), Generic())
"""In order of detection: the more a kind's replies say, the earlier; the last one takes what is left."""
LOCAL = tuple(backend for backend in BACKENDS if backend.port)
"""Kinds that are looked for on their usual ports."""
USUAL = ", ".join(f"{backend.title} ({backend.port})" for backend in LOCAL)
KINDS = ("auto", *(backend.kind for backend in BACKENDS))
"""Kinds that a setting may name."""


def backend_of(kind: str) -> Backend:
    """The backend of that kind.

    Raises:
        KeyError: there is no such kind.
    """
    return {backend.kind: backend for backend in BACKENDS}[kind]


def detect(url: str) -> Flow[Backend | None]:
    """Tell what the server at `url` (root, without /v1) is, by the shape of its replies; None: no kind fits."""
    host = f".{urlsplit(url).hostname}"
    for backend in BACKENDS:
        if host.endswith(backend.domains):
            return backend
    for backend in BACKENDS:
        if (yield from backend.detect()):
            return backend
    return None
