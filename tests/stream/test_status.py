from typing import Any, get_args

import pytest

from proxy.core import sse
from proxy.core.jsontext import loads
from proxy.core.piece import Identity
from proxy.core.settings.entries import StatusForm
from proxy.dialects.chat.answers import ChatWriter
from proxy.shaping.repair import clean_history
from proxy.stream import status
from proxy.stream.status import (
    COMPACTING,
    FORMS,
    Notice,
    compacted,
    moved,
    omitted_from_message,
    read_in_parts,
    shortened_ahead,
    strip_status,
)
from tests.histories import assistant

OWN = Identity("own", 7, "asked")
ENDED = compacted(41_200, 980)
FIGURES = [0, 1, 999, 1000, 1050, 41_234, 999_949, 1_048_576, 10_000_000]
FIXED = [each for each in vars(status).values() if isinstance(each, Notice)]
NOTICES = [
    *(each for each in FIXED if each is not status.SILENT_CUT),  # which is never in the text
    shortened_ahead(1, "extract", 5, 4),
    shortened_ahead(16, "", 1_700, 940),
    moved("qwen3-8b-32k", 32_768),
    moved("/models/my model (new).gguf", 1_048_576),
    read_in_parts(41_200, 980),
    compacted(5, 4, omitted=True),
    *(compacted(before, after) for n in FIGURES for before, after in ((n, 0), (0, n))),
]


def chunks(form: str, notice: Notice) -> list[dict[str, Any]]:
    made = b"".join(ChatWriter().insert(each(notice), OWN) for each in FORMS[form])
    return [loads(data) for frame in sse.frames(made) if (data := sse.data_of(frame)) is not None]


def test_there_is_a_form_for_every_value_of_the_setting() -> None:
    assert set(FORMS) == set(get_args(StatusForm))
    assert FORMS["off"] == ()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("notice", FIXED)
def test_every_form_is_a_chunk_that_any_client_can_read(form: str, notice: Notice) -> None:
    for chunk in chunks(form, notice):
        assert (chunk["id"], chunk["model"], chunk["object"]) == ("own", "asked", "chat.completion.chunk")
        assert chunk["choices"][0]["finish_reason"] is None
        assert isinstance(chunk["choices"][0]["delta"], dict)


def test_texts() -> None:
    assert COMPACTING.text == "⚙️ Compacting conversation history…"
    assert ENDED.text == "✅ Conversation shortened (41.2k → 980 tokens)"
    assert compacted(3_200, 3_400).text == "✅ Conversation shortened"
    assert shortened_ahead(16, "written", 1_720, 940).text == "✅ 16 earlier messages are now a summary (1.7k → 940 tokens)"
    assert "22.6k of its 26.2k tokens" in omitted_from_message(22_563, 26_248).text


@pytest.mark.parametrize("notice", [COMPACTING, ENDED])
def test_an_event_rides_on_an_empty_delta(notice: Notice) -> None:
    (chunk,) = chunks("event", notice)
    assert chunk["event"] == {"type": "status", "data": {"description": notice.text, "done": notice.done}}
    assert chunk["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]


def test_auto_is_an_event_and_a_comment() -> None:
    made = b"".join(ChatWriter().insert(each(COMPACTING), OWN) for each in FORMS["auto"])
    assert [sse.data_of(frame) is None for frame in sse.frames(made)] == [False, True]


@pytest.mark.parametrize(("form", "field"), [("content", "content"), ("reasoning", "reasoning_content")])
@pytest.mark.parametrize("notice", NOTICES)
def test_what_is_written_into_an_answer_is_taken_out_of_the_history(form: str, field: str, notice: Notice) -> None:
    (chunk,) = chunks(form, notice)
    text = f"one{chunk['choices'][0]['delta'][field]}two"
    assert notice.text in text
    assert clean_history([assistant("x", **{field: text})])[0][field] == "onetwo"
    assert strip_status(text) == "onetwo"
