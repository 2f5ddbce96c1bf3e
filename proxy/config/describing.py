"""List of the settings, for `spillway serve --help` and the documents."""

from __future__ import annotations

import shutil
from textwrap import fill

from pydantic.fields import FieldInfo

from proxy.core.settings import ModelSettings, Settings

_INDENT = " " * 6
_ABOVE = (
    "settings, each in the environment (SPILLWAY_PORT=9000) or in a TOML file (port = 9000); `__` goes one level down, as in "
    "SPILLWAY_LIMITS__LINES=400:"
)


def listed_settings() -> list[tuple[str, FieldInfo]]:
    """List the settings by name: the server's own first, then those that can differ from model to model."""
    return sorted(Settings.model_fields.items(), key=lambda each: each[0] in ModelSettings.model_fields)


def described() -> str:
    """Each setting with its default and what it means, as wide as the terminal."""
    width = min(shutil.get_terminal_size().columns - 2, 120)
    lines = [fill(_ABOVE, width)]
    for name, field in listed_settings():
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
