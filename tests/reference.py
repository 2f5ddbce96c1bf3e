"""What the documents take from the code, settings, states, metrics and events: `make docs` writes it, tests/test_docs.py compares."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from pydantic.fields import FieldInfo

from proxy.addons.log import FIELDS
from proxy.addons.metrics import COUNTERS, HISTOGRAMS
from proxy.config import listed_settings
from proxy.stream.events import LEGAL, State

ROOT = Path(__file__).parent.parent
PAGE, EXAMPLE = ROOT / "docs/settings.md", ROOT / "config/spillway.example.toml"
COMPOSE = ROOT / "docker-compose.yml"
ARCHITECTURE = ROOT / "docs/architecture.md"
OPERATIONS = ROOT / "docs/operations.md"
LIVE = ROOT / "docs/api-live.md"
PLACES = {
    PAGE: re.compile(r"(?<=<!-- settings: written by make docs -->\n).*?(?=<!-- end -->)", re.DOTALL),
    EXAMPLE: re.compile(r"(?<=# Written by make docs\.\n).*", re.DOTALL),
    ARCHITECTURE: re.compile(r"(?<=<!-- states: written by make docs -->\n).*?(?=<!-- end -->)", re.DOTALL),
    OPERATIONS: re.compile(r"(?<=<!-- metrics: written by make docs -->\n).*?(?=<!-- end -->)", re.DOTALL),
    LIVE: re.compile(r"(?<=<!-- events: written by make docs -->\n).*?(?=<!-- end -->)", re.DOTALL),
    COMPOSE: re.compile(r"(?<=  # Written by make docs:\n).*?(?=  # End\.)", re.DOTALL),
}
"""Where it stands in each file."""
LOG = re.compile(r"(?<=<!-- log: written by make docs -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""Where, beside the metrics, the fields of the log stand."""
_UNITS = {
    "Bytes": ((2**20, "MiB"), (2**10, "KiB"), (1, "bytes")),
    "Seconds": ((86400, "days"), (1, "s")),
    "Tokens": ((1, "tokens"),),
}


def table() -> str:
    """List the settings as a table in Markdown."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    rows += [f"| `SPILLWAY_{name.upper()}` | {_readable(field)} | {field.description} |" for name, field in listed_settings()]
    return "\n".join((*rows, ""))


def example() -> str:
    """List the settings as TOML: with their defaults, or behind `#:` with an example."""
    return "".join(
        f"\n{fill(str(field.description), 118, initial_indent='# ', subsequent_indent='# ')}\n{_assigned(name, field)}\n"
        for name, field in listed_settings()
    )


def environment() -> str:
    """List the settings as variables without a value, but for those that have one in compose."""
    without = PLACES[COMPOSE].sub("", COMPOSE.read_text())
    named = {f"SPILLWAY_{name.upper()}" for name, _ in listed_settings()} - set(_set_in(without))
    return "".join(f"  {name}:\n" for name in sorted(named))


def states() -> str:
    """The states of a streamed answer and the events that lead from one to another, in Mermaid's language."""
    events: dict[tuple[State, State], list[str]] = {}
    for (source, event), targets in LEGAL.items():
        for target in targets:
            events.setdefault((source, target), []).append(event.__name__)
    order = list(State)
    moves = sorted(events.items(), key=lambda move: [order.index(state) for state in move[0]])
    first, sources = order[0], {source for source, _ in LEGAL}
    lines = [
        f"[*] --> {first.name}",
        *(f"{source.name} --> {target.name}: {', '.join(sorted(names))}" for (source, target), names in moves),
        *(f"{state.name} --> [*]" for state in order if state not in sources),
    ]
    drawn = "\n".join(f"    {line}" for line in lines)
    return f"```mermaid\nstateDiagram-v2\n{drawn}\n```\n"


def metrics() -> str:
    """List the metrics as a table in Markdown, with the labels that each has beside backend and model."""
    named = [(f"{name}_total", text, labels) for name, text, labels, _ in COUNTERS]
    named += [(name, f"Histogram. {text}", labels) for name, text, labels, _, _ in HISTOGRAMS]
    rows = ["| metric | what it tells |", "|---|---|"]
    rows += [f"| `spillway_{name}{'{' + ','.join(labels) + '}' if labels else ''}` | {text} |" for name, text, labels in named]
    return "\n".join((*rows, ""))


def log() -> str:
    """List the fields of a line of the log as a table in Markdown."""
    return "\n".join(("| field | what it is |", "|---|---|", *(f"| `{name}` | {text} |" for name, text, _ in FIELDS), ""))


def events() -> str:
    """List the events of outcomes as a table in Markdown, with the fields that each has."""
    rows = ["| event | fields |", "|---|---|"]
    rows += [f"| `{name}` | {', '.join(fields)} |" for name, fields in sorted(added().items())]
    return "\n".join((*rows, ""))


def added() -> dict[str, dict[str, None]]:
    """Events that the code adds to outcomes, with the fields that it gives them."""
    found: dict[str, dict[str, None]] = {}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(owner, "add"), [named], fields):
                    if ast.unparse(owner).endswith("outcome") or (path.name, ast.unparse(owner)) == ("outcome.py", "self"):
                        for each in ast.walk(named):
                            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                                found.setdefault(each.value, {}).update(dict.fromkeys(key.arg or "…" for key in fields))
                case _:
                    pass
    return found


def written(path: Path) -> str:
    """Return the text of a file with what it takes from the code as it is now."""
    lists = {PAGE: table, EXAMPLE: example, COMPOSE: environment, ARCHITECTURE: states, OPERATIONS: metrics, LIVE: events}
    return LOG.sub(lambda _: log(), PLACES[path].sub(lambda _: lists[path](), path.read_text()))


def _set_in(compose: str) -> Iterator[str]:
    shared = compose.split("x-settings:")[1].split("\nservices:", maxsplit=1)[0]
    return (name for name, value in re.findall(r"^  (SPILLWAY_\w+):(.*)$", shared, re.MULTILINE) if value)


def _readable(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default in (None, (), {}):
        return "none"
    word = str(field.description).split()[0]
    if word in _UNITS and isinstance(default, int | float) and default:
        size, unit = next((each for each in _UNITS[word] if default % each[0] == 0), _UNITS[word][-1])
        return f"{default / size:,.15g} {unit}"
    return f"`{json.dumps(default)}`" if isinstance(default, bool | tuple) else f"`{default}`"


def _assigned(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default in (None, (), {}) and field.examples:
        return f"#: {name} = {_toml(field.examples[0])}"
    return f"{name} = {_toml(default)}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{key if key.isidentifier() else json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for place in PLACES:
        place.write_text(written(place))
