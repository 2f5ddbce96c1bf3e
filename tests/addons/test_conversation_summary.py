"""Summaries that are looked at and forgotten, and what the next forwarded prompt makes of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from proxy.core.history.marks import OPEN
from proxy.store.sqlite import SqliteDriver
from tests.addons.test_pins import at_length
from tests.addons.watching import code
from tests.dialects.asking import PATHS, question, read
from tests.fakes import LlamaCppFake, Question, Reply, qa, summariser
from tests.fakes.waiting import Gate, wait_until
from tests.pipeline.talk import MODEL, summaries, user, wait_ahead
from tests.pipeline.talk import Talk as Client
from tests.pipeline.test_verifying import ANSWER, GOOD, forwarded, history
from tests.proxying import Proxy, running_proxy

BETTER = (
    "Ingrid, the sister, lives in Bergen at 555-0142 with the dog Pluto. Born in Valparaiso in 1987. Uncle Tobias: "
    "/srv/notes/garden.md. 37 trees; they leave from gate B12. The house is green."
)
ANNE, BERT, BOSS = ({"x-api-key": f"{name}-key-12345"} for name in ("anne", "bert", "boss"))


class Model:
    """Writes the summary that it is to write next, and waits at a gate if there is one."""

    def __init__(self) -> None:
        self.summary: str = GOOD
        self.gate: Gate | None = None

    def __call__(self, question: Question) -> Reply:
        if "Summarise the conversation" in question.last_user:
            return Reply(text=self.summary)
        return Reply(text="Well then, that is how it is. " * 4, gate=self.gate)


class Talk:
    def __init__(self, proxy: Proxy, fake: LlamaCppFake, model: Model, headers: dict[str, str]) -> None:
        self.proxy, self.fake, self.model, self.headers = proxy, fake, model, headers
        self.messages = history()
        self.turn()
        rows = proxy.client.get("/spillway/conversations", headers=headers).json()["conversations"]
        self.id = rows[0]["id"]
        self.path = f"/spillway/conversations/{self.id}/summary"

    def turn(self, said: str = "") -> str:
        if said:
            self.messages += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": said}]
        answer = self.proxy.chat({"model": "m", "messages": self.messages, "max_tokens": 40}, **self.headers)
        assert answer.status_code == 200, answer.text
        return forwarded(self.fake)

    def summary(self) -> dict[str, Any]:
        answer = self.proxy.client.get(self.path, headers=self.headers)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def act(self, method: str) -> httpx.Response:
        return self.proxy.client.request(method, self.path, headers=self.headers)


@contextmanager
def talking(headers: dict[str, str] | None = None, **settings: Any) -> Iterator[Talk]:
    model = Model()
    with LlamaCppFake(brain=model, window=2048) as fake, running_proxy(fake, recall="off", **settings) as proxy:
        yield Talk(proxy, fake, model, headers or {})


def test_a_summary_is_told_as_it_stands_with_what_was_found_about_it() -> None:
    with talking() as talk:
        told = talk.summary()
        (block,) = told["blocks"]
        assert block["text"] == GOOD
        assert block["by"] == told["checkpoint"]["summary"] == "written"
        assert block["tokens"] > 20
        assert [each["verdict"] for each in told["verdicts"]] == ["kept"]
        assert told["tokens_before"] > told["tokens_after"]
        assert any(OPEN in str(message["content"]) for message in told["messages"])
        assert told["earlier"] == 0


def test_a_rejected_summary_is_gone_and_the_prompt_begins_with_the_one_before() -> None:
    with talking() as talk:
        first = talk.summary()
        talk.model.summary = BETTER
        while talk.summary()["checkpoint"]["covered"] == first["checkpoint"]["covered"]:
            talk.turn(f"Let us go on about {talk.summary()['checkpoint']['covered']}. " + ANSWER * 6)
        assert talk.summary()["earlier"] == 1
        rejected = talk.act("DELETE").json()
        assert rejected["rejected"] is True
        assert rejected["summary"]["checkpoint"]["covered"] == first["checkpoint"]["covered"]
        assert [each["text"] for each in talk.summary()["blocks"]] == [GOOD]
        talk.model.summary = "no"  # no other comes in its place
        again = talk.act("DELETE").json()
        assert (again["rejected"], again["summary"]) == (True, None)
        assert code(talk.proxy.client.get(talk.path)) == (404, "no_summary")
        shown = talk.turn("And now?")
        assert GOOD not in shown
        assert BETTER not in shown


def test_nothing_is_changed_while_a_request_is_served() -> None:
    with talking() as talk:
        gate = talk.model.gate = Gate(at=2)
        talk.messages += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Go on."}]
        body = {"model": "m", "messages": talk.messages, "stream": True}
        with talk.proxy.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            gate.wait_reached(20)
            assert code(talk.act("DELETE")) == (409, "busy")
            gate.open()
            answer.read()
        wait_until(lambda: talk.act("DELETE").status_code == 200)


def test_a_summary_is_forgotten_for_its_own_tenant_and_by_an_admin_who_does_not_see_it() -> None:
    settings = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    with talking(ANNE, **settings) as talk:
        others = Talk(talk.proxy, talk.fake, talk.model, BERT)
        ask = talk.proxy.client.request
        for method in ("GET", "DELETE"):
            assert code(ask(method, talk.path, headers=BERT)) == (404, "not_found")
        assert code(ask("GET", talk.path, headers=BOSS)) == (403, "content_not_shown")
        rejected = ask("DELETE", talk.path, headers=BOSS)
        assert rejected.json() == {"rejected": True, "summary": None}
        assert code(talk.act("GET")) == (404, "no_summary")
        assert GOOD in others.turn("And then?")


def test_a_deleted_conversation_is_gone_for_its_own_tenant_alone() -> None:
    settings = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    with talking(ANNE, **settings) as talk:
        others, path = Talk(talk.proxy, talk.fake, talk.model, BERT), f"/spillway/conversations/{talk.id}"
        ask = talk.proxy.client.request
        assert code(ask("DELETE", path, headers=BERT)) == (404, "not_found")
        assert ask("DELETE", path, headers=ANNE).json() == {"id": talk.id, "object": "conversation", "deleted": True}
        assert code(ask("GET", path, headers=ANNE)) == (404, "not_found")
        talk.model.summary = "no"  # no other comes in its place
        assert GOOD not in talk.turn("And now?")
        assert GOOD in others.turn("And then?")


def test_a_conversation_that_memory_lost_is_deleted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.history.MOST_REQUESTS", 1)
    keys = {"api_keys": ("anne-key-12345", "bert-key-12345")}
    with talking(ANNE, **keys) as talk:
        path, ask = f"/spillway/conversations/{talk.id}", talk.proxy.client.request
        talk.proxy.chat({"model": "m", "messages": [{"role": "user", "content": "Something else."}]}, **ANNE)
        assert code(ask("GET", path, headers=ANNE)) == (404, "not_found")
        wait_until(lambda: code(ask("DELETE", path, headers=BERT)) == (404, "not_found"))
        wait_until(lambda: ask("DELETE", path, headers=ANNE).status_code == 200)
        assert code(ask("DELETE", path, headers=ANNE)) == (404, "not_found")
        talk.model.summary = "no"  # no other comes in its place
        assert GOOD not in talk.turn("And now?")


@pytest.mark.parametrize("archive", ["off", "on"])
def test_a_conversation_is_not_deleted_while_its_store_takes_nothing(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise OSError

    with talking(archive=archive) as talk:
        path = f"/spillway/conversations/{talk.id}"
        if archive == "on":  # which is then all that is stored
            assert talk.act("DELETE").status_code == 200
        monkeypatch.setattr(SqliteDriver, "drop", refuse)
        assert code(talk.proxy.client.delete(path))[0] == 503
        assert talk.proxy.client.get(path).status_code == 200


@pytest.mark.slow
def test_a_summary_that_was_made_ahead_is_forgotten_too() -> None:
    with LlamaCppFake([MODEL], summariser(qa())) as fake, running_proxy(fake, ahead="on") as proxy:
        chat = Client(proxy)
        chat.ask()
        wait_ahead(proxy, done=1)
        (row,) = proxy.client.get("/spillway/conversations").json()["conversations"]
        assert row["checkpoint"]
        answer = proxy.client.delete(f"/spillway/conversations/{row['id']}/summary")
        assert answer.json() == {"rejected": True, "summary": None}


# What users do with it by messages


def said(talk: Client, text: str, path: str = "/v1/chat/completions", *, stream: bool = False) -> str:
    """Send a message of one's own, which stays in the history with its answer; its text."""
    talk.messages.append({"role": "user", "content": text})
    asked = question(path, stream=stream, messages=talk.messages)
    answer = talk.proxy.client.post(path, json=asked, headers={"authorization": f"Bearer {talk.key}"})
    told = read(path, answer.content, stream=stream).text
    talk.messages.append({"role": "assistant", "content": told})
    return told


