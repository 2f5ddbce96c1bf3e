"""What is written about the routes is what they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.fakes import LlamaCppFake
from tests.proxying import running_proxy

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "api-live.md").read_text().split())


def test_every_route_is_in_the_document_and_every_one_in_it_is_described() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        described = proxy.client.get("/openapi.json").json()["paths"]
    known = {
        f"{method.upper()} {re.sub(r'{[^}]*}', '{id}', path)}"
        for path, operations in described.items()
        for method in operations
        if path.startswith("/spillway/")
    }
    told = {f"{method} {path}" for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/spillway/[a-z/{}]+)", TEXT)}
    assert told | {"POST /spillway/explain"} == known


def test_every_event_of_a_timeline_is_in_the_document_with_its_fields() -> None:
    recorded: set[tuple[str, ...]] = set()
    for path in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add"):
                continue
            record = ast.unparse(node.func.value)
            if not (record.endswith("outcome") or (record == "self" and path.name == "outcome.py")):
                continue
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                recorded.add((node.args[0].value, *(each.arg for each in node.keywords if each.arg)))
    assert len(recorded) > 25
    missing = {name for name, *fields in recorded if not re.search(rf"`{name}( {{[^}}]*{', '.join(fields)}}})?`", TEXT)}
    assert missing == set()
