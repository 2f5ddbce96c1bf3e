"""A document larger than the window: read in parts with the question beside each, and answered from the notes."""

import re
from typing import Any

import pytest

from proxy.addons.document import MOST_REQUESTS, document_in, is_about_all_of
from proxy.core.history.marks import RECALLED
from proxy.core.request import text_of
from tests.dialects.asking import PATHS, question, read
from tests.fakes import Brain, FakeBackend, FakeModel, Gate, LlamaCppFake, OpenRouterFake, Question, Reply
from tests.fakes.http import Recorded
from tests.fakes.waiting import wait_until
from tests.proxying import metric, read_stream, running_proxy

pytestmark = pytest.mark.slow

MODEL = FakeModel("m", 4096)
_CODE = re.compile(r"the code of room (\d+) is (\w+)")
_PART = re.compile(r"stands part (\d+) of (\d+)")


def book(lines: int = 1200, ask: str = "Summarise this text, with all codes.") -> list[dict[str, Any]]:
    """A text with a code in every hundredth line, and what is asked in front of it."""
    text = [
        f"the code of room {n} is c{n}" if n % 100 == 50 else f"Line {n}: the fox and the stone were blue long ago."
        for n in range(lines)
    ]
    return [{"role": "user", "content": "\n".join((ask, "", *text))}]


def part(request: Recorded) -> str:
    """The number of the part that a request has read; empty: it is another one."""
    found = _PART.search(text_of(request.json["messages"][-1]))
    return "" if found is None else found[1]


def parts(fake: FakeBackend) -> list[str]:
    return [number for number in map(part, fake.chats()) if number]


def reader(failing: str = "", gate: Gate | None = None, filler: str = "", longest: int = 0) -> Brain:
    """Notes all codes of a part, and a filler, and answers with all that it sees.

    It breaks off at parts whose number matches `failing`, where they have more than `longest` characters.
    """

    def brain(asked: Question) -> Reply:
        codes = " ".join(f"the code of room {room} is {code}." for room, code in _CODE.findall(asked.last_user))
        found = _PART.search(asked.last_user)
        if found is not None and failing and re.fullmatch(failing, found[1]) and len(asked.last_user) > longest:
            return Reply(error="out of memory")
        if found is not None and "Line " in asked.last_user:
            codes += filler
        return Reply(text=codes or "nothing", gate=gate if found is not None and found[1] == "2" else None)

    return brain


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.rows(2)
def test_the_answer_comes_from_notes_which_hold_for_later_turns(path: str, stream: bool) -> None:
    with LlamaCppFake([MODEL], reader()) as fake, running_proxy(fake) as proxy:
        messages = book()

        def ask() -> str:
            answer = proxy.client.post(path, json=question(path, stream=stream, messages=messages))
            return read(path, answer.content, stream=stream).text

        answer = ask()
        assert all(f"c{n}" in answer for n in range(50, 1200, 100))
        read_parts = len(parts(fake))
        assert read_parts == len(fake.chats()) - 1 > 4
        sent = text_of(fake.chats()[-1].json["messages"][-1])
        assert sent.startswith("Summarise this text, with all codes.\n\n<document_notes>")
        assert "Line 7:" not in sent
        assert RECALLED not in sent
        assert sum(metric(proxy, "spillway_document_parts_total").values()) == read_parts
        ask()  # once more, as who asks for another answer does
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Is that all?"}]
        ask()
        assert len(parts(fake)) == read_parts, "it is not read again"
        assert "<document_notes>" in str(fake.chats()[-1].json["messages"])
        assert (fake.overflows, fake.invalid_histories) == (0, [])


def test_it_is_told_how_far_the_reading_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.attempts.client.PROGRESS", 0.001)
    gate = Gate()
    with LlamaCppFake([MODEL], reader(gate=gate)) as fake, running_proxy(fake, grace=0.0, heartbeat=0.05) as proxy:
        body = {"model": "m", "messages": book(), "stream": True, "stream_options": {"include_usage": True}}
        came, shown = b"", False
        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as response:
            for data in response.iter_raw():
                if shown:  # it is kept alive meanwhile
                    gate.open()
                came += data
                shown = b"Reading part 2 of " in came
        seen = read_stream(came)
        told = [event["data"]["description"] for event in seen.events]
        assert told[0] == "📖 Your message exceeds the window, reading it in parts…"
        assert told[-1].startswith("✅ Your message was read in parts, answering from notes…")
        assert "c1150" in seen.text
        assert seen.usage is not None
        assert seen.usage["spillway"]["action"] == "read"


def test_who_leaves_ends_the_reading() -> None:
    gate = Gate()
    with LlamaCppFake([MODEL], reader(gate=gate)) as fake, running_proxy(fake, grace=0.0) as proxy:
        body = {"model": "m", "messages": book(), "stream": True}
        with proxy.client.stream("POST", "/v1/chat/completions", json=body):
            gate.wait_reached()
        wait_until(lambda: fake.cancelled == 1)
        wait_until(lambda: sum(metric(proxy, "spillway_requests_total").values()) == 1)
        assert parts(fake) == ["1", "2"]


@pytest.mark.parametrize(("failing", "noted"), [("3", True), (r"\d+", False)], ids=["one of them", "more than a quarter"])
def test_parts_that_fail(failing: str, noted: bool) -> None:
    """Each is read once more; of one that fails again its beginning stands there, and after too many the message is cut."""
    with LlamaCppFake([MODEL], reader(failing)) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": book()})
        assert answer.status_code == 200
        sent = text_of(fake.chats()[-1].json["messages"][-1])
        assert ("(There are no notes on this part. It begins so:) Line " in sent) is noted
        assert ("characters left out here" in sent) is not noted
        if not noted:
            assert parts(fake) == ["1", "1", "2", "2"], "it is given up early"
        else:
            assert parts(fake).count("3") == 2
            assert "c1150" in answer.json()["choices"][0]["message"]["content"]


