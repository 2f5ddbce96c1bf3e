"""What a dialect asks for where a request names something that is kept elsewhere, or its answer is to be kept.

A flow yields these and is sent the replies, so that it knows of no store and no key.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Fetch:
    """The document that the client's credential keeps under a name; the reply is it, or None."""

    name: str
    vital: bool = True
    """Whether nothing comes of the request while the store can't tell; else the reply is None then."""


@dataclass(frozen=True, slots=True)
class Unseal:
    """What is under a seal of Spillway's own; the reply is it, or None for what is not to be believed."""

    purpose: str
    text: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a document under a name, for the client's credential alone; the reply is whether the store takes such a one."""

    name: str
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alone:
    """Let nobody else change what has that name until the flow is over; no reply."""

    name: str


Keeping: TypeAlias = Generator[Fetch | Keep | Alone, Any, bool]
"""Comes to whether all of it is kept."""
