"""Requests of a dialect for what is stored elsewhere, where a client's request only names it.

A flow yields these and is sent the replies, so that it knows of no store and no key.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fetch:
    """The document that the client's credential keeps under a name; the reply is it, or None."""

    name: str


@dataclass(frozen=True, slots=True)
class Unseal:
    """What is under a seal of Spillway's own; the reply is it, or None for what is not to be believed."""

    purpose: str
    text: str
