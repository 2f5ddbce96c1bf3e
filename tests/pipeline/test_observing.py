"""The strategy `observe`: nothing is changed, and the record says what would have been done and what was lost without it."""

from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.settings import BackendSetting
from tests.fakes.brains import walk
from tests.fakes.llamacpp import LlamaCppFake
from tests.fakes.model import FakeModel
from tests.fakes.ollama import OllamaFake
from tests.fakes.vllm import VllmFake
from tests.pipeline.test_actions import TOOLS
from tests.pipeline.test_outcomes import until
from tests.proxying import Proxy, metric, running_proxy

WINDOW = 2048


def chat(words: int, turns: int = 15) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"{n} " + "word " * (words // turns)} for n in range(turns)]


def observed(proxy: Proxy) -> dict[str, Any]:
    """The newest request's event, and the row of the page; it is there a moment after the answer."""
    until(lambda: proxy.client.get("/spillway/outcomes").json()["outcomes"][0]["status"] > 0)
    row: dict[str, Any] = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]
    events = proxy.client.get(f"/spillway/requests/{row['id']}").json()["events"]
    (event,) = [each for each in events if each["event"] == "observed"]
    return {**row, **event}


@pytest.mark.parametrize(
    ("fake", "words", "limit", "status", "would", "lost"),
    [
        (LlamaCppFake, 100, 50, 200, "forwarded", ""), (LlamaCppFake, 1700, 50, 200, "compacted", ""),
        (LlamaCppFake, 4000, 50, 400, "compacted", "refused"), (LlamaCppFake, 1200, 900, 200, "paused", "ended"),
        (VllmFake, 4000, 50, 400, "compacted", "refused"), (OllamaFake, 7500, 50, 200, "compacted", "cut"),
    ],
)  # fmt: skip
def test_what_would_be_done_and_what_was_lost_is_said(
    fake: Callable[..., Any], words: int, limit: int, status: int, would: str, lost: str, *, stream: bool
) -> None:
    body: dict[str, Any] = {"model": "m", "messages": chat(words), "max_tokens": limit, "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    with fake([FakeModel("m", WINDOW)], walk()) as backend, running_proxy(backend, strategy="observe") as proxy:
        for turns in (1, 3):  # counts are learned from answers, as ever
            proxy.chat({**body, "messages": body["messages"][:turns], "max_tokens": 20})
            assert observed(proxy)["would"] == "forwarded"
        answer = proxy.chat(body)
        sent = backend.chats()[-1]
        assert (answer.status_code, sent.body) == (status, answer.request.content)
        assert answer.content == bytes(sent.sent) or answer.headers.get("content-encoding")
        said = observed(proxy)
        assert (said["would"], said["lost"], said["action"]) == (would, lost, "observed")
        assert any(f'lost="{lost}",model="m",would="{would}"' in each for each in metric(proxy, "spillway_observed_total"))


def test_what_would_only_be_changed_is_said_too() -> None:
    """In a small window tools are shortened, without anything being due."""
    fake = LlamaCppFake([FakeModel("m", 4 * WINDOW, tools=True)], walk())
    with fake, running_proxy(fake, strategy="observe") as proxy:
        assert proxy.chat({**TOOLS, "model": "m", "max_tokens": 20}).status_code == 200
        said = observed(proxy)
        assert (said["would"], said["sentence"].split(", ")[1]) == ("shaped", "Spillway would have changed it.")


def test_another_model_is_managed_as_ever() -> None:
    models = {"seen": {"strategy": "observe"}}
    fake = LlamaCppFake([FakeModel("seen", WINDOW), FakeModel("m", WINDOW)], walk())
    with fake, running_proxy(fake, models=models) as proxy:
        for model, action in (("seen", None), ("m", "compacted")):
            answer = proxy.chat({"model": model, "messages": chat(1700), "max_tokens": 50})
            assert answer.headers.get("x-spillway-action") == action


def test_what_cannot_be_prepared_is_passed_all_the_same() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], walk()) as fake, running_proxy(fake, strategy="observe") as proxy:
        answer = proxy.client.post("/v1/chat/completions", json={"model": "m", "messages": "what?"})
        assert answer.status_code == 400
        assert fake.requests[-1].body == answer.request.content
        assert proxy.client.get("/spillway/outcomes").json()["outcomes"][0]["action"] == "passed"


def test_a_backend_without_a_window_is_observed_too() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], walk()) as fake:
        unknown = BackendSetting(url=fake.url, kind="generic")
        with running_proxy(unknown, strategy="observe") as proxy:
            assert proxy.chat({"model": "m", "messages": chat(100), "max_tokens": 20}).status_code == 200
            assert observed(proxy)["would"] == "forwarded"
