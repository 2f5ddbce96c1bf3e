"""What is believed of a window, through the HTTP stack: what an estimate is no evidence against, and what proves one."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from proxy.net import prober as probing
from tests.fakes import FAKES, FakeModel, GenericFake, OllamaFake, Question, Reply, VllmFake, qa, summariser
from tests.fakes.http import Exchange
from tests.fakes.waiting import Gate, wait_until
from tests.pipeline.test_counting import history, told
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow


def reporting(prompt_tokens: int) -> Callable[[Question], Reply]:
    """A model whose backend reports this of prompts that say REPORT, and the truth of others."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2}
    return lambda question: Reply(text="Noted.", usage=usage if "REPORT" in question.last_user else None)


def ask(proxy: Proxy, text: str) -> Any:
    return proxy.chat({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 5})


def get_to_know(proxy: Proxy) -> None:
    """Let enough be reported of the model for its estimates to be trusted."""
    for number in range(6):
        proxy.chat({"model": "m", "messages": history(2 * number + 1, 30), "max_tokens": 5})


# -- an estimate against a report ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(FAKES))
def test_an_estimate_is_no_evidence_against_what_the_backend_says(kind: str) -> None:
    with FAKES[kind]([FakeModel("m", 16_384)], summariser(reporting(525))) as fake, running_proxy(fake) as proxy:
        get_to_know(proxy)
        window = told(proxy)["window"]
        for number in range(4):
            ask(proxy, f"{number} REPORT " + "word " * (1200 + 400 * number))
        assert told(proxy)["window"] == window
        long = proxy.chat({"model": "m", "messages": history(41, 150), "max_tokens": 5})
        assert long.headers["x-spillway-action"] == "forwarded"
        assert "spillway_silent_cuts_total{" not in proxy.client.get("/metrics").text


# -- a backend that cuts -------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [(41, 61), (61, 41)])
def test_a_backend_that_cuts_and_does_not_tell_its_window_is_found_out_in_two_conversations(
    turns: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    promise = {"m": {"window": 16_384}}
    with OllamaFake([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake, models=promise) as proxy:
        fake.fail_next(404, {"error": "not found"}, path="/api/ps", times=99)
        get_to_know(proxy)
        chats = [[{"role": "user", "content": f"Chat {n}."}, *history(count, 150)[1:]] for n, count in enumerate((*turns, 51))]
        cuts = []
        for messages in chats[:2]:
            assert told(proxy)["window"]["trust"] == "user"
            cuts.append(read_stream(proxy.chat({"model": "m", "messages": messages, "max_tokens": 5, "stream": True}).content))
        assert fake.cuts == 2
        assert any("cut the beginning" in comment for comment in cuts[-1].comments)
        assert "spillway_silent_cuts_total{" in proxy.client.get("/metrics").text
        window = told(proxy)["window"]
        assert (window["value"], window["trust"], window["origin"]) == (2048, "learned", "silent cut")
        assert "ollama/m has a window of 2048 tokens, learned from silent cut" in caplog.text
        chats[1] += [{"role": "assistant", "content": cuts[-1].text}, {"role": "user", "content": "and now?"}]
        for asked in chats[1:]:
            answer = proxy.chat({"model": "m", "messages": asked, "max_tokens": 5})
            assert answer.headers["x-spillway-action"] in ("compacted", "trimmed")
        assert fake.cuts == 2


# -- facts that contradict each other ------------------------------------------------------------------


def test_a_learned_window_is_given_up_with_the_first_prompt_that_proves_it_wrong(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = FakeModel("m", 2048)
    with GenericFake([model], summariser(qa())) as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": "m", "messages": history(31, 150), "max_tokens": 5})
        assert told(proxy)["window"]["value"] == 2048
        model.window = model.trained_window = 16_384
        fake.brain = lambda question: Reply(text="word " * 3000, finish="stop")
        form = {"type": "json_object"}  # an answer that is not paused
        proxy.chat({"model": "m", "messages": history(1, 20), "response_format": form})
        assert told(proxy)["window"] is None
        assert "the learned window of 2048 is discarded" in caplog.text


def test_nothing_is_compacted_on_old_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something in front of the server has loaded the model anew, with more, and no connection told of it."""
    monkeypatch.setattr(probing, "COOL_DOWN", 0.0)
    model = FakeModel("m", 4096)
    with VllmFake([model], summariser(qa())) as fake, running_proxy(fake) as proxy:
        ask(proxy, "hello")
        model.window = model.trained_window = 16_384
        answer = proxy.chat({"model": "m", "messages": history(31, 150), "max_tokens": 5})
        assert answer.headers["x-spillway-action"] == "forwarded"
        assert answer.headers["x-spillway-window"] == "16384"


def test_another_window_in_an_error_is_believed_at_once_and_the_backend_asked_again() -> None:
    """The server was started anew with less, and nobody noticed."""
    model = FakeModel("m", 16_384)
    with VllmFake([model], summariser(qa())) as fake, running_proxy(fake) as proxy:
        ask(proxy, "hello")
        asked = [r for r in fake.requests if r.path == "/v1/models"]
        model.window = model.trained_window = 2048
        answer = proxy.chat({"model": "m", "messages": history(31, 150), "max_tokens": 5})
        assert (answer.status_code, answer.headers["x-spillway-window"]) == (200, "2048")
        ask(proxy, "hello")
        assert len([r for r in fake.requests if r.path == "/v1/models"]) > len(asked)
        assert told(proxy)["window"]["value"] == 2048


def test_requests_go_on_with_what_is_known_while_probes_stall() -> None:
    model, gate = FakeModel("m", 4096), Gate()
    with VllmFake([model]) as fake, running_proxy(fake, profile_ttl=0.0) as proxy:

        async def stalled(exchange: Exchange) -> None:
            await gate.passage(0)
            await fake.model_list(exchange)

        ask(proxy, "hello")
        fake.routes["GET /v1/models"] = stalled
        assert [ask(proxy, "hello").headers["x-spillway-window"] for _ in range(3)] == ["4096"] * 3
        assert (gate.waiting, fake.cancelled) == (2, 0), "one probe of the list and one of the model, both still under way"
        model.window = 8192
        gate.open()
        wait_until(lambda: ask(proxy, "hello").headers["x-spillway-window"] == "8192")
