"""In front of `transformers serve`, which tells little and refuses nothing for its size."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeModel, Question, Reply, summariser, walk, words
from tests.fakes.transformers import TransformersFake
from tests.proxying import read_stream, running_proxy

WINDOW = 2048
MODEL = "tiny/walk"
TOLD: dict[str, Any] = {"models": {"tiny/*": {"window": WINDOW}}}


def always(question: Question) -> Reply:
    return Reply(text=words(1, 30))


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}], ids=["plain", "usage"])
def test_a_stream_without_a_mark_at_its_end_gets_one(options: dict[str, Any]) -> None:
    with TransformersFake([FakeModel(MODEL, WINDOW)], always) as fake, running_proxy(fake, **TOLD) as proxy:
        asked = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hi"}], **options}
        seen = read_stream(proxy.chat(asked).content)
    assert (seen.text, seen.finishes, seen.done, seen.errors) == (words(1, 30), ["stop"], 1, [])
    assert b"[DONE]" not in fake.response_bytes[-1]


def test_a_conversation_never_fills_the_window_that_was_told() -> None:
    with TransformersFake([FakeModel(MODEL, WINDOW)], summariser(always)) as fake:
        with running_proxy(fake, **TOLD) as proxy:
            history: list[dict[str, Any]] = []
            for number in range(14):
                history.append({"role": "user", "content": f"Some words on topic {number}. " * 30})
                answer = proxy.chat({"model": MODEL, "messages": history})
                assert answer.status_code == 200, answer.text
                history.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        assert fake.cuts == 0


def test_its_own_bound_to_answers_is_no_window() -> None:
    """An answer that ends after 1,024 tokens says nothing of how much fits. Nobody asked for that end, so it goes on."""
    with TransformersFake([FakeModel(MODEL, 16384)], walk(last=700)) as fake, running_proxy(fake) as proxy:
        for topic in ("one", "two and more"):
            content = f"Go on about {topic}. " * 20
            asked = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": content}]}
            seen = read_stream(proxy.chat(asked).content)
            assert (seen.text, seen.finishes) == (words(1, 700), ["stop"])
        told = proxy.client.get("/spillway/models").json()["backends"][0]["models"][MODEL]
        assert told["window"] is None or told["window"]["value"] is None


def test_a_list_that_is_an_error_keeps_nobody_from_asking() -> None:
    with TransformersFake([FakeModel(MODEL, WINDOW)], always, cached=False) as fake:
        with running_proxy(fake, **TOLD) as proxy:
            answer = proxy.chat({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
        assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, words(1, 30))
