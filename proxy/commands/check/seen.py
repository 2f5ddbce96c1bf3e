"""What `spillway check` looks at, as plain values: they are judged without looking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.backends.profile import ModelProfile


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
    """What is known of the machine."""

    in_container: bool = False
    installed: Mapping[str, str] | None = None
    """By kinds of backends, where their programs are on this machine."""
    beliefs: tuple[Belief, ...] = ()
    taken: bool = False
    """Whether another program has the port that Spillway is to listen on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, and what to do about it. `code` is for programs."""

    code: str
    text: str
    cure: str
    backend: str = ""
    models: tuple[str, ...] = ()