@pytest.mark.parametrize("path", PATHS)
def test_a_summary_is_shown_and_forgotten_by_messages(path: str, stream: bool) -> None:
    brain = summariser(qa())
    with LlamaCppFake([MODEL], brain) as fake, running_proxy(fake, recall="off") as proxy:
        talk = Client(proxy, turns=7)
        assert said(talk, "/summary", path, stream=stream) == said(talk, "/uncompact", path, stream=stream)
        assert talk.messages[-1]["content"].startswith("📄 Nothing was summarised yet: ")
        before = said(talk, "/compact", path, stream=stream)
        assert before.startswith("✅ Conversation compacted: ")
        shown = said(talk, "/summary", path, stream=stream)
        assert re.match(r"📄 In place of the first \d+ messages \([\d,]+ → [\d,]+ tokens\), a summary by a model:\n\n", shown)
        assert "Goal and constraints" in shown
        said(talk, "Go on.", path, stream=stream)
        assert OPEN in forwarded(fake)
        undone = said(talk, "/uncompact", path, stream=stream)
        assert "From your next message on the model reads the messages themselves, " in undone
        asked = len(fake.chats())
        said(talk, "And now?", path, stream=stream)
        assert len(fake.chats()) == asked + 1
        assert OPEN not in forwarded(fake)
        assert "about2x3 " in forwarded(fake)
        assert not any(word in forwarded(fake) for word in ("/summary", "/uncompact", "Forgotten", "In place of the first"))


