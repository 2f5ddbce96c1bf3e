"""The command `spillway`: serve, check, store."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy import __version__
from proxy.commands.check import check
from proxy.commands.serve import serve
from proxy.commands.store import store
from proxy.environment import without_user
from proxy.errors import SettingError
from proxy.settings import BackendSetting, Settings, load_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 when nothing answered, 2 for a wrong setting or argument."""
    args = _parser().parse_args(argv)
    try:
        settings = _settings(args)
        if args.command == "check":
            return asyncio.run(check(settings))
        if args.command == "store":
            return asyncio.run(store(settings, args.action, args.older_than))
        return serve(settings)
    except SettingError as error:
        print(f"spillway: {error}", file=sys.stderr)  # noqa: T201 - a command line tool prints
        return 2
    except KeyboardInterrupt:
        return 130


def _settings(args: argparse.Namespace) -> Settings:
    given = getattr(args, "backend", None) or None
    backends = None if given is None else tuple(_backend(url) for url in given)
    host, port = getattr(args, "host", None), getattr(args, "port", None)
    return load_settings(args.config, backends=backends, host=host, port=port)


def _backend(url: str) -> BackendSetting:
    try:
        return BackendSetting(url=url)
    except ValueError:
        shown = without_user(repr(url))
        raise SettingError(f"--backend={shown}: must start with http:// or https://") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spillway",
        description="An OpenAI-compatible proxy that keeps long conversations alive past the context window.",
    )
    parser.add_argument("--version", action="version", version=f"spillway {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="start the proxy")
    checking = commands.add_parser("check", help="find and probe the backends, and print what was found")
    storing = commands.add_parser("store", help="look into the checkpoint store, or empty it")
    storing.add_argument("action", choices=("stats", "purge", "export"))
    storing.add_argument(
        "--older-than", type=float, metavar="DAYS", help="purge only what was made before that"
    )
    for command in (serving, checking, storing):
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML file (also SPILLWAY_CONFIG)")
    for command in (serving, checking):
        command.add_argument(
            "--backend",
            action="append",
            metavar="URL",
            help="a backend, with or without /v1; may be repeated",
        )
    serving.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (default 8484; 0: any free one)")
    return parser