def test_a_part_that_is_too_long_is_read_in_halves() -> None:
    with LlamaCppFake([MODEL], reader(r"\d+", longest=8_000)) as fake, running_proxy(fake) as proxy:
        text = proxy.chat({"model": "m", "messages": book()}).json()["choices"][0]["message"]["content"]
        assert all(f"c{n}" in text for n in range(50, 1200, 100))
        assert "There are no notes" not in str(fake.chats()[-1].json["messages"])


def test_what_is_longer_than_the_most_that_is_read_is_refused_with_the_figures() -> None:
    with LlamaCppFake([MODEL], reader()) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": book(12_000)})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert f"{MOST_REQUESTS} parts are read: about " in error["message"]
        assert fake.chats() == []


@pytest.mark.parametrize("lines", [1200, 4000, 12_000])
@pytest.mark.rows(1)
def test_it_is_not_read_where_a_passage_stands_out_however_little_of_the_rest_stays(lines: int) -> None:
    with LlamaCppFake([MODEL], reader()) as fake, running_proxy(fake) as proxy:
        messages = book(lines, "What is the code of room 650?")
        answer = proxy.chat({"model": "m", "messages": messages})
        assert answer.status_code == 200
        assert "c650" in answer.json()["choices"][0]["message"]["content"]
        assert int(answer.headers["x-spillway-left-out"]) > 0
        assert (parts(fake), len(fake.chats())) == ([], 1)
        # A message without words of its own goes on with that question; one that asks nothing does not.
        messages.append({"role": "assistant", "content": "I do."})
        for ask, recalls in (("Quote the whole sentence.", True), ("Thanks!", False)):
            proxy.chat({"model": "m", "messages": [*messages, {"role": "user", "content": ask}]})
            assert ("the code of room 650 is" in str(fake.chats()[-1].json["messages"])) is recalls


@pytest.mark.parametrize("turned", [False, True], ids=["text first", "question first"])
@pytest.mark.parametrize("ask", ["What is the code of room 650?", "Summarise this text, with all codes."])
def test_a_text_and_what_is_asked_about_it_may_be_two_messages(ask: str, turned: bool) -> None:
    messages = [*book(1200, "Reference:"), {"role": "user", "content": ask}]
    with LlamaCppFake([MODEL], reader()) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": messages[::-1] if turned else messages})
        assert answer.status_code == 200
        assert bool(parts(fake)) is ask.startswith("Summarise")
        seen = str(fake.chats()[-1].json["messages"])
        assert all(f"is c{n}" in seen for n in ([650] if not parts(fake) else range(50, 1200, 100)))
        assert ask in seen


def test_notes_that_are_too_long_are_read_once_more() -> None:
    filler = " ".join(f"word{number}" for number in range(30))
    with LlamaCppFake([FakeModel("m", 1024)], reader(filler=filler)) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": book(700)})
        assert answer.status_code == 200
        read_parts = parts(fake)
        assert read_parts.count("1") > 1
        assert len(read_parts) <= MOST_REQUESTS
        assert "<document_notes>" in str(fake.chats()[-1].json["messages"])
        assert fake.overflows == 0


@pytest.mark.parametrize(
    ("kind", "settings", "reads"),
    [
        (OpenRouterFake, {}, False), (OpenRouterFake, {"documents": "on"}, True), (LlamaCppFake, {"documents": "off"}, False),
        (LlamaCppFake, {"strategy": "truncate"}, False),
    ],
)  # fmt: skip
def test_it_is_read_in_parts_only_where_that_is_wanted(kind: type[FakeBackend], settings: dict[str, Any], reads: bool) -> None:
    with kind([MODEL], reader()) as fake, running_proxy(fake, **settings) as proxy:
        assert proxy.chat({"model": "m", "messages": book()}).status_code == 200
        assert bool(parts(fake)) is reads
        assert ("characters left out here" in str(fake.chats()[-1].json["messages"])) is not reads


@pytest.mark.parametrize(
    ("ask", "reads"),
    [
        ("What is the code of room 650?", False), ("Please translate it into French.", True), ("What is this?", None),
        ("Was steht da über Zebras und Giraffen?", None), ("What is this book about?", True),
        ("Fass das bitte zusammen.", True), ("Fais-moi un résumé.", True), ("Haz un resumen de esto.", True),
        ("Перечисли все коды.", True), ("请总结这篇文章。", True), ("この本を要約してください。", True), ("이 글을 요약해 주세요.", True),
        ("List every room that has a code.", True),
    ],
)  # fmt: skip
def test_where_passages_stand_out_it_is_not_read(ask: str, reads: bool | None) -> None:
    """None: what is pasted is, what a program put there is not."""
    for pasted, message in ((True, book(ask=ask)[0]), (False, _attached(ask))):
        document = document_in(message)
        assert document is not None
        assert ask in document.question
        assert is_about_all_of(document) is (pasted if reads is None else reads)


def _attached(ask: str) -> dict[str, Any]:
    """The same as a client sends a file: in a block of its own, and a part of the content."""
    text = str(book(ask="")[0]["content"])
    return {
        "role": "user",
        "content": [{"type": "text", "text": f'<file name="a.txt">\n{text}\n</file>'}, {"type": "text", "text": ask}],
    }
