"""What the Spillway that runs is doing, in a terminal: live rows, one line per request, one request, what would be done."""

from __future__ import annotations

from proxy.commands.terminal.asking import NotTold, Running
from proxy.commands.terminal.commands import explain, show, tail, top

__all__ = ["NotTold", "Running", "explain", "show", "tail", "top"]
