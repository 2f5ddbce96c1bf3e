"""A request that names no model goes to the one that is meant, and is managed as if it had named it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, VllmFake, walk
from tests.proxying import Proxy, running_proxy

HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO}, "/v1/messages": {"max_tokens": 20, "messages": HELLO},
    "/v1/responses": {"input": "hello"}, "/api/chat": {"messages": HELLO, "stream": False},
}  # fmt: skip
every = pytest.mark.parametrize("path", ASKED)
"""Every way to ask a model."""


@contextmanager
def serving(*models: FakeModel, **settings: Any) -> Iterator[tuple[Proxy, FakeBackend]]:
    with VllmFake(models, walk(last=8)) as fake, running_proxy(fake, **settings) as proxy:
        yield proxy, fake


@pytest.fixture(scope="module")
def one() -> Iterator[tuple[Proxy, FakeBackend]]:
    """A backend with one model, of a small window."""
    with serving(FakeModel("only", 2048)) as served:
        yield served


@pytest.fixture(scope="module")
def several() -> Iterator[tuple[Proxy, FakeBackend]]:
    """One with two, and nobody said which of them is meant."""
    with serving(FakeModel("one"), FakeModel("two")) as served:
        yield served


@pytest.fixture(scope="module")
def chosen() -> Iterator[tuple[Proxy, FakeBackend]]:
    """One with two, of which the second, whose tokens are shorter, is meant."""
    with serving(FakeModel("one"), FakeModel("two", letters=1), default_model="two") as served:
        yield served


def asked_for(fake: FakeBackend) -> list[Any]:
    """The models that it was asked to answer with."""
    return [each.json.get("model") for each in fake.chats()]


@every
@pytest.mark.parametrize("unnamed", [{}, {"model": None}, {"model": ""}], ids=["none", "null", "empty"])
def test_the_only_model_answers(one: tuple[Proxy, FakeBackend], path: str, unnamed: dict[str, Any]) -> None:
    proxy, fake = one
    told = proxy.client.post(path, json={**ASKED[path], **unnamed})
    assert told.status_code == 200, told.text
    assert asked_for(fake)[-1] == "only"
    assert told.json()["model"] == "only"


@every
def test_the_one_that_was_chosen_answers(chosen: tuple[Proxy, FakeBackend], path: str) -> None:
    proxy, fake = chosen
    assert proxy.client.post(path, json=ASKED[path]).status_code == 200
    assert asked_for(fake)[-1] == "two"


@every
def test_where_several_might_be_meant_the_client_is_told_what_to_do(several: tuple[Proxy, FakeBackend], path: str) -> None:
    proxy, fake = several
    before = len(asked_for(fake))
    told = proxy.client.post(path, json=ASKED[path])
    assert told.status_code == 400
    assert "SPILLWAY_DEFAULT_MODEL" in told.text
    assert "/v1/models" in told.text
    assert len(asked_for(fake)) == before


# Which one is meant


@pytest.mark.parametrize("kind", [LmStudioFake, OllamaFake, LlamaCppFake])
def test_the_one_that_is_loaded_answers(kind: type[LmStudioFake | OllamaFake | LlamaCppFake]) -> None:
    models = [FakeModel("away:1", loaded=False), FakeModel("here:1"), FakeModel("too:1", loaded=False)]
    router = {"router": True} if kind is LlamaCppFake else {}
    with kind(models, walk(last=8), **router) as fake, running_proxy(fake) as proxy:
        assert proxy.chat({"messages": HELLO}).status_code == 200
        assert asked_for(fake) == ["here:1"]


def test_a_model_that_only_makes_vectors_is_not_meant() -> None:
    models = [FakeModel("chatty"), FakeModel("text-embedding-nomic-embed-text-v1.5")]
    with LmStudioFake(models, walk(last=8)) as fake, running_proxy(fake) as proxy:
        assert proxy.chat({"messages": HELLO}).status_code == 200
        assert asked_for(fake) == ["chatty"]


def test_the_loaded_one_is_found_among_several_backends_that_have_it() -> None:
    first = LmStudioFake([FakeModel("shared:1", loaded=False)], walk(last=8))
    second = OllamaFake([FakeModel("shared:1")], walk(last=8))
    with first, second, running_proxy(first, second) as proxy:
        assert proxy.chat({"messages": HELLO}).status_code == 200
        assert (asked_for(first), asked_for(second)) == ([], ["shared:1"])


def test_a_backend_that_lists_nothing_is_asked_as_it_was() -> None:
    with VllmFake(brain=walk(last=8)) as fake, running_proxy(fake) as proxy:
        fake.fail_next(404, {"detail": "Not Found"}, path="/v1/models", times=9)
        proxy.chat({"messages": HELLO})
        assert asked_for(fake) == [None]


@every
def test_it_can_be_turned_off(path: str) -> None:
    """As OpenAI does it, though there is one model only."""
    with serving(FakeModel("only"), default_model="off") as (proxy, fake):
        told = proxy.client.post(path, json=ASKED[path])
        assert (told.status_code, asked_for(fake)) == (400, [])
        assert "SPILLWAY_DEFAULT_MODEL=off" in told.text
        assert proxy.client.post(path, json={**ASKED[path], "model": "only"}).status_code == 200
