"""Vectors beside words, through the HTTP stack: what they find, whom they are asked of, and that nothing waits for them."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.addons import embedding
from proxy.addons.embedding import compare, query_text, texts_for, vector_of
from proxy.core.request import text_of
from proxy.core.settings import BackendSetting
from tests.fakes import FAKES, FakeBackend, FakeModel, Gate, LlamaCppFake, VllmFake
from tests.fakes.chat import vector
from tests.pipeline.test_recalling import FACT, WINDOW, ask, brain, long_chat, prompts
from tests.proxying import Proxy, running_proxy

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine two seconds may pass before the vectors of a hundred texts are there."""
    monkeypatch.setattr(embedding, "WAIT", 20.0)


PATH = "/v1/embeddings"
PETS = "Who looks after the pets of our family?"
"""Asks for the fact in other words than it was told in."""
MODEL = "nomic-embed-text"


def meaning(text: str) -> list[float]:
    """A vector of what a text is about, of which animals are one thing."""
    animals = sum(word in text for word in ("hedgehogs", "pets"))
    return [*vector(text), 8.0 * animals]


@contextmanager
def staged(chat: FakeBackend, vectors: FakeBackend, **settings: Any) -> Iterator[Proxy]:
    """A model that talks behind one backend, and one that embeds behind another."""
    with chat, vectors:
        backends = [BackendSetting(url=fake.url, name=name) for name, fake in (("talks", chat), ("embeds", vectors))]
        with running_proxy(*backends, **{"recall_model": MODEL, **settings}) as proxy:
            yield proxy


def talker(**options: Any) -> LlamaCppFake:
    return LlamaCppFake([FakeModel("m", WINDOW)], brain, **options)


def embedder(kind: str = "ollama", **options: Any) -> FakeBackend:
    return FAKES[kind]([FakeModel(MODEL, embedding=True)], embedding_of=meaning, **options)


def asked(fake: FakeBackend) -> list[Any]:
    return [request for request in fake.requests if request.path.endswith(PATH)]


def embedded(fake: FakeBackend) -> list[str]:
    return [text for request in asked(fake) for text in request.json["input"]]


@pytest.mark.parametrize("kind", FAKES)
def test_what_was_said_in_other_words_is_found(kind: str) -> None:
    chat, vectors = talker(), embedder(kind)
    with staged(chat, vectors) as proxy:
        ask(proxy, long_chat(PETS))
        assert FACT in text_of(prompts(chat)[-1][-1])
        texts = embedded(vectors)
        assert texts[0] == f"search_query: {PETS}"
        assert all(text.startswith("search_document: ") for text in texts[1:])
        assert f"search_document: {FACT}" in texts
        assert all(1 <= len(request.json["input"]) <= 32 for request in asked(vectors))
        assert {request.json["model"] for request in asked(vectors)} <= {MODEL, f"{MODEL}:latest"}


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("kind", ["lmstudio", "ollama", "llamacpp"])
def test_a_model_that_the_answering_backend_has_loaded_is_used_and_none_is_loaded_for_it(kind: str, loaded: bool) -> None:
    vectors = FakeModel(MODEL, embedding=True, loaded=loaded)
    options: dict[str, Any] = {"router": True} if kind == "llamacpp" else {}
    both = FAKES[kind]([FakeModel("m", WINDOW), vectors], brain, embedding_of=meaning, **options)
    with both, running_proxy(both, recall_model="auto") as proxy:
        messages = long_chat(PETS)
        ask(proxy, messages)
        assert (FACT in text_of(prompts(both)[-1][-1])) is bool(asked(both)) is loaded
        vectors.loaded = False
        seen = len(asked(both))
        more = [{"role": "assistant", "content": "Mathilda."}, {"role": "user", "content": "And who walks the pets?"}]
        ask(proxy, [*messages, *more])
        assert len(asked(both)) == seen, "it was unloaded since, though the list that is known has it"
        assert not vectors.loaded


def test_a_model_loaded_elsewhere_is_not_asked() -> None:
    chat, vectors = talker(), embedder("lmstudio")
    with staged(chat, vectors, recall_model="auto") as proxy:
        ask(proxy, long_chat(PETS))
    assert asked(vectors) == []


def test_words_alone_do_not_find_it_and_no_model_is_asked() -> None:
    chat, vectors = talker(), embedder()
    for settings in ({"recall_model": None}, {"models": {"m": {"recall": "off"}}}):
        with staged(chat, vectors, **settings) as proxy:
            ask(proxy, long_chat(PETS))
            assert FACT not in str(prompts(chat)[-1])
    assert asked(vectors) == []


def test_a_turn_pays_for_its_new_passages_only() -> None:
    chat, vectors = talker(), embedder()
    with staged(chat, vectors) as proxy:
        messages = long_chat(PETS)
        ask(proxy, messages)
        first = len(embedded(vectors))
        more = [{"role": "assistant", "content": "Mathilda."}, {"role": "user", "content": "And who walks them?"}]
        ask(proxy, [*messages, *more])
        texts = embedded(vectors)
        assert len(set(texts)) == len(texts)
        assert 0 < len(texts) - first <= 4


def test_nothing_is_shared_between_credentials() -> None:
    chat, vectors = talker(), embedder()
    with staged(chat, vectors) as proxy:
        for key in ("one", "other"):
            ask_as(proxy, key)
        texts = embedded(vectors)
        assert len(texts) == 2 * len(set(texts))


def ask_as(proxy: Proxy, key: str) -> None:
    body = {"model": "m", "messages": long_chat(PETS), "max_tokens": 40}
    assert proxy.chat(body, authorization=f"Bearer {key}").status_code == 200


