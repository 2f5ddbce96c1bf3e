"""What goes over the wire, and the loops that people write without a library."""

from itertools import pairwise

import pytest

from tests.e2e.clients import naive
from tests.e2e.clients.staging import EARLY, MIDDLE, SCENES, Scene, StageOf
from tests.e2e.clients.talk import Ask
from tests.proxying import read_stream


@pytest.mark.parametrize("scene", [EARLY, MIDDLE], ids=str)
@pytest.mark.parametrize("ask", [naive.loop, naive.frames], ids=lambda ask: ask.__name__)
def test_two_turns(stages: StageOf, scene: Scene, ask: Ask) -> None:
    # The chunk with usage has no choices, at OpenAI too: who asks for it has to look.
    stages(scene).take(ask, usage=False)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_the_streams_of_these_tests_do_carry_status(stages: StageOf, scene: Scene) -> None:
    """Events on chunks with a choice, and comments; before the text or within it."""
    answer = stages(scene).post().content
    seen = read_stream(answer)
    assert (seen.text, seen.done, len(seen.ids), seen.roles, seen.errors) == (scene.text, 1, 1, 1, [])
    done = [event["data"]["done"] for event in seen.events]
    assert done
    # What is told beside an answer closes nothing, so it stands alone.
    assert (done[0], done[-1]) == (False, True)
    assert all(closed for begun, closed in pairwise(done) if not begun)
    *notices, summary_comment = seen.comments
    assert summary_comment.startswith("spillway {")
    assert len([comment for comment in notices if comment != "spillway"]) == len(done)
    before = read_stream(answer[: answer.rindex(b"\n\n", 0, answer.index(b'"event"'))]).text
    assert (before == "") is scene.early
    assert scene.text.startswith(before)
