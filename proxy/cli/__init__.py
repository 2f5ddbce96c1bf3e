"""Command line: `spillway serve`, `check`, `config`, `store`, `launch` and `completion`; and `top`, `tail`, `show`, `export`, `replay` and `explain`.

The last six query a running Spillway over HTTP. `launch` runs a program: a coding agent that then talks to Spillway. A finding of
`check` is a problem with its cure. The demo is a built-in backend with scripted answers, served if no other is found.

Each command is imported when it is run, so `spillway --help` answers at once, and a command loads nothing that only others need.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy import __version__
from proxy.core.errors import SettingError, printable

if TYPE_CHECKING:
    from proxy.core.settings import Settings

PROGRAMS = ("codex", "claude", "opencode", "aider", "qwen")
"""Programs that `launch` can run."""

COMMANDS = {
    "serve": "start the proxy, in front of the given backends, or those found on their usual ports",
    "check": "find and probe the backends, and print what is wrong and what to do",
    "config": "print the settings in force, each with where it comes from",
    "store": "show figures of the checkpoint store (stats), print it as lines of JSON (export), or empty it (purge)",
    "launch": "run a coding agent through a running Spillway, or one started for it; "
    "arguments after -- go to the program",
    "top": "list the conversations: windows, speed, compactions (`watch spillway top` follows them)",
    "tail": "print a line for each request that ends; Ctrl-C ends it",
    "show": "print one request or conversation: timeline, difference, summary",
    "export": "print one conversation as Markdown, with all messages that are in memory",
    "completion": 'print the script with which a shell completes these commands: eval "$(spillway completion bash)" in '
    "~/.bashrc, the same for zsh; spillway completion fish > ~/.config/fish/completions/spillway.fish",
    "replay": "tell of saved conversations (an export of Open WebUI or ChatGPT, or requests as JSON Lines) from which turn on a running "
    "Spillway would shorten them, and the window is too small without it; no model is asked",
    "explain": "print, as JSON, what a running Spillway would do to a saved request, without asking a model",
}
"""Descriptions of commands, for their help."""
_LIVE = ("top", "tail", "show", "export", "replay", "explain")
"""Commands that query a running Spillway."""
_CONFIGURED = ("serve", "check", "config")
"""Commands that take every setting as an option."""

# httpx imports a command line of its own, with rich and pygments, which takes as long as the rest of httpx together. It copes
# if the import fails, as it does where those packages are not installed, so make it fail.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None: it is not to be had


class CommandError(Exception):
    """A command failed; the text says why, and what to do."""


def say(text: str) -> None:
    """Print a text to standard output, and flush it."""
    print(text, flush=True)  # noqa: T201 - a command line tool prints


def warn(text: str) -> None:
    """Print a line to standard error, and flush it."""
    print(f"spillway: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201 - as above


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0; 1 if something does not work; 2 for a wrong setting or argument; 130 if interrupted."""
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # by `| head`; without the redirection, Python would complain again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    command = next(iter(arguments), "")
    end = arguments.index("--") if command == "launch" and "--" in arguments else len(arguments)
    if command == "serve":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Needed until the loop runs: process 1 of a container ignores SIGTERM without a handler. The handler exits at once,
        # because an exception raised during an import may be swallowed.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
    parser = _parser(takes_settings=command in (*_CONFIGURED, "completion"))
    args = parser.parse_args(arguments[:end])
    if args.command is None:  # `uvx spillway-proxy` runs it without arguments
        parser.print_help()
        return 0
    if args.command == "completion":
        import shtab

        say(shtab.complete(parser, args.shell))
        return 0
    args.rest = arguments[end + 1 :]
    module = "live" if args.command in _LIVE else args.command
    try:
        return int(import_module(f"proxy.cli.{module}").run(_settings(args), args))
    except ModuleNotFoundError as error:
        if error.name != "rich":
            raise
        warn("this needs rich: pip install 'spillway-proxy[top]'")
        return 2
    except (SettingError, CommandError) as error:
        warn(str(error))
        return 2 if isinstance(error, SettingError) else 1


def _settings(args: argparse.Namespace) -> "Settings":
    from proxy.config import load_settings

    # `launch` runs in project folders, which may be other people's, so it ignores a spillway.toml there.
    return load_settings(args.config, here=args.command != "launch", **given(args))


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings on the command line, None for those that are not there."""
    from proxy.core.settings import Settings

    settings = {name: getattr(args, name, None) for name in Settings.model_fields}
    return settings | {"backends": ",".join(settings["backends"])} if settings["backends"] else settings


def _parser(*, takes_settings: bool) -> argparse.ArgumentParser:
    """Build the parser; with `takes_settings`, which imports them, each setting is an option of some commands."""
    parser = argparse.ArgumentParser(
        prog="spillway",
        description="An OpenAI-compatible proxy that keeps long conversations alive past the context window.",
        epilog="`spillway serve` looks for servers of models on their usual ports and listens on "
        "http://127.0.0.1:8484/v1; `spillway COMMAND --help` explains more. Settings come from arguments, SPILLWAY_… and a "
        "TOML file. Exit status: 0; 1 if something does not work; 2 for a wrong setting or argument; 130 if interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"spillway {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    named = {
        name: commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in COMMANDS.items()
    }
    named["store"].add_argument("action", choices=("stats", "purge", "export"))
    named["store"].add_argument("--older-than", type=float, metavar="DAYS", help="purge only what is older than that")
    named["launch"].add_argument("program", choices=PROGRAMS)
    named["launch"].add_argument("--model", metavar="ID", help="the model (default: the one that suits best)")
    tail = named["tail"]
    tail.add_argument("-n", "--last", type=int, default=10, metavar="N", help="begin with the last N (default 10)")
    tail.add_argument("--no-follow", action="store_true", help="stop after these")
    named["show"].add_argument("id", help="req_… (x-request-id of an answer), or c_… of a conversation")
    named["export"].add_argument("id", help="c_… of a conversation; `spillway top` lists them")
    named["explain"].add_argument("file", help="JSON of a request for chat completions; -: standard input")
    named["replay"].add_argument("file", help="the saved conversations; -: standard input")
    named["replay"].add_argument("--model", metavar="ID", help="model to send them to (default: the one they name)")
    named["completion"].add_argument("shell", choices=("bash", "zsh", "fish"))
    for name in _LIVE:
        named[name].add_argument("--url", help="where Spillway runs (default: where `spillway serve` would listen)")
    for name in ("check", "top", "tail", "show", "replay"):
        named[name].add_argument("--json", action="store_true", help="print it as JSON, for programs")
    for name in (*_CONFIGURED, "launch"):
        named[name].add_argument("--backend", action="append", dest="backends", metavar="URL", help="may be repeated")
    for command in named.values():
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML file, instead of spillway.toml")
    if takes_settings:
        from proxy.config import add_options

        for name in _CONFIGURED:
            add_options(named[name])
    return parser