def test_a_clients_key_goes_to_its_own_backend_only() -> None:
    chat, vectors = talker(), embedder()
    with staged(chat, vectors) as proxy:
        ask_as(proxy, "mine")
        assert all("authorization" not in dict(request.headers) for request in asked(vectors))
    both = VllmFake([FakeModel("m", WINDOW), FakeModel(MODEL)], brain, embedding_of=meaning)
    with both, running_proxy(both, recall_model=MODEL) as proxy:
        ask_as(proxy, "mine")
        assert {dict(request.headers)["authorization"] for request in asked(both)} == {"Bearer mine"}


BROKEN = [
    *((503, b"busy"), (404, b"no such model"), (401, b"who are you?"), (429, b"later"), (200, b"no json"), (200, b"[]")),
    (200, b'{"data": []}'),
    (200, b'{"data": [{"index": 0, "embedding": "AAAA"}]}'),
    (200, b'{"data": [{"index": 0, "embedding": [null]}]}'),
]


@pytest.mark.parametrize(("status", "body"), BROKEN)
@pytest.mark.rows(3)
def test_while_it_is_down_words_alone_rank_and_it_is_left_alone_for_a_while(
    status: int, body: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chat, vectors = talker(), embedder()
    with staged(chat, vectors) as proxy:
        vectors.fail_next(status, body, path=PATH)
        messages = long_chat()
        ask(proxy, messages)
        assert FACT in text_of(prompts(chat)[-1][-1])  # this one asks in the fact's own words
        failed = len(asked(vectors))
        more = [{"role": "assistant", "content": "Hm."}, {"role": "user", "content": PETS}]
        ask(proxy, [*messages, *more])
        assert failed == len(asked(vectors)) == 1
        assert "words alone" in caplog.text
        assert FACT not in caplog.text
    monkeypatch.setattr(embedding, "REST", 0.0)
    with staged(chat, vectors) as proxy:
        vectors.fail_next(status, body, path=PATH)
        ask(proxy, messages)
        ask(proxy, [*messages, *more])
        assert FACT in text_of(prompts(chat)[-1][-1])


def test_a_slow_model_is_not_waited_for_and_serves_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "WAIT", 0.5)
    gate = Gate()
    gate.release(1)  # of the first query, and no more
    chat, vectors = talker(), embedder(embedding_gate=gate)
    with staged(chat, vectors) as proxy:
        messages = long_chat(PETS)
        ask(proxy, messages)
        assert FACT not in str(prompts(chat)[-1])
        # While it is at work it is not asked for the same again, and for the new query at once.
        more = [{"role": "assistant", "content": "Hm."}, {"role": "user", "content": f"I said: {PETS}"}]
        ask(proxy, [*messages, *more])
        sizes = [len(request.json["input"]) for request in asked(vectors)]
        assert (sizes, embedded(vectors)[-1]) == ([1, embedding.BATCH, 1], f"search_query: I said: {PETS}")
        gate.open()
        monkeypatch.setattr(embedding, "WAIT", 20.0)
        for number in range(200):
            again = [{"role": "assistant", "content": "Hm."}, {"role": "user", "content": f"{PETS} {number}"}]
            ask(proxy, [*messages, *again])
            if FACT in text_of(prompts(chat)[-1][-1]):
                return
            time.sleep(0.01)
        pytest.fail("the vectors never came")


def test_all_that_is_remembered_stays_within_one_bound() -> None:
    chat, vectors = talker(), embedder()
    with staged(chat, vectors, cache_bytes=2**20) as proxy:
        sizes = dict[str, float]()
        for number in range(8):
            ask_as(proxy, f"key{number}")
            assert FACT in text_of(prompts(chat)[-1][-1])
            shown = text_string_to_metric_families(proxy.client.get("/metrics").text)
            sizes = {each.name: each.samples[0].value for each in shown if each.name.endswith("_bytes")}
            assert 0 < sizes["spillway_live_bytes"] < sizes["spillway_cache_bytes"] <= 2**20
        assert sizes["spillway_cache_bytes"] > 2**19


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("nomic-embed-text:v1.5", "search_query: q", "search_document: p"),
        ("intfloat/multilingual-e5-large", "query: q", "passage: p"),
        ("text-embedding-bge-m3", "q", "p"),
        ("modele5x", "q", "p"),
    ],
)
def test_texts_are_written_as_the_model_was_trained_to_read_them(model: str, query: str, passage: str) -> None:
    assert texts_for(model, "q", ["p"]) == [query, passage]


def test_a_short_message_is_read_with_the_one_before_it() -> None:
    said: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Shall I migrate the billing database?"},
        {"role": "user", "content": "yes, do that"},
        {"role": "user", "content": "Rename the invoice table and its columns " + "now " * 400},
    ]
    assert query_text(said, 1) == "Shall I migrate the billing database?\nyes, do that"
    assert len(query_text(said, 2)) <= 1000
    assert query_text([{"role": "user", "content": " "}], 0) == ""


def test_vectors_have_a_length_of_one_or_are_none() -> None:
    assert list(vector_of([3.0, 4.0])) == pytest.approx([0.6, 0.8])
    for values in ([], [0.0, 0.0], [math.inf, 1.0], [math.nan, 1.0]):
        assert len(vector_of(values)) == 0
    for wrong in (["a"], [None], [[1.0]]):
        with pytest.raises((TypeError, ValueError)):
            vector_of(wrong)  # type: ignore[arg-type]


def test_what_points_the_same_way_is_nearest_and_no_vector_is_farthest() -> None:
    query = vector_of([1.0, 0.0])
    near = compare(query, [vector_of(v) for v in ([2.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [])])
    assert near == pytest.approx([2.0, 1 + math.sqrt(0.5), 0.0, 0.0])
    assert compare(query, [vector_of([1.0, 0.0, 0.0])]) == [0.0]
