"""The openai package for Python reads a stream with status in it as if there were none."""

import pytest

from tests.e2e.clients import openai_python
from tests.e2e.clients.staging import EARLY, EARLY_TOOLS, MIDDLE, MIDDLE_TOOLS, SCENES, Scene, StageOf
from tests.e2e.clients.talk import Ask


@pytest.mark.parametrize("scene", SCENES, ids=str)
@pytest.mark.parametrize("ask", openai_python.STREAMED, ids=lambda ask: ask.__name__)
@pytest.mark.rows(6)
def test_two_turns(stages: StageOf, scene: Scene, ask: Ask) -> None:
    stages(scene).take(ask)


@pytest.mark.parametrize("ask", openai_python.WHOLE, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("scene", [EARLY, MIDDLE, EARLY_TOOLS, MIDDLE_TOOLS], ids=str)
def test_whole_answers(stages: StageOf, scene: Scene, ask: Ask) -> None:
    first, _ = stages(scene).take(ask, whole=True)
    assert first.usage is not None
    assert (first.usage.get("spillway", {}).get("attempts", 1) >= 2) is not scene.early
