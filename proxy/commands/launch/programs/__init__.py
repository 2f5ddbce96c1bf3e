"""The programs that can be launched: one file each, and a line here."""

from __future__ import annotations

from proxy.commands.launch.programs.aider import AIDER
from proxy.commands.launch.programs.base import Place, Program, Start
from proxy.commands.launch.programs.claude import CLAUDE
from proxy.commands.launch.programs.codex import CODEX
from proxy.commands.launch.programs.opencode import OPENCODE
from proxy.commands.launch.programs.qwen import QWEN

PROGRAMS: dict[str, Program] = {program.name: program for program in (CODEX, CLAUDE, OPENCODE, AIDER, QWEN)}
"""By their names."""

__all__ = ["PROGRAMS", "Place", "Program", "Start"]
