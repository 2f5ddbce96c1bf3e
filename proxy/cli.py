"""The command `spillway`: serve, check, store, launch, completion; and top, tail, show, explain, which look at the one that runs.

Each command is imported when it is run: `spillway --help` answers at once, and nothing is in memory that only others need.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from proxy import __version__
from proxy.commands.launch.programs import PROGRAMS
from proxy.core.errors import SettingError

if TYPE_CHECKING:
    from proxy.core.settings import BackendSetting, Settings

# httpx has a command line, with rich and pygments, that takes as long to import as all the rest of it. It does without
# where those are not installed.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None: it is not to be had


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 when nothing answered, 2 for a wrong setting or argument."""
    own, rest = _parted(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    args = parser.parse_args(own)
    if args.command is None:  # as `uvx spillway-proxy` runs it
        parser.print_help()
        return 0
    if args.command == "completion":
        return _complete(args.shell)
    try:
        return _run(args, _settings(args), rest)
    except SettingError as error:
        print(f"spillway: {error}", file=sys.stderr)  # noqa: T201 - a command line tool prints
        return 2
    except KeyboardInterrupt:
        return 130


def _run(args: argparse.Namespace, settings: Settings, rest: Sequence[str]) -> int:
    match args.command:
        case "check":
            import asyncio

            from proxy.commands.check import check

            return asyncio.run(check(settings, as_json=args.json))
        case "store":
            import asyncio

            from proxy.commands.store import store

            return asyncio.run(store(settings, args.action, args.older_than))
        case "launch":
            from proxy.commands.launch.command import launch

            return launch(settings, args.program, model=args.model, serving=_serving(args), arguments=rest)
        case "serve":
            gc.disable()  # until all is imported and made: nothing of that becomes free
            from proxy.commands.serve import serve

            return serve(settings)
        case _:
            return _look(args, settings)


def _complete(shell: str) -> int:
    import shtab

    print(shtab.complete(_parser(), shell))  # noqa: T201 - as above
    return 0


def _look(args: argparse.Namespace, settings: Settings) -> int:
    """Look at the Spillway that runs; 1 if that tells nothing."""
    from proxy.commands.launch.serving import url_of
    from proxy.commands.live import LiveClient, LiveError, explain, show, tail, top

    client, as_json = LiveClient(args.url or url_of(settings), settings), args.json
    looks: dict[str, Callable[[], None]] = {
        "top": lambda: top(client, as_json=as_json),
        "tail": lambda: tail(client, last=args.last, follow=not args.no_follow, as_json=as_json),
        "show": lambda: show(client, args.id, as_json=as_json),
        "explain": lambda: explain(client, args.file, as_json=as_json),
    }
    try:
        looks[args.command]()
    except LiveError as error:
        print(f"spillway: {error}", file=sys.stderr)  # noqa: T201 - as above
        return 1
    except KeyboardInterrupt:  # what follows has no other end
        pass
    except BrokenPipeError:  # `| head`: nobody reads on, and Python would say so once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parted(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Our own arguments, and those behind `--`, which are another program's."""
    end = list(argv).index("--") if "--" in argv and argv[0] == "launch" else len(argv)
    return argv[:end], argv[end + 1 :]


def _serving(args: argparse.Namespace) -> list[str]:
    """Arguments for a `spillway serve` that is started for a program."""
    config = [] if args.config is None else ["--config", str(args.config.absolute())]
    return [*config, *(part for url in args.backend or () for part in ("--backend", url))]


def _settings(args: argparse.Namespace) -> Settings:
    from proxy.config import load_settings

    urls = getattr(args, "backend", None) or None
    backends = None if urls is None else tuple(_backend(url) for url in urls)
    address = {name: getattr(args, name, None) for name in ("host", "port")}
    return load_settings(args.config, backends=backends, **address)


def _backend(url: str) -> BackendSetting:
    from proxy.config.names import without_user
    from proxy.core.settings import BackendSetting

    try:
        return BackendSetting(url=url)
    except ValueError:
        shown = without_user(repr(url))
        raise SettingError(f"--backend={shown}: must start with http:// or https://") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spillway",
        description="An OpenAI-compatible proxy that keeps long conversations alive past the context window.",
        epilog="`spillway serve` looks for LM Studio, Ollama, llama.cpp and vLLM on their usual ports and listens on "
        "http://127.0.0.1:8484/v1; `spillway COMMAND --help` tells more. Settings come from arguments, SPILLWAY_… and a TOML "
        "file. Exit status: 0; 1 if nothing answered; 2 for a wrong setting or argument; 130 if interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"spillway {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serving = _serving_parser(commands)
    checking = commands.add_parser(
        "check",
        help="find and probe the backends, and say what is wrong and what to do",
        description="Find and probe the backends: their models, windows and tools, what is wrong with them and what to do.",
    )
    checking.add_argument("--json", action="store_true", help="print it as JSON, for programs")
    storing = _storing_parser(commands)
    launching = commands.add_parser(
        "launch",
        help="run a coding agent through Spillway",
        description="Run a coding agent through the Spillway that runs, or one that is started for it; "
        "what stands behind -- goes to the program.",
    )
    launching.add_argument("program", choices=tuple(PROGRAMS))
    launching.add_argument("--model", metavar="ID", help="the model (default: the one that suits best)")
    completing = commands.add_parser(
        "completion",
        help="print what a shell needs to complete these commands",
        description='Print what a shell needs to complete these commands: eval "$(spillway completion bash)" in ~/.bashrc, '
        "the same for zsh; spillway completion fish > ~/.config/fish/completions/spillway.fish.",
    )
    completing.add_argument("shell", choices=("bash", "zsh", "fish"))
    looking = _looking(commands)
    for command in (serving, checking, storing, launching, *looking):
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML file (also SPILLWAY_CONFIG)")
    for command in (serving, checking, launching):
        command.add_argument(
            "--backend", action="append", metavar="URL", help="a backend, with or without /v1; may be repeated"
        )
    return parser


def _serving_parser(commands: Any) -> argparse.ArgumentParser:
    serving = commands.add_parser(
        "serve",
        help="start the proxy",
        description="Start the proxy, in front of the backends that are named, or found on their usual ports.",
        add_help=False,
    )
    serving.add_argument("-h", "--help", action=_HelpOnSettings, help="show this, and every setting, and exit")
    serving.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on (default 8484; 0: any free one)")
    return cast("argparse.ArgumentParser", serving)


def _storing_parser(commands: Any) -> argparse.ArgumentParser:
    storing = commands.add_parser(
        "store",
        help="look into the checkpoint store, or empty it",
        description="Tell how many checkpoints the store has (stats), print each as a line of JSON (export), or delete them (purge).",
    )
    storing.add_argument("action", choices=("stats", "purge", "export"))
    storing.add_argument("--older-than", type=float, metavar="DAYS", help="purge only what was made before that")
    return cast("argparse.ArgumentParser", storing)


class _HelpOnSettings(argparse.Action):
    """The help of a command with all settings below it, which are imported for that alone."""

    def __init__(self, option_strings: Sequence[str], **more: Any) -> None:
        super().__init__(option_strings, **{**more, "dest": argparse.SUPPRESS, "nargs": 0})

    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from proxy.config.describing import described

        parser.print_help()
        print(f"\n{described()}")  # noqa: T201 - a command line tool prints
        parser.exit()


def _looking(commands: Any) -> list[argparse.ArgumentParser]:
    """The commands that look at the Spillway that runs."""
    watching = commands.add_parser(
        "top",
        help="show conversations live: windows, speed, compactions",
        description="Show the conversations of the Spillway that runs, live: what each does, what fills its window, its speed. Ctrl-C ends it.",
    )
    following = commands.add_parser(
        "tail",
        help="print a line for each request that ends",
        description="Print a line for each request that ends: what was done to it, its tokens and its time. Ctrl-C ends it.",
    )
    following.add_argument("-n", "--last", type=int, default=10, metavar="N", help="begin with the last N (default 10)")
    following.add_argument("--no-follow", action="store_true", help="end after these")
    showing = commands.add_parser(
        "show",
        help="print one request or conversation: timeline, difference, summary",
        description="Print what happened to one request, and what was forwarded in place of what; or the requests of a conversation and its summary.",
    )
    showing.add_argument("id", help="req_… (x-request-id of an answer), or c_… of a conversation")
    explaining = commands.add_parser(
        "explain",
        help="print what would be done to a saved request",
        description="Print what the Spillway that runs would do to a saved request for chat completions, without asking a model.",
    )
    explaining.add_argument("file", help="JSON of a request for chat completions; -: standard input")
    looking = [watching, following, showing, explaining]
    for command in looking:
        command.add_argument("--url", help="where Spillway runs (default: where `spillway serve` would listen)")
        command.add_argument("--json", action="store_true", help="print it as JSON, for programs")
    return looking
