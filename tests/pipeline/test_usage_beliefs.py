"""What a reported usage is believed for, through HTTP: an impossible one for nothing, and none for another key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.fakes import FAKES, FakeModel, GenericFake, Question, Reply, VllmFake, qa, summariser
from tests.pipeline.test_counting import fill_tokens, history
from tests.proxying import Proxy, running_proxy

WINDOW = 16_384


def reports(prompt_tokens: Callable[[Question], int]) -> Callable[[Question], Reply]:
    return lambda question: Reply(
        text="Noted.", usage={"prompt_tokens": prompt_tokens(question), "completion_tokens": 2}
    )


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


@pytest.mark.parametrize("tokens", [9000, 15_000])
def test_a_report_far_off_the_estimate_is_not_believed_however_often_it_comes(tokens: int) -> None:
    with VllmFake([FakeModel("m", WINDOW)], reports(lambda _: tokens)) as fake, running_proxy(fake) as proxy:
        for number in range(8):
            chat(proxy, says("hi " + "word " * 60 * number))
        assert fill_tokens(chat(proxy, says("hi"))) < 200


def test_a_system_prompt_of_the_servers_own_is_found_out() -> None:
    brain = reports(lambda question: question.prompt_tokens + 3000)
    with VllmFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        chat(proxy, says("hi"))
        messages = says("word " * 400)
        chat(proxy, messages)
        assert fill_tokens(chat(proxy, messages)) > 3000


def test_a_report_for_one_key_is_no_anchor_for_another() -> None:
    brain = reports(lambda question: question.prompt_tokens + 400)
    with VllmFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        chat(proxy, says("hi"))
        assert fill_tokens(chat(proxy, says("hi"))) > 400
        assert fill_tokens(chat(proxy, says("hi"), "two")) < 400


def test_a_report_that_falls_where_the_prompt_grew_is_no_anchor() -> None:
    with VllmFake([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        chat(proxy, history(21, 100))
        longer = history(23, 100)
        fake.brain = reports(lambda question: question.prompt_tokens * 8 // 10)
        chat(proxy, longer)
        real = fake.count({"model": "m", "messages": longer})
        assert fill_tokens(chat(proxy, longer)) > 0.95 * real


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
