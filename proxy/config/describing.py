"""The settings, as `spillway serve --help` lists them: for those who have the program and not its documentation."""

from __future__ import annotations

import shutil
from textwrap import fill

from proxy.settings import Settings

_INDENT = " " * 6
_ABOVE = (
    "settings, each in the environment (SPILLWAY_PORT=9000) or in a TOML file (port = 9000); `__` goes one level down, as in "
    "SPILLWAY_LIMITS__LINES=400:"
)


def described() -> str:
    """Each setting with its default and what it means, as wide as the terminal."""
    width = min(shutil.get_terminal_size().columns - 2, 120)
    lines = [fill(_ABOVE, width)]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        lines.append(f"  SPILLWAY_{name.upper()}{_shown(default)}")
        lines.append(fill(f"{field.description}", width, initial_indent=_INDENT, subsequent_indent=_INDENT))
    return "\n".join(lines)


def _shown(default: object) -> str:
    """A default as it would be set; nothing where there is none."""
    if default in (None, (), {}):
        return ""
    if isinstance(default, bool):
        return f"={int(default)}"
    if isinstance(default, tuple):
        return f"={','.join(map(str, default))}"
    return f"={default:.15g}" if isinstance(default, float) else f"={default}"
