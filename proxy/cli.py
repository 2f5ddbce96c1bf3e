"""The command `spillway`: serve, check, store, launch."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy import __version__
from proxy.commands.doctor import check
from proxy.commands.launch import launch
from proxy.commands.launch.programs import PROGRAMS
from proxy.commands.serve import serve
from proxy.commands.store import store
from proxy.environment import without_user
from proxy.errors import SettingError
from proxy.settings import BackendSetting, Settings, load_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 when nothing answered, 2 for a wrong setting or argument."""
    own, rest = _parted(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(own)
    try:
        settings = _settings(args)
        if args.command == "check":
            return asyncio.run(check(settings, as_json=args.json))
        if args.command == "store":
            return asyncio.run(store(settings, args.action, args.older_than))
        if args.command == "launch":
            return launch(settings, args.program, model=args.model, serving=_serving(args), arguments=rest)
        return serve(settings)
    except SettingError as error:
        print(f"spillway: {error}", file=sys.stderr)  # noqa: T201 - a command line tool prints
        return 2
    except KeyboardInterrupt:
        return 130


def _parted(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Our own arguments, and those behind `--`, which are another program's."""
    end = list(argv).index("--") if "--" in argv and argv[0] == "launch" else len(argv)
    return argv[:end], argv[end + 1 :]


def _serving(args: argparse.Namespace) -> list[str]:
    """Arguments for a `spillway serve` that is started for a program."""
    config = [] if args.config is None else ["--config", str(args.config.absolute())]
    return [*config, *(part for url in args.backend or () for part in ("--backend", url))]


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
    checking = commands.add_parser(
        "check", help="find and probe the backends, and say what is wrong and what to do"
    )
    checking.add_argument("--json", action="store_true", help="print it as JSON, for programs")
    storing = commands.add_parser("store", help="look into the checkpoint store, or empty it")
    storing.add_argument("action", choices=("stats", "purge", "export"))
    storing.add_argument(
        "--older-than", type=float, metavar="DAYS", help="purge only what was made before that"
    )
    launching = commands.add_parser(
        "launch",
        help="run a coding agent through Spillway",
        description="Run a coding agent through the Spillway that runs, or one that is started for it; "
        "what stands behind -- goes to the program.",
    )
    launching.add_argument("program", choices=PROGRAMS)
    launching.add_argument("--model", metavar="ID", help="the model (default: the one that suits best)")
    for command in (serving, checking, storing, launching):
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML file (also SPILLWAY_CONFIG)")
    for command in (serving, checking, launching):
        command.add_argument(
            "--backend",
            action="append",
            metavar="URL",
            help="a backend, with or without /v1; may be repeated",
        )
    serving.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (default 8484; 0: any free one)")
    return parser
