"""Counting through the HTTP stack: exact counts, what survives a restart, prompts that a backend cuts in silence."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FAKES, FakeModel, LlamaCppFake, Recorded, qa, summariser
from tests.proxying import Proxy, running_proxy

EXACT = {"llamacpp": "/v1/chat/completions/input_tokens", "vllm": "/tokenize"}


def history(count: int, words: int) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"{n} " + "word " * words} for n in range(count)]


def told(proxy: Proxy, model: str = "m") -> dict[str, Any]:
    found: dict[str, Any] = proxy.client.get("/spillway/models").json()["backends"][0]["models"][model]
    return found


def fill_tokens(answer: Any) -> float:
    return float(answer.headers["x-spillway-fill"]) * int(answer.headers["x-spillway-window"])


@pytest.mark.parametrize("kind", ["llamacpp", "vllm"])
def test_near_a_threshold_the_backend_is_asked(kind: str) -> None:
    with FAKES[kind]([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake) as proxy:

        def asked() -> list[Recorded]:
            return [request for request in fake.requests if request.path == EXACT[kind]]

        proxy.chat({"model": "m", "messages": history(1, 20), "max_tokens": 5})
        assert asked() == []
        messages = history(11, 138)
        count = fake.count({"model": "m", "messages": messages})
        assert 0.7 * 2048 < count < 0.8 * 2048
        answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 5})
        assert asked()
        assert answer.headers["x-spillway-action"] == "forwarded"
        assert abs(fill_tokens(answer) - count) <= 1


def test_a_backend_that_does_not_count_costs_nothing_but_a_moment() -> None:
    with LlamaCppFake([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        fake.fail_next(500, b"no", path=EXACT["llamacpp"], times=9)
        answer = proxy.chat({"model": "m", "messages": history(11, 138), "max_tokens": 5})
        assert answer.status_code == 200


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/kept.sqlite3"
    with LlamaCppFake([FakeModel("m", 8192, letters=2)], qa()) as fake:
        with running_proxy(fake, store=store) as proxy:
            for number in range(12):
                proxy.chat({"model": "m", "messages": history(2 * number + 1, 40), "max_tokens": 5})
            samples = told(proxy)["counting"]["samples"]
            assert samples >= 10
        with running_proxy(fake, store=store) as proxy:
            fresh = [{"role": "user", "content": "77 " + "word " * 90}]
            answer = proxy.chat({"model": "m", "messages": fresh, "max_tokens": 5})
            assert told(proxy)["counting"]["samples"] > samples
            real = fake.count({"model": "m", "messages": fresh})
            assert abs(fill_tokens(answer) - real) <= 0.15 * real


def test_nothing_is_refused_by_an_estimate_where_the_backend_counts() -> None:
    """What pictures weigh is a guess, and the second request was answered where the first one was refused."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    shown = {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]}
    history = [{"role": "assistant", "content": "alpha " * 900}, *[shown] * 4]
    asked = {"model": "m", "messages": [*history, {"role": "user", "content": "And?"}]}
    with LlamaCppFake([FakeModel("m", 1024, vision=True)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        assert proxy.chat(asked).status_code == 200
