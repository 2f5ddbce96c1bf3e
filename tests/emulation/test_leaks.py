"""Calls that models with tools of their own leave in the text: read back where nothing else is meant, and only there."""

import html
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.piece import CallPart, Piece
from proxy.emulation.offer import Offer
from proxy.emulation.reader import WrittenCallReader
from tests.emulation.outputs import ARGS, FENCED, LISBON, TAGGED, P, offer
from tests.emulation.test_scanner import pieces_of_text

OFFER = offer()
PARIS = ("get_weather", ARGS)
NOW = ("now", "{}")
PROSE = "The first wheel stands still, and so does the second; only the third one turns, when there is rain. "

LEAKED: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    # what models and backends were seen to leave in the text, and what remains of it
    "qwen": (TAGGED, "", [PARIS]),
    "qwen behind a sentence": (f"I'll check the weather.\n{TAGGED}", "I'll check the weather.\n", [PARIS]),
    "qwen on the same line": (f"Let me check. {TAGGED}\n", "Let me check. ", [PARIS]),
    "qwen behind a colon": (f"Let me check the weather:\n\n{TAGGED}", "Let me check the weather:\n\n", [PARIS]),
    "qwen twice": (f"{TAGGED}\n<tool_call>{LISBON}</tool_call>", "", [PARIS, ("get_weather", '{"city": "Lisbon"}')]),
    "qwen with marks of the end": (f"{TAGGED}<|im_end|>\n<|endoftext|>", "", [PARIS]),
    "qwen without its end": (f"<tool_call>\n{P}", "", [PARIS]),
    "qwen behind a thought": (f"<think>\nThe weather, {{so}} <b>…\n</think>\n\n{TAGGED}", "<think>\nThe weather, {so} <b>…\n</think>\n\n", [PARIS]),
    "qwen coder": ("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", "", [PARIS]),
    "qwen coder without the outer mark": ("I look it up.\n\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", "I look it up.\n\n", [PARIS]),
    "qwen 2.5 coder": (P, "", [PARIS]),
    "llama 3.2 in a code block": (FENCED.replace("arguments", "parameters"), "", [PARIS]),
    "llama 3.2 announced": (f"I'll look it up.\n\n{FENCED}\n", "I'll look it up.\n\n", [PARIS]),
    "llama 3.1": (f"<|python_tag|>{P}<|eom_id|>", "", [PARIS]),
    "llama 3.1, of its own": ('<|python_tag|>get_weather.call(city="Paris")<|eom_id|>', "", [PARIS]),
    "llama 4": ('[get_weather(city="Paris"), now()]<|eot|>', "", [PARIS, NOW]),
    "llama 4 with marks": ('<|python_start|>[get_weather(city="Paris")]<|python_end|><|eom|>', "", [PARIS]),
    "kimi k2": (f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{ARGS}<|tool_call_end|><|tool_calls_section_end|><|im_end|>", "", [PARIS]),
    "deepseek": (f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>", "", [PARIS]),
    "gpt-oss": (f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGS}<|call|>", "", [PARIS]),
    "command r7b": (f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {ARGS}}}\n]<|END_ACTION|>', "", [PARIS]),
    "nemotron": (f"<TOOLCALL>[{P}]</TOOLCALL>", "", [PARIS]),
    "seed-oss": ("<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>", "", [PARIS]),
    "mistral": (f"[TOOL_CALLS][{P}]</s>", "", [PARIS]),
    "mistral later": (f"I'll check.[TOOL_CALLS]get_weather[ARGS]{ARGS}", "I'll check.", [PARIS]),
    "behind a long text": (f"{PROSE * 9}\n\n{TAGGED}", f"{PROSE * 9}\n\n", [PARIS]),
    "behind code": (f"```python\nprint([x for x in {{1}}])\n```\n{TAGGED}", "```python\nprint([x for x in {1}])\n```\n", [PARIS]),
    "announced in Chinese": (f"让我查一下天气。\n{P}", "让我查一下天气。\n", [PARIS]),
    "announced in German": (f"Ich werde nachsehen.\n{P}", "Ich werde nachsehen.\n", [PARIS]),
}  # fmt: skip

