from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.counting.anchors import link
from proxy.counting.features import BASE, CALLS, IMAGES, MESSAGES, REASONING, Vector
from proxy.counting.images import by_area
from proxy.tokens.cache import SHORT, History, HistoryCache, TextCache, Vectorizer, is_long, short_history


class Words:
    """A vocabulary of words, which notes what it was asked to count."""

    id = "words"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        self.asked.append(text)
        return len(text.split())


def make(limit: int = 10**6) -> tuple[Vectorizer, Words]:
    words = Words()
    return Vectorizer(words, exact=True, rule=by_area, cache=TextCache(limit)), words


def measure(cache: HistoryCache, vectorizer: Vectorizer, messages: list[Any]) -> History:
    draft = cache.draft(vectorizer, messages)
    history = draft.finish(vectorizer)
    cache.keep(draft)
    return history


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def turns(count: int) -> list[dict[str, Any]]:
    return [user(f"m{number}") for number in range(count)]


def test_features_of_a_message() -> None:
    vectorizer, _ = make()
    plain = vectorizer.message(user("a b c"))
    assert (plain[BASE], plain[MESSAGES]) == (3, 1)
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    call = {"function": {"name": "f", "arguments": "1 2"}}
    rich = {"content": [{"type": "text", "text": "a b"}, image], "tool_calls": [call], "reasoning": "r r r"}
    vector = vectorizer.message(rich)
    assert [vector[i] for i in (BASE, MESSAGES, CALLS, REASONING, IMAGES)] == [5, 1, 1, 3, 1]
    assert vectorizer.message(user(""))[BASE] == 0


def test_a_text_is_counted_once() -> None:
    vectorizer, words = make()
    for _ in range(3):
        vectorizer.message(user("same"))
        vectorizer.message(
            {
                "role": "user",
                "content": [{"type": "text", "text": "same"}, {"type": "text", "text": "l" * 9000}],
            }
        )
    assert words.asked == ["same", "l" * 9000]


def test_texts_are_forgotten_beyond_the_limit() -> None:
    vectorizer, words = make(limit=10_000)
    for number in range(50):
        vectorizer.message(user(f"text {number}"))
    assert len(vectorizer.cache) < 20
    vectorizer.message(user("text 49"))
    assert len(words.asked) == 50
    vectorizer.message(user("text 0"))
    assert len(words.asked) == 51


def test_a_history_costs_what_is_new_in_it() -> None:
    vectorizer, words = make()
    cache = HistoryCache(10**6)
    messages = [{"role": "system", "content": "s"}, *turns(20)]
    measure(cache, vectorizer, messages)
    words.asked.clear()
    vectorizer = Vectorizer(
        words, exact=True, rule=by_area, cache=TextCache(10**6)
    )  # only the history is known
    longer = [*(dict(message) for message in messages), user("new")]
    draft = cache.draft(vectorizer, longer)
    assert (draft.rest.common, draft.new) == (20, [user("new")])
    measure(cache, vectorizer, longer)
    assert words.asked == ["new"]


def test_another_system_message_leaves_the_rest_known() -> None:
    vectorizer, words = make()
    cache = HistoryCache(10**6)
    rest = turns(20)
    first = measure(cache, vectorizer, [{"role": "system", "content": "at 10:00"}, *rest])
    words.asked.clear()
    second = measure(cache, vectorizer, [{"role": "system", "content": "at 10:01"}, *rest])
    assert words.asked == ["at 10:01"]
    assert first.rest.digests == second.rest.digests
    assert first.system_digest != second.system_digest


def test_a_conversation_of_few_words_is_read_and_a_long_or_a_large_one_is_searched_for() -> None:
    assert not is_long([user("a"), user("b")])
    assert is_long([user("large " * SHORT), user("end")])
    assert is_long(turns(20))


@pytest.mark.parametrize(("then", "now"), [(1, True), (1, 1.0)])
def test_what_python_takes_for_the_same_is_not(then: Any, now: Any) -> None:
    """A digest is told of the text that a message has, and 1 is written otherwise than true."""
    vectorizer, _ = make()
    cache = HistoryCache(10**6)
    histories = [[*turns(20), {**user("a"), "flag": flag}] for flag in (then, now)]
    first, second = (measure(cache, vectorizer, messages) for messages in histories)
    assert first.rest.digests[-1] != second.rest.digests[-1]


def test_histories_are_forgotten_beyond_the_limit() -> None:
    vectorizer, _ = make()
    cache = HistoryCache(200_000)
    for number in range(40):
        measure(cache, vectorizer, [user(f"head {number}"), *turns(20)])
    assert cache.draft(vectorizer, [user("head 39"), *turns(20)]).rest.common == 21
    assert cache.draft(vectorizer, [user("head 0"), *turns(20)]).rest.common == 0


def test_branches_of_one_conversation_are_kept_apart() -> None:
    vectorizer, words = make()
    cache = HistoryCache(10**6)
    for branch in range(3):
        measure(cache, vectorizer, [*turns(20), user(f"branch {branch}"), user("tail")])
    words.asked.clear()
    for branch in range(3):
        known = cache.draft(vectorizer, [*turns(20), user(f"branch {branch}"), user("tail")])
        assert known.rest.common == 22
    assert cache.draft(vectorizer, [*turns(20), user("branch 9")]).rest.common == 20


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.sampled_from("abcde")}
)


@given(st.lists(st.lists(MESSAGE, max_size=20), max_size=6))
def test_memory_changes_nothing(conversations: list[list[dict[str, Any]]]) -> None:
    vectorizer, _ = make()
    cache = HistoryCache(50_000)
    for messages in conversations:
        known, fresh = measure(cache, vectorizer, messages), measure(HistoryCache(0), vectorizer, messages)
        told = [*known.system.vectors, *known.rest.vectors]
        assert told == [*fresh.system.vectors, *fresh.rest.vectors]
        assert (known.rest.digests, known.system_digest) == (fresh.rest.digests, fresh.system_digest)
        vectors: list[Vector] = [vectorizer.message(message) for message in messages]
        assert told == vectors
        short = short_history(vectorizer, messages)
        assert (*short.digests, short.system_digest) == (*fresh.digests, fresh.system_digest)
        assert short.system_total == fresh.system_total
        for covered in range(len(fresh.digests) + 1):
            assert short.behind(covered) == [*fresh.behind(covered)]


def test_of_a_short_history_only_what_is_asked_for_is_read() -> None:
    vectorizer, words = make()
    short = short_history(vectorizer, [user("a"), user("b"), user("c")])
    assert words.asked == []
    assert len(short.behind(2)) == 1
    assert words.asked == ["c"]


def test_digests_chain() -> None:
    vectorizer, _ = make()
    history = measure(HistoryCache(10**6), vectorizer, [user("a"), user("b")])
    assert history.rest.digests == [link(b"", user("a")), link(link(b"", user("a")), user("b"))]
