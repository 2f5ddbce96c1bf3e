"""`spillway check`: what is found, what a newcomer gets wrong about it, and the cure."""

from __future__ import annotations

from proxy.commands.check.command import check

__all__ = ["check"]