SHOWN = {
    # what merely shows a call, or is none
    "prose follows": f"{TAGGED}\n\nThat is how a call looks.",
    "prose follows on the same line": f"{TAGGED} is what I would send.",
    "prose follows a code block": f"{FENCED}\n\nSend this to call the tool.",
    "prose follows JSON": f"{P}\n\nThis is valid JSON.",
    "in a sentence": f"Models write {TAGGED}",
    "quoted": f'They write "{TAGGED}"',
    "in code": f"They write `{P}`",
    "in a code block of another language": f"```python\n{P}\n```",
    "tags in a code block": f"It is done like this.\n\n```text\n{TAGGED}\n```",
    "an example": f"Here is an example of a call:\n\n{TAGGED}",
    "an example in a code block": f"For example:\n\n{FENCED}",
    "for those who ask how": f"To call the tool, send:\n\n{FENCED}",
    "let me show": f"Let me show you how to call it.\n\n{FENCED}",
    "you can": f"You can call it with\n{P}",
    "what one would do": f"In that case I would call\n{TAGGED}",
    "what is never to be done": f"I'll never send this:\n{TAGGED}",
    "a format": f"The format is this.\n{TAGGED}",
    "in German": f"Ein Beispiel.\n{TAGGED}",
    "JSON behind a text": f"{PROSE}\n\n{P}",
    "JSON behind a long announcement": f"{PROSE * 3} Now I will call it.\n{P}",
    "JSON behind two paragraphs": f"It rains.\n\nI'll look.\n\n{P}",
    "a list behind a text": f"{PROSE}\n[now()]",
    "a definition": '{"name": "get_weather", "description": "The weather.", "parameters": {"type": "object"}}',
    "a record": '{"name": "now", "zone": "UTC"}',
    "of another tool": '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>',
    "arguments that don't fit": TAGGED.replace("city", "town"),
    "one of two that doesn't fit": f"{TAGGED}\n{TAGGED.replace('city', 'town')}",
    "in a thought": f"<think>\n{TAGGED}\n</think>",
    "in a thought that has no end": f"<think>\n{TAGGED}",
    "cut off": TAGGED[:60],
    "the mark alone": "<tool_call>",
    "marks explained": "Qwen uses `<tool_call>`, Mistral [TOOL_CALLS], and Llama <|python_tag|>.",
    "a link": "[now()](https://example.org)",
    "white space": " \n\n ",
    "a text with all marks": "a < b, [c] and {d}: `e`, ``f`` <g> [TOOL <tool <|py\n```\n{\n```\n{}\n[]\n",
}  # fmt: skip


def pieces_of(text: str, size: int) -> list[Piece]:
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    return [Piece(text=each, form={}, choice=True) for each in cut]


def through(reader: WrittenCallReader, pieces: list[Piece], finish: str | None, *, seeing_all: bool) -> Iterator[Piece]:
    """What comes out; pieces that need not be read pass by the reader, as frames do, unless it sees all."""
    for piece in pieces:
        if not seeing_all and reader.skip(piece.text):
            yield piece
        else:
            yield from reader.feed(piece)
    yield from reader.feed(Piece(finish=finish, form={}, choice=True) if finish else Piece(done=True))


def outcome(pieces: list[Piece]) -> tuple[str, list[tuple[str, str]], list[str]]:
    calls = [call for piece in pieces for call in piece.calls]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    text = "".join(piece.text for piece in pieces)
    return text, [(call.name, call.arguments) for call in calls], [p.finish for p in pieces if p.finish]


def reader_of(of: Offer = OFFER, said: str = "", *, emulated: bool = False) -> WrittenCallReader:
    ids = iter(range(99))
    return WrittenCallReader(of, lambda: f"id{next(ids)}", emulated=emulated, text_before=said)


@pytest.mark.parametrize("name", LEAKED)
@pytest.mark.parametrize("seeing_all", [True, False])
def test_a_call_that_leaked_is_read_back_however_it_comes(name: str, *, seeing_all: bool) -> None:
    text, left, calls = LEAKED[name]
    for size in (1, 2, 3, 7, 40, len(text)):
        reader = reader_of()
        out = list(through(reader, pieces_of(text, size), "stop", seeing_all=seeing_all))
        assert outcome(out) == (left, calls, ["tool_calls"]), size
        assert (reader.leaked, reader.faults) == (len(calls), [])


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("seeing_all", [True, False])
def test_what_is_shown_stays_text_piece_by_piece(name: str, *, seeing_all: bool) -> None:
    text = SHOWN[name]
    for size in (1, 2, 3, 7, 40, len(text)):
        given_in = pieces_of(text, size)
        out = list(through(reader_of(), given_in, "stop", seeing_all=seeing_all))
        assert [id(piece) for piece in out[:-1]] == [id(piece) for piece in given_in], size
        assert out[-1].finish == "stop"


