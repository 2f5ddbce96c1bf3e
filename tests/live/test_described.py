"""What is written about the routes is what they are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from proxy.live.telling import NAMES
from proxy.telemetry import events as e
from proxy.telemetry import tracing
from proxy.telemetry.journal import UNKEPT
from proxy.telemetry.log import RequestLog
from tests.fakes import LlamaCppFake
from tests.proxying import running_proxy

TEXT = (Path(__file__).parents[2] / "docs" / "api-live.md").read_text()


def test_every_route_is_in_the_document_and_every_one_in_it_is_described() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        described = proxy.client.get("/openapi.json").json()["paths"]
    known = {
        f"{method.upper()} {re.sub(r'{[^}]*}', '{id}', path)}"
        for path, operations in described.items()
        for method in operations
        if path.startswith("/spillway/")
    }
    told = {
        f"{method} {path}"
        for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/spillway/[a-z/{}]+)", TEXT)
    }
    assert told | {"POST /spillway/explain"} == known


def test_every_field_is_in_the_document() -> None:
    with LlamaCppFake() as fake, running_proxy(fake) as proxy:
        described = proxy.client.get("/openapi.json").json()["components"]["schemas"]
    fields = {
        field
        for name in (
            "Row",
            "RequestOutcome",
            "Reduced",
            "MalformedCall",
            "Turn",
            "Bar",
            "Summary",
            "SummaryBlock",
            "Diff",
            "DiffRow",
            "Savings",
        )
        for field in described[name]["properties"]
    }
    assert {field for field in fields if f'"{field}"' not in TEXT and f"`{field}`" not in TEXT} == set()


def test_every_event_of_a_timeline_is_in_the_document_with_its_fields() -> None:
    kept = {
        name: [field.name for field in fields(kind)] for kind, name in NAMES.items() if kind not in UNKEPT
    }
    told = {f"`{name} {{{', '.join(its)}}}`" if its else f"`{name}`" for name, its in kept.items()}
    assert {each for each in told if each not in " ".join(TEXT.split())} == set()


def test_what_was_said_goes_to_nobody_who_writes_events_down() -> None:
    saying = {kind for kind in get_args(e.Event) if not all(field.repr for field in fields(kind))}
    assert saying == {e.Taken, e.CheckpointKept, e.Answering}
    assert saying < UNKEPT
    assert saying.isdisjoint(tracing._NOTED)
    assert saying.isdisjoint(RequestLog().heard)
    for kind in saying:
        assert "secret" not in repr(kind(*("secret" if not field.repr else 0 for field in fields(kind))))
