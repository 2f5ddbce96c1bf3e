from collections.abc import Iterable
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.jsontext import loads
from proxy.core.piece import Piece
from proxy.dialects.chat.answers import DONE, ChatWriter, read_frame
from proxy.emulation.forms import Call
from proxy.emulation.offer import Offer
from proxy.emulation.reader import WrittenCallReader
from tests.emulation.broken import MALFORMED, REPAIRED
from tests.emulation.outputs import ARGS, CLEAN, FENCED, TAGGED, Malformed, Output, P, offer

OFFER = offer()
WRONG = '{"name": "get_weather", "arguments": {}}'
ROLE = {"role": "assistant", "content": ""}


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return sse.encode({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more})


def said(*texts: str) -> bytes:
    return b"".join(chunk({"content": text}) for text in texts)


STOP, LENGTH = chunk({}, "stop"), chunk({}, "length")


class Stream(WrittenCallReader):
    def __init__(self, of: Offer, said: str, calls_before: int) -> None:
        numbers = count(1)
        super().__init__(of, lambda: f"call_{next(numbers)}", emulated=True, calls_before=calls_before, text_before=said)
        self._splitter = sse.FrameSplitter()

    def take(self, data: bytes) -> bytes:
        return self._take(self._splitter.feed(data))

    def end(self) -> bytes:
        return self._take(self._splitter.flush()) + written(self.close())

    def rest(self) -> bytes:
        return written(self.give_up())

    def _take(self, block: bytes) -> bytes:
        return b"".join(written(self.feed(read_frame(frame))) for frame in sse.frames(block))


def written(pieces: Iterable[Piece]) -> bytes:
    return b"".join(ChatWriter().relay(piece, None, role_sent=True) for piece in pieces)


def stream(of: Offer = OFFER, *, said: str = "", calls_before: int = 0) -> Stream:
    return Stream(of, said, calls_before)


def objects(data: bytes) -> list[Any]:
    datas = map(sse.data_of, sse.frames(data))
    return [None if data is None or data == b"[DONE]" else loads(data) for data in datas]


def deltas(data: bytes) -> list[Any]:
    """What the chunks say: delta and finish reason of their only choice."""
    found = [o["choices"][0] for o in objects(data) if o is not None and o.get("choices")]
    return [(choice["delta"], choice["finish_reason"]) for choice in found]


