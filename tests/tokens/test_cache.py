from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.counting.anchors import link
from proxy.counting.features import BASE, CALLS, IMAGES, MESSAGES, REASONING, Vector
from proxy.counting.images import by_area
from proxy.tokens.cache import History, HistoryCache, TextCache, Vectorizer, rough_size


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
    cache.keep(draft, history)
    return history


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


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
    messages = [{"role": "system", "content": "s"}, *(user(f"m{n}") for n in range(20))]
    measure(cache, vectorizer, messages)
    words.asked.clear()
    vectorizer = Vectorizer(
        words, exact=True, rule=by_area, cache=TextCache(10**6)
    )  # only the history is known
    longer = [*(dict(message) for message in messages), user("new")]
    draft = cache.draft(vectorizer, longer)
    assert (draft.common, draft.new) == (20, [user("new")])
    measure(cache, vectorizer, longer)
    assert words.asked == ["new"]


def test_another_system_message_leaves_the_rest_known() -> None:
    vectorizer, words = make()
    cache = HistoryCache(10**6)
    rest = [user(f"m{n}") for n in range(20)]
    first = measure(cache, vectorizer, [{"role": "system", "content": "at 10:00"}, *rest])
    words.asked.clear()
    second = measure(cache, vectorizer, [{"role": "system", "content": "at 10:01"}, *rest])
    assert words.asked == ["at 10:01"]
    assert first.rest.digests == second.rest.digests
    assert first.system_digest != second.system_digest


def test_what_the_caller_changes_later_does_not_count() -> None:
    vectorizer, _ = make()
    cache = HistoryCache(10**6)
    messages = [user("one two"), user("three")]
    measure(cache, vectorizer, messages)
    messages[0]["content"] = "changed to something else"
    again = measure(cache, vectorizer, messages)
    assert again.rest.vectors[0][BASE] == 4


def test_histories_are_forgotten_beyond_the_limit() -> None:
    vectorizer, _ = make()
    cache = HistoryCache(20_000)
    for number in range(40):
        measure(cache, vectorizer, [user(f"head {number}"), user("x" * 500)])
    assert cache.draft(vectorizer, [user("head 39")]).common == 1
    assert cache.draft(vectorizer, [user("head 0")]).common == 0


def test_branches_of_one_conversation_are_kept_apart() -> None:
    vectorizer, words = make()
    cache = HistoryCache(10**6)
    for branch in range(3):
        measure(cache, vectorizer, [user("head"), user(f"branch {branch}"), user("tail")])
    words.asked.clear()
    for branch in range(3):
        assert cache.draft(vectorizer, [user("head"), user(f"branch {branch}"), user("tail")]).common == 3
    assert cache.draft(vectorizer, [user("head"), user("branch 9")]).common == 1


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.sampled_from("abcde")}
)


@given(st.lists(st.lists(MESSAGE, max_size=6), max_size=6))
def test_memory_changes_nothing(conversations: list[list[dict[str, Any]]]) -> None:
    vectorizer, _ = make()
    cache = HistoryCache(5000)
    for messages in conversations:
        known, fresh = measure(cache, vectorizer, messages), measure(HistoryCache(0), vectorizer, messages)
        assert known.system.vectors + known.rest.vectors == fresh.system.vectors + fresh.rest.vectors
        assert (known.rest.digests, known.system_digest) == (fresh.rest.digests, fresh.system_digest)
        vectors: list[Vector] = [vectorizer.message(message) for message in messages]
        assert known.system.vectors + known.rest.vectors == vectors


def test_digests_chain() -> None:
    vectorizer, _ = make()
    history = measure(HistoryCache(10**6), vectorizer, [user("a"), user("b")])
    assert history.rest.digests == [link(b"", user("a")), link(link(b"", user("a")), user("b"))]


def test_rough_size() -> None:
    assert rough_size(user("x" * 100)) >= 100
    assert rough_size([[[[[["deep"]]]]]]) > 4000
    assert rough_size(5) < 20
