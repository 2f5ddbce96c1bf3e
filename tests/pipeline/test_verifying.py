"""Summaries are verified before they stand in a history, through the real HTTP stack: asked for once more, else an extract."""

import logging
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import httpx
import pytest

from proxy.core.history.marks import EXTRACT, OPEN
from tests.fakes import Brain, FakeModel, LlamaCppFake, Question, Reply
from tests.fakes.http import Recorded
from tests.proxying import Proxy, metric, read_stream, running_proxy

FACTS = ("Ingrid", "Bergen", "555-0142", "Pluto", "Valparaiso", "1987", "Tobias", "garden.md", "37", "B12")
TOLD = (
    "My sister Ingrid lives in Bergen.",
    "Her number is 555-0142, and her dog is called Pluto.",
    "I was born in Valparaiso in 1987.",
    "My uncle Tobias keeps his notes in /srv/notes/garden.md on a server.",
    "We planted 37 trees, and we leave from gate B12.",
)
ANSWER = "That is a fine thing to hear, and I would like to know more about how all of it came to be so. "
GOOD = (
    "The user's sister Ingrid lives in Bergen, number 555-0142, dog Pluto. The user was born in Valparaiso in 1987. "
    "Uncle Tobias keeps notes in /srv/notes/garden.md. They planted 37 trees and leave from gate B12."
)