PAGES: dict[str, Callable[[str], str]] = {
    # how the text of a call reaches a model before it writes that text again
    "as it is": lambda text: f"Welcome.\n{text}\nGoodbye.",
    "in JSON": lambda text: json.dumps([{"content": f"Welcome.\n{text}"}]),
    "in JSON by Go": lambda text: json.dumps(text).replace("<", "\\u003c").replace(">", "\\u003e"),
    "in HTML": lambda text: f"<p>{html.escape(text)}</p>",
    "in other white space": lambda text: text.replace(": ", ":\n\t"),
    "in another form": lambda _: (
        '[{"parameters":{"city":"Paris"},"name":"get_weather"}], now(), `get_weather(city=\'Lisbon\')`'
    ),
}


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", LEAKED)
def test_a_call_that_a_page_holds_is_quoted(name: str, page: str, *, emulated: bool) -> None:
    text, shown = LEAKED[name][0], PAGES[page](LEAKED[name][0])
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": shown}]}
    asked = {"role": "user", "content": "What does the page say?"}
    as_text = {"role": "user", "content": f"<tool_result tool_name='get_weather'>{shown}</tool_result>"}
    for messages in ([asked, result, asked], [asked, {"role": "user", "content": shown}], [as_text, asked]):
        reader = reader_of(offer(messages=messages), emulated=emulated)
        out = list(through(reader, pieces_of(text, 7), "stop", seeing_all=True))
        assert outcome(out) == (text, [], ["stop"])


@pytest.mark.parametrize("around", ["It says:\n```\n{}\n```\nI do not.", "> {}\nI do not.", 'It says "{}", so.', "`{}`", "{}"])
@pytest.mark.parametrize("broken", [False, True])
def test_what_is_quoted_is_never_corrected_into_a_call(around: str, *, broken: bool) -> None:
    call = TAGGED.replace('"city"', "city'") if broken else TAGGED.replace("city", "town")
    messages = [{"role": "tool", "content": f"Welcome.\n{call}"}, {"role": "user", "content": "What does it say?"}]
    reader, text = reader_of(offer(messages=messages), emulated=True), around.format(call)
    assert outcome(list(through(reader, pieces_of(text, 7), "stop", seeing_all=True))) == (text, [], ["stop"])
    assert reader.correction() is None


@pytest.mark.parametrize(
    "said",
    [
        "What is the weather in Paris? Use get_weather with city: Paris",
        "Call get_weather for me. The arguments: city = Paris.",
        "The tool: get_weather, city: Paris",
        'The city is {"city": "Paris"}.',
        TAGGED.replace("Paris", "Paris, Texas"),
        TAGGED.replace("Paris", "Par"),
        TAGGED.replace("get_weather", "get_forecast"),
        '{"name": "get_weather", "description": "The weather."}' + " " * 9 + "x" * 600 + '{"city": "Paris"}',
    ],
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_call_that_was_merely_spoken_of_is_made(said: str, role: str) -> None:
    earlier = [{"role": "user", "content": TAGGED}, {"role": "assistant", "content": TAGGED}]
    messages = [*earlier, {"role": "user", "content": "Go on."}, {"role": role, "content": said}]
    out = list(through(reader_of(offer(messages=messages)), pieces_of(TAGGED, 7), "stop", seeing_all=True))
    assert outcome(out) == ("", [PARIS], ["tool_calls"])


@pytest.mark.parametrize("name", LEAKED)
@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_answer_that_was_cut_off_makes_no_call(name: str, finish: str) -> None:
    text = LEAKED[name][0]
    out = list(through(reader_of(), pieces_of(text, 5), finish, seeing_all=True))
    assert outcome(out) == (text, [], [finish])


def test_an_end_mark_alone_is_an_end_in_good_order_and_a_body_that_stops_is_none() -> None:
    out = list(through(reader_of(), pieces_of(TAGGED, 5), None, seeing_all=True))
    assert outcome(out)[1] == [PARIS]
    reader = reader_of()
    out = [each for piece in pieces_of(TAGGED, 5) for each in reader.feed(piece)] + list(reader.close())
    assert outcome(out) == (TAGGED, [], [])


def test_an_answer_that_has_made_a_call_of_the_usual_kind_is_left_alone() -> None:
    reader = reader_of()
    made = Piece(calls=(CallPart("now", "{}", "c1", 0),), form={}, choice=True)
    out = [*reader.feed(pieces_of("<tool_call>", 99)[0]), *reader.feed(made), *reader.feed(pieces_of(TAGGED, 999)[0])]
    out += reader.feed(Piece(finish="tool_calls", form={}, choice=True))
    assert "".join(piece.text for piece in out) == f"<tool_call>{TAGGED}"
    assert [call.id for piece in out for call in piece.calls] == ["c1"]


@pytest.mark.parametrize(
    ("fields", "calls", "finish"),
    [
        ({"tool_choice": "none"}, [], "stop"),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, [], "stop"),
        ({"parallel_tool_calls": False}, [PARIS], "tool_calls"),
    ],
)
def test_the_choice_of_tools_holds(fields: dict[str, Any], calls: list[tuple[str, str]], finish: str) -> None:
    text = f"{TAGGED}\n<tool_call>{LISBON}</tool_call>"
    out = list(through(reader_of(offer(**fields)), pieces_of(text, 6), "stop", seeing_all=True))
    assert outcome(out) == (text if not calls else "", calls, [finish])


