"""Findings about backends, models and clients, from plain values: nothing here looks at the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.backends.profile import ModelProfile
from proxy.config import is_here
from proxy.core.settings import Settings
from proxy.dialects.listing import VIRTUAL_WINDOW

SMALL = 4096
"""Tokens of a window that is hardly ever meant."""
_SHOWN = 3
_NAMES = {
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "llamacpp": "llama-server",
    "llamaswap": "llama-swap",
    "vllm": "vLLM",
    "openrouter": "OpenRouter",
}
_STARTS = {
    "lmstudio": "start its server (Developer, Status: Running; or `lms server start`)",
    "ollama": "start it (the application, or `ollama serve`)",
    "llamacpp": "start it: `llama-server -m MODEL.gguf`",
    "vllm": "start it: `vllm serve MODEL`",
}
_OPENS = {
    "lmstudio": 'switch on "Serve on Local Network" in its server settings (or `lms server start --bind 0.0.0.0`)',
    "ollama": 'start it with OLLAMA_HOST=0.0.0.0 (in the application: "Expose Ollama to the network")',
    "llamacpp": "start it with `--host 0.0.0.0`",
    "vllm": "start it with `--host 0.0.0.0`",
}
_LOADS = {"lmstudio": "download one in LM Studio, or `lms get MODEL`", "ollama": "`ollama pull MODEL`"}
_DOCKERS = ("host.docker.internal", "host.containers.internal")


@dataclass(frozen=True, slots=True)
class SeenModel:
    """A model that a backend lists."""

    id: str
    profile: ModelProfile
    reported: int | None
    """Tokens of the window that the backend itself tells; None: it tells none."""
    for_chats: bool | None
    """Whether it has a chat template; None: nobody tells."""


@dataclass(frozen=True, slots=True)
class SeenBackend:
    """A backend that was looked for by its name."""

    name: str
    url: str
    expected: str
    """The kind that is configured, or usual at its port; empty: any."""
    kind: str = ""
    """Empty: it does not answer."""
    wider: str = ""
    """How its windows are made larger."""
    status: int = 200
    """Of its list of models."""
    models: tuple[SeenModel, ...] = ()
    listed: int = 0
    """How many models it lists; `models` are the first of them."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A client's own idea of a window: which client, in which file and by which name, how many tokens."""

    client: str
    file: str
    name: str
    tokens: int
    model: str = ""
    """Empty: of every model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Facts about the machine."""

    in_container: bool = False
    installed: Mapping[str, str] | None = None
    """By kinds of backends, where their programs are on this machine."""
    beliefs: tuple[Belief, ...] = ()
    port_in_use: bool = False
    """Whether another program has the port that Spillway is to listen on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem, and its cure. `code` is for programs."""

    code: str
    text: str
    cure: str
    backend: str = ""
    models: tuple[str, ...] = ()


def judged(settings: Settings, seen: Sequence[SeenBackend], around: Around) -> list[Finding]:
    """Return all that is wrong, what keeps it from working first."""
    answering = [backend for backend in seen if backend.kind]
    return [
        *(_silent(backend, around) for backend in seen if not backend.kind),
        *([] if answering or seen else _not_found(settings, around)),
        *(found for backend in answering for found in _of_backend(backend)),
        *_of_clients(answering, around),
        *(_port_in_use(settings) if around.port_in_use else ()),
    ]


def _silent(backend: SeenBackend, around: Around) -> Finding:
    """Why one that is configured does not answer."""
    host, kind = urlsplit(backend.url).hostname or "", backend.expected
    name, opens = (_NAMES.get(kind, "the backend"), _OPENS.get(kind, "have it listen on all addresses (0.0.0.0)"))
    text = f"{backend.name} does not answer at {backend.url}"
    if around.in_container and is_here(host) and host not in _DOCKERS:
        return Finding(
            code="loopback_in_container",
            text=f"{text}: inside a container {host} is the container itself.",
            cure=f"name the machine instead (http://host.docker.internal:PORT), and {opens}: its own loopback is out of reach, too",
            backend=backend.name,
        )
    if host in _DOCKERS:
        return Finding(
            code="host_out_of_reach",
            text=f"{text}, the machine that the container runs on.",
            cure=f"{opens}, so that it takes connections from containers; on Linux the container needs "
            f"`extra_hosts: [{host}:host-gateway]`; then look at the machine's firewall",
            backend=backend.name,
        )
    starts = _STARTS.get(kind, "start it")
    away = "" if is_here(host) else f"; on another machine {opens}, and look at its firewall"
    return Finding(
        code="no_answer",
        text=f"{text}.",
        cure=f"{starts}{away}" if kind else f"start {name}{away}",
        backend=backend.name,
    )


