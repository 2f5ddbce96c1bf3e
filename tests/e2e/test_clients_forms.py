"""Every form of status, as the openai package for Python reads it; and answers that must carry none."""

from typing import Any

import pytest
from pydantic import BaseModel

from proxy.stream.status import FORMS, strip_status
from tests.e2e.clients.openai_python import client_of, helper
from tests.e2e.clients.staging import EARLY, MIDDLE, Scene, StageOf
from tests.e2e.clients.talk import MODEL, fields_of, two_turns
from tests.wording import NEVER_SENT

BOTH = pytest.mark.parametrize("scene", [EARLY, MIDDLE], ids=str)


@pytest.mark.parametrize("form", FORMS)
@BOTH
@pytest.mark.rows(6)
def test_where_the_status_is(stages: StageOf, form: str, scene: Scene) -> None:
    stage = stages(scene)
    job = stage.job(status=form)
    with client_of(job) as client:
        chunks = list(client.chat.completions.create(messages=scene.messages, **fields_of(job)))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    events = [chunk.model_extra["event"] for chunk in chunks if "event" in (chunk.model_extra or {})]
    content = "".join(choice.delta.content or "" for choice in choices)
    reasoning = "".join((choice.delta.model_extra or {}).get("reasoning_content", "") for choice in choices)
    assert [event["data"]["done"] for event in events] == ([False, True] if form in {"auto", "event"} else [])
    assert strip_status(content) == scene.text
    assert (content != scene.text) is (form == "content")
    assert strip_status(reasoning) == ""
    assert (reasoning != "") is (form == "reasoning")
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]


@pytest.mark.parametrize("form", FORMS)
@BOTH
@pytest.mark.rows(4)
def test_what_is_sent_back(stages: StageOf, form: str, scene: Scene) -> None:
    """The message that the package itself put together goes back whole, reasoning included."""
    stage = stages(scene)
    first, second = two_turns(stage.job(status=form), helper)
    first.text = strip_status(first.text)
    stage.check_first(first)
    second.text = strip_status(second.text)
    stage.check_second(second)


class Count(BaseModel):
    count: int


@pytest.mark.parametrize("form", FORMS)
def test_structured_output_carries_none(stages: StageOf, form: str) -> None:
    stage = stages(EARLY)
    job = stage.job(status=form)
    asked: dict[str, Any] = {"model": MODEL, "messages": stage.scene.messages, "response_format": Count}
    with client_of(job) as client:
        with client.chat.completions.stream(**asked) as stream:
            read = [event.chunk.to_json() for event in stream if event.type == "chunk"]
            final = stream.get_final_completion().choices[0].message
        whole = client.chat.completions.parse(**asked).choices[0].message
    assert final.parsed == whole.parsed == Count(count=5)
    assert final.content == whole.content
    assert [part for part in NEVER_SENT if part in "".join(read)] == []
    # Another key: a history that was compacted before would be compacted silently.
    wire = stages(EARLY).post(status=form, response_format={"type": "json_object"})
    assert wire.headers["x-spillway-action"] == "compacted"
    assert "ompact" not in wire.text
    stage.check_no_status()