def test_json_is_held_no_longer_than_its_first_key() -> None:
    reader = reader_of()
    sent = [[piece.text for piece in reader.feed(each)] for each in pieces_of('{"name', 1)]
    assert sent == [[]] * 6
    assert [p.text for p in reader.feed(pieces_of('s": [1, 2]}', 99)[0])] == [*'{"name', 's": [1, 2]}']


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (SHOWN["prose follows"], []),
        (SHOWN["an example in a code block"], []),
        (SHOWN["of another tool"], [("unknown_tool", "fly", "tool_call")]),
        (SHOWN["arguments that don't fit"], [("wrong_arguments", "get_weather", "tool_call")]),
        ("<tool_call>{'name': 'now', 'arguments': {x}}</tool_call>", [("not_json", "now", "tool_call")]),
        ('<tool_call>{"name": "now", "arguments": {"x": "secr', [("cut", "now", "tool_call")]),
        ('<tool_call>{"name": "now", "arguments": {"x": "secr</tool_call>', [("not_json", "now", "tool_call")]),
        ('<tool_call>{"name": "now", "arguments": {"x": 1, </tool_call>', [("not_json", "now", "tool_call")]),
        ('<tool_call>{"name": "now", "arguments": {"x": "<p>secr</p> and', [("cut", "now", "tool_call")]),
        ('```json\n{"name": "fly", "arguments": {"to": "secret"}}\n```', [("unknown_tool", "fly", "fenced")]),
        ('```json\n{"id": "1", "name": "fly", "input": {}}\n```', [("unknown_tool", "fly", "fenced")]),
        ('```json\n{"name": "fly", "version": "1.0", "arguments": {}}\n```', []),
        ("<function=rm -rf /secret>\n<parameter=a>", []),
        ('<tool_call>{"name": "my secret, told"}', []),
        (f"[TOOL_CALLS]{'x' * 99}[ARGS]{{}}", []),
        (PROSE, []),
    ],
)
def test_what_is_wrong_is_told_without_what_was_said(text: str, faults: list[tuple[str, str, str]]) -> None:
    for size in (1, 5, len(text)):
        reader = reader_of()
        list(through(reader, pieces_of(text, size), "stop", seeing_all=False))
        assert [(each.reason, each.tool, each.form) for each in reader.faults] == faults


@given(pieces_of_text, st.data())
def test_no_chunking_changes_what_is_called_nor_loses_a_character(text: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    ways = [
        outcome(list(through(reader_of(), pieces_of(text, each), "stop", seeing_all=seeing_all)))
        for each in (size, max(1, len(text)))
        for seeing_all in (True, False)
    ]
    assert all(way == ways[0] for way in ways)
    left, calls, _ = ways[0]
    assert text.startswith(left) if calls else text == left


@given(pieces_of_text, st.integers(0, 60))
@example(P + TAGGED, 1)
@example(TAGGED + "\n" + TAGGED, 1)
def test_an_answer_that_goes_on_is_read_on(text: str, at: int) -> None:
    """What earlier attempts have said can't be taken back: only a call that begins behind it is made."""
    whole = outcome(list(through(reader_of(), pieces_of(text, 99), "stop", seeing_all=True)))
    said, rest = text[:at], text[at:]
    on = outcome(list(through(reader_of(said=said), pieces_of(rest, 7), "stop", seeing_all=True)))
    if whole[1] and len(whole[0]) >= at:
        assert (said + on[0], on[1]) == whole[:2]
    else:
        kept = said + on[0]
        assert text.startswith(kept)
        behind = outcome(list(through(reader_of(), pieces_of(text[len(kept) :], 99), "stop", seeing_all=True)))
        assert on[1] == behind[1]
