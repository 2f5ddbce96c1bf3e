"""`spillway config`: prints the settings in force, and where each comes from."""

import argparse
import json

from proxy.cli import given, say
from proxy.config import listed_settings, origins
from proxy.core.errors import printable
from proxy.core.settings import Settings

_SECRET = ("api_keys", "admin_keys", "api_key")


def run(settings: Settings, args: argparse.Namespace) -> int:
    """Print each setting and its origin, with keys hidden, and return 0."""
    values, found = settings.model_dump(mode="json", exclude_none=True), origins(args.config, **given(args))
    values["models"] = {
        glob: each.model_dump(mode="json", exclude_unset=True) for glob, each in settings.models.items()
    }
    for backend in (*values["backends"], values):
        backend.update({name: "(hidden)" for name in _SECRET if backend.get(name)})
    rows = [
        (f"{name} = {json.dumps(values[name], ensure_ascii=False) if name in values else '(not set)'}", found[name])
        for name, _ in listed_settings()
    ]
    width = min(max(len(row) for row, _ in rows), 60)
    for row, origin in rows:
        say(f"{printable(row).ljust(width)}  {printable(origin)}")
    return 0
