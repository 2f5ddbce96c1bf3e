"""What is written about the routes is what they are."""

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
    told = {f"{method} {path}" for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/spillway/[a-z_/{}]+)", TEXT)}
    assert told | {"POST /spillway/explain"} == known
