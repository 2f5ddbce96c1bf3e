from __future__ import annotations

from typing import get_args

import pytest

from proxy.core import sse
from proxy.core.jsontext import loads
from proxy.core.piece import Identity
from proxy.core.settings.entries import StatusForm
from proxy.dialects.chat.writing import ChatWriter
from proxy.shaping.repair import clean_history
from proxy.stream.status import FORMS, Notice, carries_chunks, strip_status
from tests.histories import assistant

OWN = Identity("own", 7, "asked")
BEGUN = Notice(done=False)
ENDED = Notice(done=True, before=41_200, after=980)
NOTICES = [BEGUN, ENDED, *(Notice(done=True, **how) for how in ({}, {"failed": True}, {"ended": True}))]


def written(form: str, notice: Notice) -> bytes:
    return b"".join(ChatWriter().insert(each(notice), OWN) for each in FORMS[form])


def chunks(form: str, notice: Notice) -> list[dict[str, object]]:
    made = written(form, notice)
    return [loads(data) for frame in sse.frames(made) if (data := sse.data_of(frame)) is not None]


def test_there_is_a_form_for_every_value_of_the_setting() -> None:
    assert set(FORMS) == set(get_args(StatusForm))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("notice", NOTICES)
def test_every_form_is_a_chunk_that_any_client_can_read(form: str, notice: Notice) -> None:
    for chunk in chunks(form, notice):
        assert (chunk["id"], chunk["model"], chunk["object"]) == ("own", "asked", "chat.completion.chunk")
        choices = chunk["choices"]
        assert isinstance(choices, list)
        assert choices[0]["finish_reason"] is None
        assert isinstance(choices[0]["delta"], dict)
    assert carries_chunks(form) == bool(chunks(form, notice))


def test_texts() -> None:
    assert BEGUN.text == "⚙️ Compacting conversation history…"
    assert ENDED.text == "✅ Context compacted, continuing… (41.2k → 980 tokens)"
    assert Notice(done=True).text == "✅ Context compacted, continuing…"
    assert Notice(done=True, before=5).text == "✅ Context compacted, continuing…"
    assert Notice(done=True, failed=True).text.startswith("⚠️")


def test_an_event_rides_on_an_empty_delta() -> None:
    (chunk,) = chunks("event", BEGUN)
    assert chunk["event"] == {"type": "status", "data": {"description": BEGUN.text, "done": False}}
    assert chunk["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]
    (chunk,) = chunks("event", ENDED)
    assert chunk["event"] == {"type": "status", "data": {"description": ENDED.text, "done": True}}


def test_auto_is_an_event_and_a_comment() -> None:
    made = written("auto", BEGUN)
    assert [sse.data_of(frame) is None for frame in sse.frames(made)] == [False, True]


FIGURES = [0, 1, 999, 1000, 1050, 41_234, 999_949, 1_048_576, 10_000_000]
COUNTED = [Notice(done=True, before=before, after=after) for n in FIGURES for before, after in ((n, 0), (0, n))]


@pytest.mark.parametrize(("form", "field"), [("content", "content"), ("reasoning", "reasoning_content")])
@pytest.mark.parametrize("notice", [*NOTICES, *COUNTED])
def test_what_is_written_into_an_answer_is_taken_out_of_the_history(form: str, field: str, notice: Notice) -> None:
    (chunk,) = chunks(form, notice)
    choices = chunk["choices"]
    assert isinstance(choices, list)
    text = f"one{choices[0]['delta'][field]}two"
    assert notice.text in text
    assert clean_history([assistant("x", **{field: text})])[0][field] == "onetwo"
    assert strip_status(text) == "onetwo"


def test_what_was_left_out_of_a_message_is_told() -> None:
    told = Notice(done=True, before=41_200, after=980, left_out=40_000)
    assert not told.separate
    assert told.text == (
        "✅ Context compacted, the middle of your message was left out, continuing… (41.2k → 980 tokens)"
    )
    beside = Notice(done=True, left_out=22_563, left_out_of=26_248)
    assert beside.separate
    assert "22.6k of its 26.2k tokens" in beside.text
    (chunk,) = chunks("content", told)
    choices = chunk["choices"]
    assert isinstance(choices, list)
    assert strip_status(f"so{choices[0]['delta']['content']}on") == "soon"
    assert strip_status("so\n\n> *✅ Context compacted, the middle of your mess") == "so"


def test_off_says_nothing() -> None:
    assert FORMS["off"] == ()