def test_one_who_forgets_a_summary_is_told_that_the_text_is_due_and_what_comes_of_it() -> None:
    with LlamaCppFake([MODEL], summariser(qa())) as fake, running_proxy(fake, recall="off", summary_wait=20.0) as proxy:
        talk = Client(proxy, turns=10)
        talk.ask()
        assert OPEN in forwarded(fake)
        before = len(fake.chats())
        assert said(talk, "/uncompact").endswith(" so your next message has it compacted anew.")
        assert len(fake.chats()) == before
        said(talk, "And now?")
        assert summaries(fake)[-1] in fake.chats()[before:]
        assert OPEN in forwarded(fake)


@pytest.mark.parametrize("sends", [14, 99])
def test_only_a_summary_of_messages_that_the_client_still_sends_is_forgotten(sends: int) -> None:
    with LlamaCppFake([MODEL], summariser(at_length)) as fake, running_proxy(fake) as proxy:
        talk = Client(proxy, turns=0)
        for number in range(16):
            said(talk, user(number)["content"])
            talk.messages[:-sends] = []
        assert OPEN in forwarded(fake)
        kept = "⚠️ Nothing was forgotten: your client no longer sends "
        assert said(talk, "/uncompact").startswith(kept if sends < 32 else "✅ Forgotten: the summary of ")
        if sends < 32:
            said(talk, "And now?")
            assert OPEN in forwarded(fake)


def test_a_conversation_is_exported_with_what_is_sent_in_place_of_its_messages() -> None:
    keys: dict[str, Any] = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    with talking(ANNE, **keys) as talk:
        path = f"/spillway/conversations/{talk.id}/export"
        answer = talk.proxy.client.get(path, headers=ANNE)
        assert answer.headers["content-type"].startswith("text/markdown")
        assert re.match(r"# .+\n\n> In place of the first \d+ messages ", answer.text)
        assert f"> {GOOD.splitlines()[0]}" in answer.text
        assert all(str(message["content"]) in answer.text for message in talk.messages)
        assert answer.text.count("\n## User\n") == sum(each["role"] == "user" for each in talk.messages)
        assert answer.text.count("\n## Assistant\n") == answer.text.count("\n## User\n")  # the newest answer too
        refused = [talk.proxy.client.get(path, headers=who).status_code for who in (BERT, BOSS)]
        assert refused == [404, 403]
