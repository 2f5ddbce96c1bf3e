"""Upper bounds on the size of the whole: what a person has to take in who wants to own it.

Each bound only goes down. Raising one needs a commit whose body says what was bought for it.
"""

import ast
import io
import threading
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from proxy.core.settings import Settings
from tests.fakes.brains import walk
from tests.fakes.llamacpp import LlamaCppFake
from tests.fakes.model import FakeModel
from tests.proxying import running_proxy

ROOT = Path(__file__).parent.parent
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Bound(NamedTuple):
    """The most that a figure may be now, and the aim it is on its way to."""

    most: int
    aim: int


BOUNDS = {
    "files": Bound(197, 160),
    "lines of code": Bound(27_054, 18_500),
    "Python tokens": Bound(288_929, 175_000),
    "settings": Bound(44, 40),
    "lines of tests": Bound(56_659, 40_000),
    "files in a circle of imports": Bound(0, 0),
    "widest object, fields": Bound(25, 25),
    "functions entered by a short streamed request": Bound(372, 250),
    "files entered by a short streamed request": Bound(71, 45),
}


@pytest.fixture(scope="module")
def figures() -> dict[str, int]:
    """Measure the tree and the path of a short streamed request."""
    sources = sorted((ROOT / "proxy").rglob("*.py"))
    sizes = [code_size(path.read_text()) for path in sources]
    entered = functions_entered()
    return {
        "files": len(sources),
        "lines of code": sum(lines for lines, _ in sizes),
        "Python tokens": sum(tokens for _, tokens in sizes),
        "settings": len(Settings.model_fields),
        "lines of tests": sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py")),
        "files in a circle of imports": len(in_a_circle(sources)),
        "widest object, fields": max(map(widest, sources)),
        "functions entered by a short streamed request": len(entered),
        "files entered by a short streamed request": len({file for file, _ in entered}),
    }


@pytest.mark.xdist_group("size")
@pytest.mark.parametrize("figure", BOUNDS)
def test_the_whole_does_not_grow(figures: dict[str, int], figure: str) -> None:
    most, aim = BOUNDS[figure]
    assert figures[figure] <= most, f"{figure}: {figures[figure]:,}, allowed {most:,} (aim {aim:,})"


def code_size(text: str) -> tuple[int, int]:
    """Lines that hold code, and Python tokens in them; neither comments nor docstrings count."""
    docs = set(docstring_lines(ast.parse(text)))
    lines: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in docs:
            lines.update(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return len(lines), tokens


def docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Lines of docstrings, those below an assignment included."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            documented = isinstance(before, ast.Assign | ast.AnnAssign) or (before is None and isinstance(node, owners))
            if documented and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield from range(statement.lineno, (statement.end_lineno or 0) + 1)


def widest(path: Path) -> int:
    """Most fields that a class of this module declares."""
    classes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
    return max((sum(isinstance(each, ast.AnnAssign) for each in node.body) for node in classes), default=0)


def in_a_circle(sources: list[Path]) -> set[str]:
    """Modules that import themselves through others, imports for types included."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in sources}
    imports = {name: set(imported(path)) & {*names.values()} - {name} for path, name in names.items()}
    while leaves := {name for name, others in imports.items() if not others}:
        imports = {name: others - leaves for name, others in imports.items() if name not in leaves}
    while tops := imports.keys() - set().union(*imports.values()):
        imports = {name: others for name, others in imports.items() if name not in tops}
    return {*imports}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions_entered() -> set[tuple[str, str]]:
    """Functions of `proxy/` that each of twelve short streamed requests enters, by file and name: none by chance."""
    entered: list[set[tuple[str, str]]] = []
    recording = threading.Event()
    folder = f"{ROOT / 'proxy'}/"

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and recording.is_set() and file.startswith(folder) and not name.endswith(">"):
            entered[-1].add((file, name))

    with LlamaCppFake([FakeModel("m")], walk(last=3)) as backend:
        threading.setprofile(profile)  # of threads that start from here on: the fake, which has one, is left out
        with running_proxy(backend, log_level="error") as proxy:
            threading.setprofile(None)
            for i in range(20):
                if i > 7:  # all is warm
                    entered.append(set())
                    recording.set()
                body = {"model": "m", "messages": [{"role": "user", "content": f"Hello, friend {i}"}], "stream": True}
                assert proxy.chat(body).content.endswith(b"data: [DONE]\n\n")
            recording.clear()
    return set.intersection(*entered)