def called(index: int, name: str, arguments: str, number: int | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": f"call_{number or index + 1}", "type": "function", "function": function}]}


PARIS = called(0, "get_weather", '{"city": "Paris"}')


def test_text_passes_byte_for_byte() -> None:
    body = (
        b": hello\n\n"
        + chunk(ROLE)
        + chunk({"reasoning_content": "hm"})
        + said("Hel", "lo, wor", "ld", "\n", " `<b", "> [x", "] {y}")
        + STOP
        + sse.encode({"choices": [], "usage": {"total_tokens": 1}})
        + DONE
    )
    one = stream()
    assert one.take(body) + one.end() == body
    assert (one.correction(), one.stats, one.unseen) == (None, {}, 0)


def test_a_call_becomes_a_delta_and_the_finish_reason_tells() -> None:
    one = stream()
    assert one.take(chunk(ROLE) + said("I look.\n")) == chunk(ROLE) + said("I look.\n")
    assert one.take(said("<tool", "_call>\n")) == b""
    assert one.unseen == 2
    assert one.take(said(P)) == b""
    assert one.unseen > 10
    out = one.take(said("\n</tool_call>"))
    assert deltas(out) == [(PARIS, None)]
    assert objects(out)[0]["id"] == "c"
    assert deltas(one.take(STOP)) == [({}, "tool_calls")]
    assert one.take(DONE) == DONE
    assert (one.unseen, one.stats) == (0, {("tool_call", "called"): 1, ("tool_call", "repaired"): 0})


def test_text_around_calls_in_one_chunk() -> None:
    one = stream()
    out = one.take(chunk({"role": "assistant", "content": f"A.\n{TAGGED}\n{FENCED}\nB."}, "stop"))
    assert deltas(out) == [
        ({"role": "assistant", "content": "A.\n"}, None), (PARIS, None), (called(1, "get_weather", ARGS), None),
        ({"content": "B."}, "tool_calls"),
    ]  # fmt: skip


def test_a_call_that_ends_with_the_answer() -> None:
    one = stream()
    out = one.take(said(P) + chunk({"content": " "}, "stop", usage={"total_tokens": 9}) + DONE)
    assert deltas(out) == [(PARIS, None), ({}, "tool_calls")]
    assert [o and o.get("usage") for o in objects(out)] == [None, {"total_tokens": 9}, None]


def test_a_delta_whose_text_is_held_goes_out_whole() -> None:
    one = stream()
    assert one.take(chunk({"role": "assistant", "content": TAGGED[:20]}) + chunk({"reasoning": "r"})) == b""
    out = one.take(said(TAGGED[20:]) + STOP)
    assert deltas(out) == [({"role": "assistant"}, None), (PARIS, None), ({"reasoning": "r"}, None), ({}, "tool_calls")]


def test_what_is_cut_is_held_and_never_half_sent() -> None:
    one = stream()
    assert one.take(said("<tool_call>", P[:-4]) + LENGTH + DONE) + one.end() == b""
    wrong = one.correction()
    assert wrong is not None
    assert (wrong.written, wrong.forms) == ("<tool_call>" + P[:-4], ("tool_call",))
    assert "it was cut off before its end" in wrong.complaint


def test_from_a_malformed_call_on_everything_waits_for_the_owner() -> None:
    one = stream()
    out = one.take(said("A.\n", WRONG, "\nB.\n", TAGGED, "\nC") + b": ping\n\n" + STOP + DONE) + one.end()
    assert out == said("A.\n") + b": ping\n\n"
    wrong = one.correction()
    assert wrong is not None
    assert 'get_weather: "city" is missing' in wrong.complaint
    assert wrong.written == f"{WRONG}\nB.\nC"
    tail = one.rest()
    text, calls, finish = joined(deltas(tail))
    assert (text, calls, finish) == (f"{WRONG}\nB.\nC", [PARIS["tool_calls"][0]["function"]], "tool_calls")
    assert tail.endswith(DONE)
    assert one.rest() == b""
    assert one.stats == {("bare", "malformed"): 1, ("tool_call", "called"): 1, ("tool_call", "repaired"): 0}


def test_calls_go_on_counting_after_an_earlier_attempt() -> None:
    one = stream(calls_before=2, said="A\n")
    assert deltas(one.take(said(TAGGED) + STOP)) == [(called(2, "get_weather", ARGS, 1), None), ({}, "tool_calls")]


def test_of_several_choices_the_first_one_is_read() -> None:
    one = stream()
    both = {"choices": [{"index": i, "delta": {"content": TAGGED}, "finish_reason": None} for i in (0, 1)]}
    out = one.take(sse.encode(both) + STOP + chunk({}, "stop", index=1))
    found = [o["choices"][0] for o in objects(out)]
    assert sorted((c["index"], str(c["delta"]), str(c["finish_reason"])) for c in found) == sorted(
        [(0, str(PARIS), "None"), (1, str({"content": TAGGED}), "None"), (0, "{}", "tool_calls"), (1, "{}", "stop")]
    )


@pytest.mark.parametrize("end", [b"", DONE, b'data: {"error": {"message": "x"}}\n\n', b"data: [DONE]"])
def test_held_text_goes_out_before_the_end(end: bytes) -> None:
    one = stream()
    assert one.take(said('{"na')) == b""
    assert one.take(end) + one.end() == chunk({"content": '{"na'}) + end


# -- errors

errors = pytest.mark.parametrize(
    "error",
    [b'data: {"error": {"message": "x"}}\n\n', chunk({"content": ""}, "error", error={"message": "x"})],
    ids=["alone", "beside a choice"],  # as OpenRouter tells of one
)


@errors
@pytest.mark.parametrize(
    ("held", "text", "calls"),
    [
        (TAGGED[:-20], "", 0),
        *[(held, held, 0) for held in ("\n", " <tool", "\n```json\n{", '\n{"name": "get_')],
        (P, "", 1),
        (WRONG, WRONG, 0),
    ],
)
def test_an_error_lets_out_all_but_a_half_call(error: bytes, held: str, text: str, calls: int) -> None:
    one = stream()
    out = one.take(said("Hi.\n", held) + error + DONE) + one.end() + one.rest()
    assert joined(deltas(out.replace(error, b"")))[0] == f"Hi.\n{text}"
    assert out.count(b"tool_calls") == calls
    assert out.endswith(error + DONE)
    assert (one.correction(), one.unseen) == (None, 0)


@errors
def test_an_error_does_not_wait_for_a_correction(error: bytes) -> None:
    one = stream()
    assert one.take(said(WRONG, "\nB") + error + DONE) == error + DONE
    assert one.correction() is not None
    assert joined(deltas(one.rest()))[0] == f"{WRONG}\nB"


# -- finish reasons


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_beside_calls_every_end_of_the_models_own_is_told_as_calls(finish: str) -> None:
    end = chunk({}, finish)
    assert deltas(stream().take(said(TAGGED) + end))[-1] == ({}, "tool_calls")
    assert stream().take(said("Hi.") + end) == said("Hi.") + end
    missing = stream(offer(tool_choice="required"))
    assert missing.take(said("Hi.") + end) == said("Hi.")
    assert "no tool was called" in str(missing.correction())


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_other_ends_stay_and_complete_nothing(finish: str) -> None:
    end = chunk({}, finish)
    assert deltas(stream().take(said(TAGGED) + end))[-1] == ({}, finish)
    one = stream()
    assert one.take(said(P[:-1]) + end) == b""
    assert [each.reason for each in one.faults] == ["cut"]


def test_an_end_without_a_finish_reason_completes_nothing() -> None:
    one = stream()
    assert one.take(said(P[:-1])) + one.end() == b""
    assert [each.reason for each in one.faults] == ["cut"]


def joined(parts: Iterable[tuple[Any, Any]]) -> tuple[str, list[Any], Any]:
    content, calls, finish = "", [], None
    for delta, reason in parts:
        content += delta.get("content") or ""
        calls += [call["function"] for call in delta.get("tool_calls", ())]
        finish = reason or finish
    return content, calls, finish


@pytest.mark.parametrize("row", [*CLEAN, *REPAIRED, *MALFORMED], ids=lambda row: row.name)
@pytest.mark.rows(40)
def test_every_output_is_read_in_any_chunks(row: Output) -> None:
    """After giving up, too, where there are malformed calls."""
    finish = "length" if row.cut else "stop"
    calls = [{"name": p.name, "arguments": p.arguments} for p in row.found if isinstance(p, Call)]
    results = set()
    for size in (1, 7, 10_000):
        one = stream()
        pieces = [row.text[at : at + size] for at in range(0, len(row.text), size)]
        out = one.take(said(*pieces) + chunk({}, finish) + DONE) + one.end() + one.rest()
        text, made, ended = joined(deltas(out))
        assert (made, ended) == (calls, "tool_calls" if calls and not row.cut else finish)
        results.add(text)
    (text,) = results
    if not any(isinstance(p, Call) for p in row.found):
        assert text == row.text
    elif all(not isinstance(p, Malformed) for p in row.found):
        assert text == "".join(p for p in row.found if isinstance(p, str))


BODY = b": c\r\n\r\n" + chunk(ROLE) + said("A ", f"\n{TAGGED[:30]}", TAGGED[30:], "`{", WRONG) + STOP + DONE


@given(st.sets(st.integers(0, len(BODY)), max_size=9))
def test_no_chunking_of_the_bytes_changes_anything(cuts: set[int]) -> None:
    whole, cut = stream(), stream()
    expected = whole.take(BODY) + whole.end() + whole.rest()
    edges = [0, *sorted(cuts), len(BODY)]
    out = b"".join(cut.take(BODY[a:b]) for a, b in pairwise(edges))
    assert out + cut.end() + cut.rest() == expected
