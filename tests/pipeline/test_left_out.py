"""A newest message that alone exceeds the window: cut and told, its middle recalled, or refused with the figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.core.history.marks import RECALLED
from proxy.core.request import text_of
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, qa, summariser
from tests.pipeline.test_recalling import ASK, FACT, THINGS
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

WINDOW = 4096


def document(lines: int, ask: str = ASK) -> list[dict[str, Any]]:
    """One message: a long text with the fact in its middle, and a question behind it."""
    text = [f"Line {n}: the {THINGS[n % 10]} and the {THINGS[n * 7 % 10]} were blue long ago." for n in range(lines)]
    text[lines // 2] = FACT
    return [{"role": "user", "content": "\n".join((*text, "", ask))}]


@contextmanager
def staged(kind: str = "llamacpp", **settings: Any) -> Iterator[tuple[FakeBackend, Proxy]]:
    known = {"models": {"m": {"window": WINDOW}}} if kind == "generic" else {}
    fake = FAKES[kind]([FakeModel("m", WINDOW)], summariser(qa()))
    with fake, running_proxy(fake, **{**known, **settings}) as proxy:
        yield fake, proxy


def ask(proxy: Proxy, messages: list[dict[str, Any]], **fields: Any) -> Any:
    return proxy.chat({"model": "m", "messages": messages, "max_tokens": 40, **fields})


def prompt(fake: FakeBackend) -> str:
    return text_of(fake.chats()[-1].json["messages"][-1])


@pytest.mark.parametrize("kind", FAKES)
def test_what_was_left_out_is_told_and_its_middle_is_recalled(kind: str, stream: bool) -> None:
    messages = document(600)
    with staged(kind) as (fake, proxy):
        answer = ask(proxy, messages, stream=stream, stream_options={"include_usage": True})
        assert answer.status_code == 200, answer.text
        usage = read_stream(answer.content).usage if stream else answer.json()["usage"]
        assert usage is not None
        told, tokens = usage["spillway"]["left_out"], fake.count({"model": "m", "messages": messages})
        assert abs(told["of"] - tokens) < 0.25 * tokens
        assert 0.1 * told["of"] <= told["of"] - told["tokens"] <= WINDOW
        sent = prompt(fake)
        assert sent.startswith(RECALLED)
        block, rest = sent.split("\n\nLine 0:")
        assert FACT in block
        assert FACT not in rest
        assert "Line 1:" not in block  # what is left of the message is not told twice
        assert rest.endswith(ASK)
        assert ASK not in block
        assert "characters left out here" in rest
        assert usage["spillway"]["recalled"]["passages"] >= 1
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])
        if not stream:
            assert answer.headers["x-spillway-left-out"] == str(told["tokens"])


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}, "max_tokens": 1500},
        {"response_format": {"type": "json_object"}, "stream": True},
        {"response_format": {"type": "json_object"}, "max_tokens": 20_000},
        {"logprobs": True, "max_tokens": 1500},
    ],
)
def test_an_answer_that_can_not_be_paused_gets_its_room_before_it_begins(fields: dict[str, Any]) -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)]) as fake, running_proxy(fake) as proxy:
        assert ask(proxy, document(600), **{"max_tokens": None, **fields}).status_code == 200
        room = WINDOW - fake.count(fake.chats()[-1].json)
        assert min(fields.get("max_tokens", WINDOW // 4), 1700) * 0.95 < room < 0.6 * WINDOW


def test_all_of_a_book_is_looked_through() -> None:
    messages = document(6000)
    messages[0]["content"] = f"{document(3000)[0]['content'].replace(FACT, '')}\n{messages[0]['content']}"
    fake = FAKES["llamacpp"]([FakeModel("m", 32_768)], summariser(qa()))
    with fake, running_proxy(fake, documents="off") as proxy:
        assert messages[0]["content"].index(FACT) > 250_000
        assert ask(proxy, messages).status_code == 200
        assert FACT in prompt(fake)


def test_of_which_less_than_a_tenth_would_be_left_is_refused_with_the_figures(stream: bool) -> None:
    with staged(documents="off") as (fake, proxy):
        messages = document(4000, "Translate it, please.")
        answer = ask(proxy, messages, stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "less than a tenth" in error["message"]
        assert str(WINDOW) in error["message"]
        tokens = fake.count({"model": "m", "messages": messages})
        assert abs(error["n_prompt_tokens"] - tokens) < 0.25 * tokens
        assert error["n_ctx"] == WINDOW
        assert fake.chats() == []  # no model was asked for anything