def history() -> list[dict[str, Any]]:
    """A chat that is too long for 2,048 tokens, in which the user tells things early."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello, let us talk about the family."}]
    for told in (*TOLD, *("And what do you think about that?",) * 5):
        messages += [{"role": "assistant", "content": ANSWER * 5}, {"role": "user", "content": told}]
    messages += [{"role": "assistant", "content": ANSWER * 5}, {"role": "user", "content": "And now, what?"}]
    return messages


def summarises(*replies: Reply | str) -> Brain:
    """Says these when asked for summaries, the last one again and again."""
    said = iter(replies)
    last = replies[-1]

    def brain(question: Question) -> Reply:
        if "Summarise the conversation" not in question.last_user:
            return Reply(text="Well then.")
        reply = next(said, last)
        return reply if isinstance(reply, Reply) else Reply(text=reply)

    return brain


def asked(fake: LlamaCppFake) -> list[Recorded]:
    return [sent for sent in fake.chats() if "Summarise the conversation" in str(sent.json["messages"][-1])]


def forwarded(fake: LlamaCppFake) -> str:
    return str(fake.chats()[-1].json["messages"])


def chat(proxy: Proxy, **fields: Any) -> httpx.Response:
    answer = proxy.chat({"model": "m", "messages": history(), "max_tokens": 40, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-spillway-action"] == "compacted"
    return answer


def endless(text: str) -> Iterator[str]:
    return (f"{word} " for word in cycle(text.split()))


GERMAN = (
    "Der Benutzer hat über die Familie gesprochen, und der Assistent hat ihm zugehört, wie er es immer tut, und das ist "
    "alles, was passiert ist: Ingrid, Bergen, 555-0142, Pluto, Valparaiso, 1987, Tobias, 37, B12."
)

BAD: dict[str, tuple[Reply | str, str]] = {
    "a loop": ("The user is happy to talk with the assistant. " * 17, "loop"),
    "nothing but thoughts": (Reply(reasoning="They talked about Ingrid. " * 3), "empty"),
    "a thought without an end": ("<think>The user told about Ingrid, Bergen, Tobias and so on", "empty"),
    "no whole sentence": (Reply(text="The user, who talked about " + "Ingrid and " * 4, finish="length"), "cut"),
    "another language": (GERMAN, "language"),
    "the chat carried on": (ANSWER * 2, "loop|copy"),
    "nothing of what was told": ("The two of them had a talk about many things, and all of it was good.", "gaps"),
    "a refusal": ("I'm sorry, but I can't do that for you.", "refusal"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_not_fit_is_asked_for_in_the_other_form_and_then_extracted(kind: str) -> None:
    reply, verdict = BAD[kind]
    with LlamaCppFake([FakeModel("m", 2048)], summarises(reply)) as fake, running_proxy(fake) as proxy:
        told = chat(proxy).json()["usage"]["spillway"]
        assert told["summary"] == "extract"
        forms = ["<<<conversation>>>" in str(sent.json["messages"]) for sent in asked(fake)]
        assert forms == [False, True]
        assert EXTRACT in forwarded(fake)
        assert [fact for fact in FACTS if fact not in forwarded(fake)] == []
        counted = metric(proxy, "spillway_summaries_total")
        assert sum(counted.values()) == 2
        assert all(any(f'verdict="{each}"' in labels for each in verdict.split("|")) for labels in counted)
        assert sum(metric(proxy, "spillway_extracts_total").values()) == 1
        # It is stored, and the next turn finds it.
        shown = proxy.client.post("/spillway/explain", json={"model": "m", "messages": history()}).json()
        assert shown["checkpoint"]["summary"] == "extract"
        assert len(asked(fake)) == 2


@pytest.mark.parametrize(
    ("transcript", "forms"),
    [(GOOD, ["ft", "ft", "t", "t", "t"]), ("Nothing of note was said by anybody at all.", ["ft", "ft", "", "", ""])],
)
def test_what_never_serves_is_not_asked_for_again_and_again(transcript: str, forms: list[str]) -> None:
    """Neither the first form, where only the other serves, nor any, where none does."""

    def brain(question: Question) -> Reply:
        if "Summarise the conversation" not in question.last_user:
            return Reply(text="Well then.")
        return Reply(text=transcript if "<<<conversation>>>" in question.last_user else "They had a talk.")

    with LlamaCppFake([FakeModel("m", 2048)], brain) as fake, running_proxy(fake) as proxy:
        for at, expected in enumerate(forms):
            del fake.requests[:]
            first, *rest = history()
            messages = [{**first, "content": f"{first['content']} It is day {at}."}, *rest]
            assert proxy.chat({"model": "m", "messages": messages, "max_tokens": 40}).status_code == 200
            asks = ["ft"["<<<conversation>>>" in str(sent.json["messages"])] for sent in asked(fake)]
            assert "".join(asks) == expected


@pytest.mark.parametrize("field", ["text", "reasoning"])
def test_a_model_that_loops_is_stopped_while_it_does(field: str) -> None:
    said = endless("The user is glad that the assistant is here to help.")
    loop = Reply(text=said, exact=True) if field == "text" else Reply(reasoning=said, exact=True)
    with LlamaCppFake([FakeModel("m", 2048)], summarises(loop), delay=0.01) as fake, running_proxy(fake) as proxy:
        assert chat(proxy).json()["usage"]["spillway"]["summary"] == "extract"
        assert [sent.ended for sent in asked(fake)] == ["cancelled", "cancelled"]
        assert 'verdict="loop"' in str(metric(proxy, "spillway_summaries_total"))


def test_one_that_does_not_keep_the_bound_is_cut_and_used() -> None:
    long = f"{GOOD} " + " ".join(f"Then they spoke of thing {n}, which is another matter." for n in range(400))
    frames = [f'data: {{"choices": [{{"index": 0, "delta": {{"content": " {word}"}}}}]}}\n\n'.encode() for word in long.split()]
    reply = Reply(raw=[*frames, b"data: [DONE]\n\n"])
    with LlamaCppFake([FakeModel("m", 2048)], summarises(reply)) as fake, running_proxy(fake) as proxy:
        assert chat(proxy).json()["usage"]["spillway"]["summary"] == "written"
        (sent,) = asked(fake)
        block = forwarded(fake).split(f"{OPEN}\\n")[1].split("\\n[End")[0]
        assert len(block) / 4 < 2.5 * sent.json["max_tokens"]
        assert "Then they spoke of thing 1," in block


def test_the_user_is_told_that_it_is_an_extract(caplog: pytest.LogCaptureFixture) -> None:
    brain = summarises("Nothing of it was of any interest to anybody who was there.")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    with (
        caplog.at_level(logging.INFO, logger="spillway"),
        LlamaCppFake([FakeModel("m", 2048)], brain) as fake,
        running_proxy(fake) as proxy,
    ):
        seen = read_stream(chat(proxy, stream=True).content)
        assert "Conversation shortened (" in str(seen.events)
        again = proxy.chat({"model": "m", "messages": history(), "max_tokens": 40})
        assert again.json()["usage"]["spillway"]["summary"] == "extract", "it still is one"
        (row,) = proxy.client.get("/spillway/conversations").json()["conversations"]
        note = proxy.client.get(f"/spillway/conversations/{row['id']}/summary").json()["note"]
        assert note.startswith("Summaries by m are not used: names, numbers or dates are missing. ")
        assert "SPILLWAY_SUMMARY_MODEL" in note
    assert any("summary=extract" in line and "rejected=2" in line for line in lines())
    assert lines().count(note) == 1
    assert not any("Ingrid" in line or "Nothing of it" in line for line in lines())
