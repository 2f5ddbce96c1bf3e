from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.counting.anchors import link
from proxy.counting.features import BASE, CALLS, IMAGES, MESSAGES, REASONING, Vector
from proxy.counting.images import by_area
from proxy.tokens.memory import History, HistoryCache, Reader, TextCache, rough_size


class Words:
    """A vocabulary of words, which notes what it was asked to count."""

    id = "words"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        self.asked.append(text)
        return len(text.split())


def reader(limit: int = 10**6) -> tuple[Reader, Words]:
    words = Words()
    return Reader(words, exact=True, rule=by_area, cache=TextCache(limit)), words


def measure(cache: HistoryCache, read: Reader, messages: list[Any]) -> History:
    draft = cache.draft(read, messages)
    history = draft.finish(read)
    cache.keep(draft, history)
    return history


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_features_of_a_message() -> None:
    read, _ = reader()
    plain = read.message(user("a b c"))
    assert (plain[BASE], plain[MESSAGES]) == (3, 1)
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    call = {"function": {"name": "f", "arguments": "1 2"}}
    rich = {"content": [{"type": "text", "text": "a b"}, image], "tool_calls": [call], "reasoning": "r r r"}
    vector = read.message(rich)
    assert [vector[i] for i in (BASE, MESSAGES, CALLS, REASONING, IMAGES)] == [5, 1, 1, 3, 1]
    assert read.message(user(""))[BASE] == 0


def test_a_text_is_counted_once() -> None:
    read, words = reader()
    for _ in range(3):
        read.message(user("same"))
        read.message(
            {
                "role": "user",
                "content": [{"type": "text", "text": "same"}, {"type": "text", "text": "l" * 9000}],
            }
        )
    assert words.asked == ["same", "l" * 9000]


def test_texts_are_forgotten_beyond_the_limit() -> None:
    read, words = reader(limit=10_000)
    for number in range(50):
        read.message(user(f"text {number}"))
    assert len(read.cache) < 20
    read.message(user("text 49"))
    assert len(words.asked) == 50
    read.message(user("text 0"))
    assert len(words.asked) == 51


def test_a_history_costs_what_is_new_in_it() -> None:
    read, words = reader()
    cache = HistoryCache(10**6)
    messages = [{"role": "system", "content": "s"}, *(user(f"m{n}") for n in range(20))]
    measure(cache, read, messages)
    words.asked.clear()
    read = Reader(words, exact=True, rule=by_area, cache=TextCache(10**6))  # only the history is known
    longer = [*(dict(message) for message in messages), user("new")]
    draft = cache.draft(read, longer)
    assert (draft.common, draft.new) == (20, rough_size(user("new")))
    measure(cache, read, longer)
    assert words.asked == ["new"]


def test_another_system_message_leaves_the_rest_known() -> None:
    read, words = reader()
    cache = HistoryCache(10**6)
    rest = [user(f"m{n}") for n in range(20)]
    first = measure(cache, read, [{"role": "system", "content": "at 10:00"}, *rest])
    words.asked.clear()
    second = measure(cache, read, [{"role": "system", "content": "at 10:01"}, *rest])
    assert words.asked == ["at 10:01"]
    assert first.rest.digests == second.rest.digests
    assert first.system_digest != second.system_digest


def test_what_the_caller_changes_later_does_not_count() -> None:
    read, _ = reader()
    cache = HistoryCache(10**6)
    messages = [user("one two"), user("three")]
    measure(cache, read, messages)
    messages[0]["content"] = "changed to something else"
    again = measure(cache, read, messages)
    assert again.rest.vectors[0][BASE] == 4


def test_histories_are_forgotten_beyond_the_limit() -> None:
    read, _ = reader()
    cache = HistoryCache(20_000)
    for number in range(40):
        measure(cache, read, [user(f"head {number}"), user("x" * 500)])
    assert cache.draft(read, [user("head 39")]).common == 1
    assert cache.draft(read, [user("head 0")]).common == 0


def test_branches_of_one_conversation_are_kept_apart() -> None:
    read, words = reader()
    cache = HistoryCache(10**6)
    for branch in range(3):
        measure(cache, read, [user("head"), user(f"branch {branch}"), user("tail")])
    words.asked.clear()
    for branch in range(3):
        assert cache.draft(read, [user("head"), user(f"branch {branch}"), user("tail")]).common == 3
    assert cache.draft(read, [user("head"), user("branch 9")]).common == 1


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.sampled_from("abcde")}
)


@given(st.lists(st.lists(MESSAGE, max_size=6), max_size=6))
def test_memory_changes_nothing(conversations: list[list[dict[str, Any]]]) -> None:
    read, _ = reader()
    cache = HistoryCache(5000)
    for messages in conversations:
        known, fresh = measure(cache, read, messages), measure(HistoryCache(0), read, messages)
        assert known.system.vectors + known.rest.vectors == fresh.system.vectors + fresh.rest.vectors
        assert (known.rest.digests, known.system_digest) == (fresh.rest.digests, fresh.system_digest)
        vectors: list[Vector] = [read.message(message) for message in messages]
        assert known.system.vectors + known.rest.vectors == vectors


def test_digests_chain() -> None:
    read, _ = reader()
    history = measure(HistoryCache(10**6), read, [user("a"), user("b")])
    assert history.rest.digests == [link(b"", user("a")), link(link(b"", user("a")), user("b"))]


def test_rough_size() -> None:
    assert rough_size(user("x" * 100)) >= 100
    assert rough_size([[[[[["deep"]]]]]]) > 4000
    assert rough_size(5) < 20
