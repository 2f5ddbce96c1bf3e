"""The packages for npm: a stream with status in it is one without to them, in each dialect; and the AI SDK in tool loops."""

from pathlib import Path

import pytest

from tests.e2e.clients.staging import EARLY, EARLY_TOOLS, MIDDLE, MIDDLE_TOOLS, Scene, StageOf
from tests.e2e.clients.talk import NEXT, Job, Seen, fields_of
from tests.e2e.openai_npm import Missing, installed, run
from tests.e2e.test_clients_dropped import SERVERS, STEPS, TASK, answers, fields, staged


@pytest.fixture(scope="module")
def npm() -> Path:
    """Folder with the package, and the script that uses it."""
    try:
        return installed()
    except Missing as missing:
        pytest.skip(str(missing))


def two_turns(npm: Path, way: str, job: Job) -> list[Seen]:
    asked = fields_of(job)
    seen = run(npm, kind=way, base=job.base, key=job.key, messages=job.messages, fields=asked, next=NEXT)
    return [Seen(**answer) for answer in seen]


@pytest.mark.parametrize(
    ("way", "scene"), [("create", EARLY), ("create", MIDDLE_TOOLS), ("helper", EARLY_TOOLS), ("helper", MIDDLE)], ids=str
)
@pytest.mark.rows(1)
def test_two_turns(npm: Path, stages: StageOf, way: str, scene: Scene) -> None:
    stage = stages(scene)
    job = stage.job()
    stage.check(job, two_turns(npm, way, job))


def test_whole_answers(npm: Path, stages: StageOf) -> None:
    stage = stages(MIDDLE_TOOLS)
    job = stage.job(whole=True)
    first, second = two_turns(npm, "whole", job)
    stage.check(job, [first, second])
    assert first.usage is not None
    assert first.usage["spillway"]["attempts"] >= 2


CLIENTS = (
    *("openai 6/chat", "openai 7/chat", "openai 6/responses", "openai 7/responses", "openai 7/responses, compaction"),
    *("anthropic/messages", "vercel openai/responses", "vercel openai/chat", "vercel openai-compatible/chat"),
    *("vercel anthropic/messages", "ollama/chat"),
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
    seen = run(npm, "streams.mjs", client=client, base=job.base, key=job.key, messages=job.messages, next=NEXT)
    first, second = (Seen(**answer) for answer in seen)
    stage.check_first(first)
    stage.check_second(second)


@pytest.mark.parametrize("server", ["deepseek", "moonshot", "gemini", "openrouter"])
@pytest.mark.parametrize("client", ["openai", "compatible", "compatible, pruned"])
def test_tool_loops_of_the_ai_sdk_have_what_the_server_wants_back(npm: Path, client: str, server: str) -> None:
    wants, brain, name, value = SERVERS[server]
    # Unless it is pruned, that provider sends back reasoning and signatures, but no `reasoning_details`.
    kept = client == "compatible" and server != "openrouter"
    with staged(wants, brain) as (backend, proxy):
        keys = ["streams", "whole"]
        loops = run(npm, "loop.mjs", client=client, base=f"{proxy.url}/v1", keys=keys, task=TASK)
        for seen in loops:
            assert (seen["text"], seen["finish"]) == ("Done.", "stop")
            assert seen["read"] == [f"text of f{step}" for step in range(STEPS)]
            assert seen["restored"] == [0 if kept else step for step in range(STEPS + 1)]
        asked = [[each for each in backend.chats() if each.header("authorization") == f"Bearer {key}"] for key in keys]
        assert [len(chats) for chats in asked] == [STEPS + 1, STEPS + 1]  # none was refused
        for chats in asked:
            assert fields(answers(chats), name) == [value(step) for step in range(STEPS)]
