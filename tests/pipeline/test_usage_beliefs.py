"""What a reported usage is believed for, through HTTP: an impossible one for nothing, and none for another key."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.fakes import FAKES, FakeModel, GenericFake, Question, Reply, VllmFake, summariser
from tests.pipeline.test_counting import fill_tokens, history
from tests.proxying import Proxy, running_proxy

WINDOW = 16_384


def reports(prompt_tokens: Callable[[Question], int]) -> Callable[[Question], Reply]:
    return lambda question: Reply(text="Noted.", usage={"prompt_tokens": prompt_tokens(question), "completion_tokens": 2})


def chat(proxy: Proxy, messages: list[dict[str, Any]], key: str = "one") -> httpx.Response:
    body = {"model": "m", "messages": messages, "max_tokens": 5}
    answer = proxy.chat(body, authorization=f"Bearer {key}")
    assert answer.status_code == 200, answer.text
    return answer


def says(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("kind", sorted(FAKES))
def test_a_report_above_the_window_locks_nobody_out(kind: str) -> None:
    with FAKES[kind]([FakeModel("m", WINDOW)], reports(lambda _: 22_500)) as fake, running_proxy(fake) as proxy:
        for number, key in enumerate(("one", "one", "two", "one")):
            answer = chat(proxy, says("hi"), key)
            assert len(fake.chats()) == number + 1
            assert answer.headers["x-spillway-action"] == "forwarded"
            if "x-spillway-fill" in answer.headers:
                assert fill_tokens(answer) < 200


def test_a_report_for_one_key_is_no_anchor_for_another() -> None:
    brain = reports(lambda question: question.prompt_tokens + 400)
    with VllmFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        chat(proxy, says("hi"))
        assert fill_tokens(chat(proxy, says("hi"))) > 400
        assert fill_tokens(chat(proxy, says("hi"), "two")) < 400


def test_a_backend_that_reports_only_what_was_not_cached_is_not_believed() -> None:
    """Each conversation is compacted in time, and nothing is refused or cut."""
    before = 0

    def uncached(question: Question) -> int:
        nonlocal before
        fresh, before = max(1, question.prompt_tokens - before), question.prompt_tokens
        return fresh

    with GenericFake([FakeModel("m", 4096)], summariser(reports(uncached))) as fake:
        with running_proxy(fake, models={"m": {"window": 4096}}) as proxy:
            actions = {chat(proxy, history(n, 60)).headers["x-spillway-action"] for n in range(1, 81, 2)}
        assert fake.overflows == 0
        assert actions > {"forwarded"}