def _not_found(settings: Settings, around: Around) -> Iterator[Finding]:
    """Why none was found: what is on this machine and does not serve, or what a container can't reach."""
    if around.in_container:
        yield Finding(
            code="host_out_of_reach",
            text=f"this is a container, and no backend takes connections from it at {', '.join(settings.discover)}.",
            cure=f"have it listen on more than its own loopback ({'; '.join(f'{_NAMES[kind]}: {how}' for kind, how in _OPENS.items())}), "
            "and look for it at host.docker.internal (SPILLWAY_DISCOVER)",
        )
        return
    for kind, where in (around.installed or {}).items():
        yield Finding(
            code="not_serving", text=f"{_NAMES[kind]} is installed ({where}), but does not serve.", cure=_STARTS[kind]
        )


def _of_backend(backend: SeenBackend) -> Iterator[Finding]:
    name = _NAMES.get(backend.kind, backend.name)
    if backend.status in (401, 403):
        yield Finding(
            code="wants_a_key",
            text=f"{name} at {backend.url} wants a key.",
            cure='give it one: SPILLWAY_BACKENDS=[{"url": "…", "api_key": "…"}], or have clients send theirs',
            backend=backend.name,
        )
    elif not backend.listed:
        yield Finding(
            code="no_models",
            text=f"{name} at {backend.url} lists no models.",
            cure=_LOADS.get(backend.kind, "have it load one"),
            backend=backend.name,
        )
    yield from _windows(backend)
    untemplated = [model for model in backend.models if model.for_chats is False]
    if untemplated:
        yield Finding(
            code="no_chat_template",
            text=f"{_listing(untemplated)} on {backend.name} {_have(untemplated, 'has', 'have')} no chat template: "
            "such a model is told words, not who said them, and answers like a book that goes on.",
            cure="take the -instruct or -chat variant, or give it the template of its family "
            "(llama-server and vLLM: `--chat-template`; Ollama: TEMPLATE in the Modelfile)",
            backend=backend.name,
            models=_ids(untemplated),
        )


def _windows(backend: SeenBackend) -> Iterator[Finding]:
    unknown = [model for model in backend.models if model.profile.window is None and not model.profile.provisional]
    if unknown:
        yield Finding(
            code="unknown_window",
            text=f"nobody tells the window of {_listing(unknown)} on {backend.name}: {_have(unknown, 'it is', 'they are')} not managed.",
            cure=f'say it: SPILLWAY_MODELS=\'{{"{unknown[0].id}": {{"window": 32768}}}}\'',
            backend=backend.name,
            models=_ids(unknown),
        )
    small = [model for model in backend.models if _is_small(model)]
    if small and backend.wider:
        trained = max(model.profile.trained_window.value for model in small if model.profile.trained_window is not None)
        yield Finding(
            code="small_window",
            text=f"{_listing(small)} on {backend.name} {_have(small, 'has', 'have')} a window of {SMALL:,} tokens or less, "
            f"though made for up to {trained:,}: often a default that nobody chose, and little for tools or documents.",
            cure=backend.wider,
            backend=backend.name,
            models=_ids(small),
        )
    for model in backend.models:
        chosen = model.profile.window
        if model.reported is not None and chosen is not None and chosen.value > model.reported:
            yield Finding(
                code="window_too_large",
                text=f"your setting gives {model.id} a window of {chosen.value:,} tokens; {backend.name} says {model.reported:,}.",
                cure=f"take the window out of SPILLWAY_MODELS, or {backend.wider or 'have the backend load it with that much'}",
                backend=backend.name,
                models=(model.id,),
            )


def _is_small(model: SeenModel) -> bool:
    window, trained = model.profile.window, model.profile.trained_window
    return window is not None and trained is not None and window.value <= SMALL < trained.value


def _of_clients(seen: Sequence[SeenBackend], around: Around) -> Iterator[Finding]:
    """Find clients that believe in a window below the true one, and shorten by themselves."""
    windows = {
        model.id: model.profile.window.value
        for backend in seen
        for model in backend.models
        if model.profile.window is not None
    }
    for belief in around.beliefs:
        true = windows.get(belief.model) or min(windows.values(), default=0)
        if belief.tokens <= true:  # a larger one is never full, since Spillway keeps the prompt within the true one
            yield Finding(
                code="client_window",
                text=f"{belief.client} believes in a window of {belief.tokens:,} tokens ({belief.name} in {belief.file}) "
                f"and shortens conversations itself, before Spillway does; the true one has {true:,}.",
                cure=f"take that line out, or say {max(VIRTUAL_WINDOW, 2 * true):,}",
                models=(belief.model,) if belief.model else (),
            )


def _port_in_use(settings: Settings) -> list[Finding]:
    where = f"{settings.host}:{settings.port}"
    return [
        Finding(
            code="port_taken",
            text=f"something else listens on {where}.",
            cure="stop it, or start Spillway with `--port 8485`, and give that port to clients",
        )
    ]


def _ids(models: Iterable[SeenModel]) -> tuple[str, ...]:
    return tuple(model.id for model in models)


def _listing(models: Sequence[SeenModel]) -> str:
    shown = ", ".join(_ids(models[:_SHOWN]))
    return shown if len(models) <= _SHOWN else f"{shown} and {len(models) - _SHOWN} more"


def _have(models: Sequence[SeenModel], one: str, many: str) -> str:
    return one if len(models) == 1 else many
