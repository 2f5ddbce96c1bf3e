"""The packages for npm read a stream with status in it as if there were none, in each dialect that they speak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clients.staging import EARLY, EARLY_TOOLS, MIDDLE, MIDDLE_TOOLS, Scene, StageOf
from tests.e2e.clients.talk import NEXT, Job, Seen, fields_of
from tests.e2e.openai_npm import Missing, installed, run


@pytest.fixture(scope="module")
def npm() -> Path:
    """Folder with the package, and the script that uses it."""
    try:
        return installed()
    except Missing as missing:
        pytest.skip(str(missing))


def two_turns(npm: Path, way: str, job: Job) -> list[Seen]:
    fields = fields_of(job)
    answers = run(npm, kind=way, base=job.base, key=job.key, messages=job.messages, fields=fields, next=NEXT)
    return [Seen(**answer) for answer in answers]


@pytest.mark.parametrize(
    ("way", "scene"),
    [("create", EARLY), ("create", MIDDLE_TOOLS), ("helper", EARLY_TOOLS), ("helper", MIDDLE)],
    ids=str,
)
@pytest.mark.rows(1)
def test_two_turns(npm: Path, stages: StageOf, way: str, scene: Scene) -> None:
    stage = stages(scene)
    job = stage.job()
    stage.check(job, two_turns(npm, way, job))


def test_whole_answers(npm: Path, stages: StageOf) -> None:
    stage = stages(MIDDLE_TOOLS)
    job = stage.job(whole=True)
    answers = two_turns(npm, "whole", job)
    stage.check(job, answers)
    assert answers[0].usage is not None
    assert answers[0].usage["spillway"]["attempts"] >= 2


CLIENTS = (
    "openai 6/chat",
    "openai 7/chat",
    "openai 6/responses",
    "openai 7/responses",
    "openai 7/responses, compaction",
    "anthropic/messages",
    "vercel openai/responses",
    "vercel openai/chat",
    "vercel openai-compatible/chat",
    "vercel anthropic/messages",
    "ollama/chat",
)
EARLY_TOO = ("openai 7/responses", "anthropic/messages", "vercel openai/chat", "ollama/chat")
"""One of each dialect."""


@pytest.mark.parametrize(
    ("client", "scene"), [(each, MIDDLE) for each in CLIENTS] + [(each, EARLY) for each in EARLY_TOO], ids=str
)
@pytest.mark.rows(1)
def test_streams_of_every_package(npm: Path, stages: StageOf, client: str, scene: Scene) -> None:
    stage = stages(scene)
    job = stage.job()
    answers = run(npm, "streams.mjs", client=client, base=job.base, key=job.key, messages=job.messages, next=NEXT)
    first, second = (Seen(**answer) for answer in answers)
    stage.check_first(first)
    stage.check_second(second)
