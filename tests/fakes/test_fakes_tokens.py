"""The tokenizer, the template, and how answers are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeModel, FakeTokenizer, GenericFake, Reply, ToolCall
from tests.fakes.generation import Delta, Generation, grouped
from tests.fakes.model import Prompt
from tests.fakes.talking import assistant, body, user
from tests.fakes.tokens import IMAGE_TOKENS, Template

TOKENIZER = FakeTokenizer()


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("hello world", ["hell", "o", " worl", "d"]),
        ("w1234567 x", ["w", "1234", "567", " x"]),
        ("a\n\nb", ["a", "\n\n", "b"]),
        ("a   b", ["a", "   ", "b"]),
        ("é漢字!", ["é", "漢", "字", "!"]),
        ("<|end|>x", ["<|end|>", "x"]),
    ],
)
def test_pieces(text: str, pieces: list[str]) -> None:
    assert TOKENIZER.pieces(text) == pieces
    assert TOKENIZER.count(text) == len(pieces)


@given(st.text())
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(TOKENIZER.pieces(text)) == text


def test_density_is_a_parameter() -> None:
    assert FakeTokenizer(2).count("abcdefgh") == 2 * TOKENIZER.count("abcdefgh")
    with GenericFake(letters=2) as dense, GenericFake() as usual:
        assert dense.count(body(user("abcdefgh"))) - usual.count(body(user("abcdefgh"))) == 2


def test_counts_add_up_over_messages_tools_calls_and_images() -> None:
    fake = GenericFake([FakeModel("fake-model", template_overhead=7)])
    empty = fake.count(body(user("")))
    assert empty == 1 + 7 + 1
    assert fake.count(body(user("hello"))) == empty + 2
    assert fake.count(body(user("hello"), assistant("hello"))) == empty + 2 + 7 + 2
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert fake.count(body({"role": "user", "content": parts})) == empty + 2 + IMAGE_TOKENS
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert fake.count(body(user(""), tools=[tool])) > empty + 10
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert fake.count(body(user(""), asked)) == empty + 7 + 1 + TOKENIZER.count('f\n{"a":1}')


def test_a_partial_answer_is_left_open() -> None:
    template = Template(FakeModel("m"), TOKENIZER)
    assert template.render([user("a")], prefix="half")[-1] == "<|assistant|>half"
    assert template.render([user("a")], prefix="half", reasoning="so")[-1].endswith(
        "<|think|>so<|/think|>half"
    )


def generation(reply: Reply, **fields: object) -> Generation:
    prompt = Prompt(FakeModel("m"), "m", {}, [])
    for name, value in fields.items():
        setattr(prompt, name, value)
    return Generation(reply, prompt, TOKENIZER)


def said(made: Generation, kind: str = "content") -> str:
    return "".join(delta.text for delta in made if delta.kind == kind)


@pytest.mark.parametrize(
    ("fields", "text", "finish"),
    [
        ({}, "one two three", "stop"),
        ({"limit": 2}, "one two", "length"),
        ({"room": 3}, "one two thre", "length"),
        ({"limit": 4}, "one two three", "length"),
        ({"limit": 5}, "one two three", "stop"),
        ({"stop": ("two",)}, "one ", "stop"),
        ({"stop": ("o t",)}, "one tw", "stop"),
        ({"stop": ("eee",)}, "one two three", "stop"),
    ],
)
def test_ends_of_an_answer(fields: dict[str, object], text: str, finish: str) -> None:
    made = generation(Reply(text="one two three"), **fields)
    assert (said(made), made.finish) == (text, finish)


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3))
def test_a_stop_string_never_comes_out(text: str, stop: str) -> None:
    made = generation(Reply(text=iter(text), exact=True), stop=(stop,))
    assert said(made) == text.split(stop, maxsplit=1)[0]


def test_a_full_window_may_be_told_apart_from_the_limit() -> None:
    made = generation(Reply(text="one two three"), room=2, limit=3)
    made.full_window = "stop"
    assert (said(made), made.finish) == ("one two", "stop")


def test_exact_items_are_sent_as_they_are() -> None:
    made = generation(Reply(text=["one two", " three"], exact=True))
    assert [delta.text for delta in made] == ["one two", " three"]
    assert made.tokens == 4


def test_calls_come_in_pieces() -> None:
    made = generation(Reply(tool_calls=[ToolCall("look", '{"a":1}'), ToolCall("go", "{}")]))
    deltas = list(made)
    assert [delta.index for delta in deltas if delta.first] == [0, 1]
    assert "".join(delta.text for delta in deltas if delta.index == 0) == '{"a":1}'
    assert (made.finish, sum(delta.last for delta in deltas)) == ("tool_calls", 2)


def test_reasoning_comes_first_and_is_counted() -> None:
    made = generation(Reply(text="so", reasoning="let me see"))
    assert [delta.kind for delta in made] == ["reasoning"] * 3 + ["content"]
    assert (made.reasoning_tokens, made.tokens) == (3, 4)


SIZES = st.integers(1, 5)


@given(st.lists(st.sampled_from(["content", "reasoning"])), SIZES | st.tuples(SIZES, SIZES))
def test_grouping_keeps_text_and_kinds(kinds: list[str], size: int | tuple[int, ...]) -> None:
    single = [Delta(kind, str(number)) for number, kind in enumerate(kinds)]  # type: ignore[arg-type]
    joined = list(grouped([Delta(one.kind, one.text) for one in single], size))
    assert "".join(one.text for one in joined) == "".join(one.text for one in single)
    assert all(one.tokens <= (size if isinstance(size, int) else max(size)) for one in joined)
