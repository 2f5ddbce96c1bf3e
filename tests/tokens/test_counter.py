from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from proxy.core.history.checkpoint import digest_of, links
from proxy.tokens.counter import Content, Counter, by_area, read_message
from proxy.tokens.meter import Meter
from proxy.tokens.ratios import CALLS, IMAGES, MESSAGES, REASONING, TOOLS
from proxy.tokens.vocabulary import Library

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.sampled_from(
    [
        *("role", "content", "name", "tool_calls", "reasoning_content", "reasoning", "refusal"),
        *("reasoning_details", "type", "text", "image_url", "function", "arguments", "file", "input_audio"),
    ]
)  # fmt: skip


def texts(message: Any) -> list[str]:
    return read_message(message).texts


def test_plain_messages() -> None:
    assert texts({"role": "user", "content": "hi"}) == ["hi"]
    assert texts({"role": "user", "content": "hi", "name": "anna", "id": "x"}) == ["hi", "anna"]
    assert texts({"role": "assistant", "content": None}) == []


def test_parts_of_all_kinds() -> None:
    found = read_message(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "input_text", "text": "here"},
                {"type": "refusal", "refusal": "no"},
                "bare",
                {"text": "untyped"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "image", "source": {"data": "!!"}},
                {"type": "input_audio", "input_audio": {"data": "A" * 40_000, "format": "wav"}},
                {"type": "thinking", "thinking": "hm"},
            ],
        }
    )
    assert found == Content(["look", "here", "no", "bare", "untyped"], ["hm"], images=[None, None], attachments=[32])


def test_an_image_is_never_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    found = read_message({"role": "user", "content": [part]})
    assert found == Content(images=[None])


def test_a_blob_in_an_unknown_part_is_an_attachment() -> None:
    found = read_message({"role": "user", "content": [{"type": "x", "y": {"z": "A" * 300_000, "w": "words"}}]})
    assert found.attachments == [232]
    assert sum(map(len, found.texts)) < 60
    assert "words" in found.texts[0]


def test_calls_count_with_name_and_arguments() -> None:
    found = read_message(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"b": 2}}},
                {"id": "3", "type": "custom", "custom": {"name": "h", "input": "text"}},
            ],
        }
    )
    assert found.calls == 3
    assert found.texts == ["", "f", '{"a": 1}', "g", '{"b":2}', "h", "text"]


def test_reasoning_is_kept_apart() -> None:
    message = {"content": "a", "reasoning_content": "b", "reasoning_details": [{"text": "c"}, {"data": "d"}, 1]}
    found = read_message(message)
    assert (found.texts, found.reasoning) == (["a"], ["b", "c"])


@given(st.dictionaries(KEYS, JSON, max_size=6))
def test_no_json_makes_it_raise(message: Any) -> None:
    read_message(message)


KEY = ("local", "some-model")


class Words:
    """A vocabulary of words, which notes what it was asked to count."""

    id = "words"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def count(self, text: str) -> int:
        self.texts.append(text)
        return len(text.split())


class Loaded(Library):
    """A library that has one vocabulary under every name."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Words()

    @override
    def get(self, name: str) -> Words:
        return self.words

    @override
    async def load(self, name: str, load: Any) -> Words:
        return self.words


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_counts_of_a_message() -> None:
    counter = Counter("words", Words(), by_area)
    plain = counter.message(user("a b c"))
    assert (plain[0], plain[MESSAGES]) == (3, 1)
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    call = {"function": {"name": "f", "arguments": "1 2"}}
    rich = {"content": [{"type": "text", "text": "a b"}, image], "tool_calls": [call], "reasoning": "r r r"}
    x = counter.message(rich)
    assert [x[i] for i in (0, MESSAGES, CALLS, REASONING, IMAGES)] == [pytest.approx(4.2), 1, 1, 3, 1000]


@pytest.mark.anyio
async def test_a_message_is_counted_once_however_it_is_sent_again() -> None:
    library = Loaded()
    meter, messages = Meter(library=library), [{"role": "system", "content": "s"}, user("a b"), user("c d")]
    await meter.measure(KEY, {"messages": messages})
    await meter.measure(KEY, {"messages": [dict(message) for message in messages]})
    meter.costs(KEY, messages[::-1])
    await meter.measure(KEY, {"messages": [{"role": "system", "content": "another"}, *messages[1:]]})
    assert library.words.texts == ["s", "a b", "c d", "another"]


@pytest.mark.parametrize(
    ("format_", "tokens"),
    [
        (None, 0), ("json", 0), ({"type": "json_object"}, 0), ({"schema": {"a": 1}}, 2),
        ({"json_schema": {"name": "n", "schema": {"type": "object"}}}, 2), ({"json_schema": {"name": "n"}}, 2),
    ],
)  # fmt: skip
def test_tools_and_the_schema_of_structured_output_count_as_templates_render_them(format_: Any, tokens: int) -> None:
    counter = Counter("words", Words(), by_area)
    assert counter.extras({"response_format": format_, "tools": [{"a": "b"}]})[TOOLS] == 2 + tokens


DIFFERENT: list[Any] = [
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "a", "name": "x"},
    {"role": "user", "content": None}, {"role": "user", "content": "\ud800"}, {"content": "a", "x": "user"},
    {"role": "user", "content": ["a"]}, {"role": None, "content": "a"}, "user", None,
]  # fmt: skip


def test_any_difference_makes_another_digest() -> None:
    digests = [*map(digest_of, DIFFERENT)]
    assert len(set(digests)) == len(DIFFERENT)
    assert links(digests[:2])[0] == links(digests[:1])[0] != links(digests[1:2])[0]
