"""Gates on the shape of the code that no linter has: sizes, forbidden constructs, where tests lie."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

from coverage.files import GlobMatcher

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "proxy").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

LONGEST_FILE = 400
LONGEST_FUNCTION = 50
OTHER_TESTS = {
    *("benchmarks", "contracts", "e2e", "engine", "engines", "fakes", "fuzz", "faults", "agents", "openwebui", "pipeline"),
    "page",
}
"""Test folders that mirror no folder of the source: they look at the whole, or help the others."""

WIRE_WORDS = ("choices", "delta", "finish_reason")
WIRE_MARKS = ("data: [DONE]", "[DONE]", "chat.completion")
WIRE_PLACES = (
    "proxy/dialects/",
    "proxy/demo.py",  # a backend of its own
    "proxy/backends/errors.py",  # reads error bodies of any form
)

TYPE_NAME = re.compile(r"[A-Z]\w*[a-z]\w*")
"""Of public classes and aliases; constants are written in capitals."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(node: ast.AST) -> int:
    return getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) + 1


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def parsed(path: Path) -> ast.Module:
    """Its tree, which is not kept: half a million objects would be gone through whenever garbage is collected."""
    return ast.parse(text_of(path), filename=str(path))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def places(words: tuple[str, ...], matches: Callable[[ast.AST], bool], *, but: tuple[str, ...] = ()) -> list[str]:
    """Where in the source there are nodes that match, each of which is written with one of the words, outside of what begins with a named path."""
    return [
        f"{name(path)}:{getattr(node, 'lineno', 0)}"
        for path in SOURCES
        if not name(path).startswith(but) and any(word in text_of(path) for word in words)
        for node in ast.walk(parsed(path))
        if matches(node)
    ]


def uses(*attributes: str, but: tuple[str, ...] = ()) -> list[str]:
    return places(attributes, lambda node: isinstance(node, ast.Attribute) and node.attr in attributes, but=but)


def test_no_file_and_no_function_is_too_long() -> None:
    assert len(SOURCES) > 20
    assert [name(path) for path in SOURCES if text_of(path).count("\n") > LONGEST_FILE] == []
    assert places(("def ",), lambda node: isinstance(node, Function) and lines_of(node) > LONGEST_FUNCTION) == []


def test_nothing_is_global() -> None:
    assert places(("global",), lambda node: isinstance(node, ast.Global)) == []


def test_no_text_is_cut_where_event_streams_are_not() -> None:
    """`splitlines`, and httpx's line iterators on top of it, also cut at U+2028 and U+0085, inside of JSON."""
    assert uses("splitlines", "aiter_lines", "iter_lines") == []


def test_only_the_settings_read_the_environment() -> None:
    assert uses("environ", "getenv", but=("proxy/config/__init__.py",)) == []


def test_only_a_dialect_knows_its_wire_form() -> None:
    """Everything else works on what the dialect's reader made of it."""

    def is_wire_form(node: ast.AST) -> bool:
        said = node.value if isinstance(node, ast.Constant) else None
        said = said.decode("latin-1") if isinstance(said, bytes) else said
        return isinstance(said, str) and (said in WIRE_WORDS or said.startswith(WIRE_MARKS))

    assert places((*WIRE_WORDS, *WIRE_MARKS), is_wire_form, but=WIRE_PLACES) == []


def test_detached_tasks_are_started_in_one_place() -> None:
    assert uses("create_task", "ensure_future", but=("proxy/net/tasks.py",)) == []


def test_a_broad_except_says_why() -> None:
    """With a comment beside it; one that only cleans up and raises again needs none."""
    assert [where for path in SOURCES for where in uncommented_handlers(path)] == []


def uncommented_handlers(path: Path) -> Iterator[str]:
    if "except" not in text_of(path):
        return
    lines = text_of(path).split("\n")
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and not raises_again(node):
            around = lines[node.lineno - 1 : node.body[0].lineno]
            if not any("#" in line for line in around):
                yield f"{name(path)}:{node.lineno}"


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(is_broad, caught.elts))
    return caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})


def test_every_exemption_gives_its_reason() -> None:
    mark = re.compile(r"#\s*noqa\b")
    reason = re.compile(r"#\s*noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)* - \w")
    lines = (
        (f"{name(path)}:{number}", line)
        for path in (*SOURCES, *TESTS)
        if path != Path(__file__)
        if "noqa" in (text := text_of(path))
        for number, line in enumerate(text.split("\n"), start=1)
        if "noqa" in line
    )
    assert [where for where, line in lines if mark.search(line) and not reason.search(line)] == []


def test_a_type_has_its_name_to_itself() -> None:
    """Whoever searches for a class finds the one there is; what two modules mean alike, one of them takes from the other."""
    where: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in parsed(path).body:
            for defined in filter(TYPE_NAME.fullmatch, names_of(node)):
                where.setdefault(defined, []).append(f"{name(path)}:{node.lineno}")
    assert {defined: lines for defined, lines in where.items() if len(lines) > 1} == {}


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines as a class or a variable, which an alias of a type is."""
    match node:
        case ast.ClassDef(name=defined):
            return [defined]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=defined)):
            return [defined]
        case _:
            return []


def folders(root: Path) -> set[str]:
    return {path.relative_to(root).parts[0] for path in root.glob("*/*.py")}


def test_test_folders_mirror_the_source() -> None:
    assert folders(ROOT / "tests") - OTHER_TESTS <= folders(ROOT / "proxy")
    assert folders(ROOT / "proxy") - folders(ROOT / "tests") == set()
    assert [name(path.parent) for path in TESTS if not (path.parent / "__init__.py").exists()] == []


def test_what_the_tests_must_reach_is_the_pure_part() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    pure = next(
        {module.removeprefix("proxy.") for module in contract["source_modules"]}
        for contract in project["importlinter"]["contracts"]
        if contract["name"].startswith("The pure part")
    )
    omitted = GlobMatcher(project["coverage"]["run"]["omit"])
    reached = {
        path.relative_to(ROOT / "proxy").with_suffix("") for path in SOURCES if not omitted.match(str(path.relative_to(ROOT)))
    }
    impure = {path for path in reached if not {path.parts[0], ".".join(path.parts)} & pure}
    assert impure == {Path("tokens/__init__")}
    makefile = (ROOT / "Makefile").read_text()
    named = re.search(r"^PURE := (.*)$", makefile, re.MULTILINE)
    assert named is not None
    assert {part for part in pure if "." not in part} == set(named[1].split())
