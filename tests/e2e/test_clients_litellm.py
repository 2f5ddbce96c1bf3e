"""LiteLLM's client reads a stream with status in it as if there were none."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.e2e.clients.installing import Missing, python_packages
from tests.e2e.clients.staging import EARLY, EARLY_TOOLS, MIDDLE, MIDDLE_TOOLS, SCENES, Scene, StageOf
from tests.e2e.clients.talk import Job, Seen

pytestmark = pytest.mark.xdist_group("litellm")  # which takes ten seconds to import

ROOT = Path(__file__).parents[2]
TwoTurns: TypeAlias = Callable[[str, Job], list[Seen]]


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTurns]:
    """LiteLLM in a process of its own: it wants an older openai package than the one this project is tested with."""
    try:
        packages = python_packages("litellm>=1.100")
    except Missing as missing:
        pytest.skip(str(missing))
    complaints = tmp_path_factory.mktemp("litellm") / "stderr"
    # Without -S the project's own environment would be seen behind those packages; and
    # LiteLLM keeps its connections, and the loop they were opened on, until the process ends.
    strict = ["-S", "-W", "error", "-W", "ignore::ResourceWarning"]
    command = [sys.executable, *strict, "-m", "tests.e2e.clients.litellm_worker"]
    # LiteLLM fetches a list of prices when it is imported, unless it is told to use its own.
    environment = {"PYTHONPATH": f"{packages}:{ROOT}", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (
        complaints.open("w") as stderr,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):

        def two_turns(way: str, job: Job) -> list[Seen]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps({"way": way, "job": asdict(job)}), file=process.stdin, flush=True)
            line = process.stdout.readline()
            assert complaints.read_text() == ""
            return [Seen(**answer) for answer in json.loads(line)]

        yield two_turns
        process.terminate()  # by itself it takes a second to end


@pytest.mark.parametrize(
    ("way", "scene"),
    [
        *(("completion", scene) for scene in SCENES), ("acompletion", EARLY_TOOLS), ("acompletion", MIDDLE),
        ("chunk_builder", EARLY), ("chunk_builder", MIDDLE_TOOLS),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.rows(1)
def test_two_turns(litellm: TwoTurns, stages: StageOf, way: str, scene: Scene) -> None:
    stage = stages(scene)
    job = stage.job()
    stage.check(job, litellm(way, job))


@pytest.mark.parametrize("scene", [EARLY, MIDDLE], ids=str)
def test_whole_answers(litellm: TwoTurns, stages: StageOf, scene: Scene) -> None:
    stage = stages(scene)
    job = stage.job(whole=True)
    stage.check(job, litellm("whole", job))
