"""The archive: a client that sends the newest messages only is answered from those it no longer sends."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.addons import archive
from proxy.addons.archive import Archivist
from proxy.cli import main
from proxy.core.history.marks import RECALLED
from proxy.core.request import Managed, text_of
from proxy.core.settings import Settings
from proxy.outcome import Telemetry
from proxy.store import StoreLimits, open_store
from tests.fakes import Brain, FakeModel, LlamaCppFake, Question, Reply, ToolCall
from tests.pipeline.test_recalling import ASK, FACT, brain, talk
from tests.proxying import Proxy, metric, running_proxy

NAMES: tuple[dict[str, str], ...] = ({}, {"X-OpenWebUI-Chat-Id": "chat-1"}, {"session_id": "chat-1"})
EDITED = FACT.replace("hedgehogs called Pim and Pam", "tortoises called Tick and Tack")


@dataclass
class Earlier:
    """As much of a prompt as the archive looks at."""

    archived: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Windowed:
    """A client that sends its system prompt and the last messages of a chat, with what names it."""

    proxy: Proxy
    name: dict[str, str] = field(default_factory=dict)
    most: int = 20
    messages: list[dict[str, Any]] = field(default_factory=list)

    def body(self, text: str) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": text})
        system = {"role": "system", "content": f"It is {len(self.messages)} o'clock."}
        return {"model": "m", "messages": [system, *self.messages[-self.most :]], "max_tokens": 40}

    def say(self, text: str) -> Any:
        key = {name: value for name, value in self.name.items() if name == "prompt_cache_key"}
        answer = self.proxy.chat(self.body(text) | key, **{} if key else self.name)
        assert answer.status_code == 200, answer.text
        self.messages.append({"role": "assistant", "content": f"Answer {len(self.messages)}."})
        return answer

    def chat(self, turns: int, since: int = 0) -> Self:
        for message in talk(2 * (since + turns))[2 * since :: 2]:
            self.say(message["content"])
        return self

    def tell(self, fact: str = FACT) -> Self:
        self.say(fact)
        return self

    def recalled(self) -> str:
        answer = self.say(ASK)
        newest = str(sent(self.proxy)[-1]["content"])
        assert (RECALLED in newest) == ("x-spillway-recalled" in answer.headers)
        return newest.removesuffix(ASK)


def sent(proxy: Proxy) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = proxy.app.state.fake.chats()[-1].json["messages"]
    return messages


@contextmanager
def staged(brain: Brain = brain, **settings: Any) -> Iterator[Proxy]:
    with LlamaCppFake([FakeModel("m", 16_384)], brain) as fake, running_proxy(fake, **{"archive": "on", **settings}) as proxy:
        proxy.app.state.fake = fake
        yield proxy


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Set a store, and return what runs a command on it and returns its output."""
    monkeypatch.setenv("SPILLWAY_STORE", f"sqlite:///{tmp_path}/store")

    def run(action: str) -> str:
        assert main(["store", action]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.parametrize("most", [20, 9])
@pytest.mark.rows(2)
def test_what_is_no_longer_sent_is_recalled(name: dict[str, str], most: int) -> None:
    with staged() as proxy:
        client = Windowed(proxy, name, most).chat(3).tell().chat(14, since=3)
        answer = client.say(ASK)
        assert len(sent(proxy)) == most + 1, "nothing is put among what is sent"
        assert FACT in sent(proxy)[-1]["content"]
        assert answer.json()["usage"]["spillway"]["recalled"]["passages"] == int(answer.headers["x-spillway-recalled"])
        assert answer.json()["choices"][0]["message"]["content"].startswith("They are called Pim and Pam.")
        assert sum(metric(proxy, "spillway_archived_messages_total").values()) == len(client.messages) - 1
        assert "x-spillway-recalled" not in client.say("Thank you, good night!").headers


def test_two_messages_are_enough_with_a_name() -> None:
    with staged() as proxy:
        assert FACT in Windowed(proxy, {"session_id": "s"}, 2).tell().chat(14).recalled()


def test_off_by_default(stored: Callable[[str], str], tmp_path: Path) -> None:
    assert Settings().archive == "off"
    with staged(archive="off", store=f"sqlite:///{tmp_path}/store") as proxy:
        assert Windowed(proxy).tell().chat(14).recalled() == ""
    assert "Mathilda" not in stored("export")


def edit(messages: list[dict[str, Any]], at: int) -> None:
    messages[at] = {**messages[at], "content": EDITED}


def delete(messages: list[dict[str, Any]], at: int) -> None:
    del messages[at : at + 2]


def rewind(messages: list[dict[str, Any]], at: int) -> None:
    del messages[at:]


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.parametrize("change", [edit, delete, rewind])
@pytest.mark.parametrize("turns", [0, 4, 8])
@pytest.mark.rows(4)
def test_edits_and_deletions_take_effect(
    change: Callable[[list[dict[str, Any]], int], None], name: dict[str, str], turns: int
) -> None:
    """Also where they are at the beginning of what is still sent."""
    with staged() as proxy:
        client = Windowed(proxy, name).chat(6).tell().chat(turns, since=6)
        change(client.messages, 12)
        text = client.chat(16, since=20).recalled()
        assert ("Tick and Tack" in text) == (change is edit)
        assert "Pim" not in text


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_credentials_never_mix(name: dict[str, str]) -> None:
    with staged() as proxy:
        one = Windowed(proxy, {"Authorization": "Bearer one", **name}).tell().chat(14)
        other = Windowed(proxy, {"Authorization": "Bearer two", **name}, messages=list(one.messages))
        assert other.recalled() == ""
        assert FACT in one.recalled()


@pytest.mark.parametrize("name", [{}, {"prompt_cache_key": "all of them"}], ids=str)
def test_chats_that_begin_alike_stay_apart(name: dict[str, str]) -> None:
    """Without a name of their own; both go on with what is their own."""
    with staged() as proxy:
        one, other = (Windowed(proxy, name).chat(3) for _ in range(2))
        one.tell().chat(14, since=3)
        other.tell(EDITED).chat(14, since=20)
        assert "Tick" not in one.recalled()
        assert "Pim" not in other.recalled()


@pytest.mark.parametrize("name", [{}, {"prompt_cache_key": "all of them"}], ids=str)
def test_a_greeting_and_its_answer_lead_to_no_other_chat(name: dict[str, str]) -> None:
    """Not even where both are what another one went on with."""
    with staged() as proxy:
        one, other = Windowed(proxy, name).tell().chat(3), Windowed(proxy, name)
        for each in (one, other):
            each.say("hi")
            each.messages[-1]["content"] = "Hello! How can I help?"
        assert other.recalled() == ""
        other.chat(14, since=20)
        assert FACT not in other.recalled()
        assert FACT in one.chat(14, since=3).recalled()


def test_names_keep_chats_apart_and_together() -> None:
    with staged() as proxy:
        one, other = (Windowed(proxy, {"X-OpenWebUI-Chat-Id": name}).chat(2) for name in ("a", "b"))
        one.tell().chat(14, since=2)
        other.messages = list(one.messages)
        assert other.recalled() == ""
        # It went on elsewhere for a while: nothing of what is sent was seen here.
        one.messages += talk(60)[1:]
        assert FACT in one.recalled()


@pytest.mark.parametrize("name", NAMES[:2], ids=str)
def test_a_restart_loses_nothing_and_a_purge_all(name: dict[str, str], stored: Callable[[str], str], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store"
    with staged(store=store) as proxy:
        client = Windowed(proxy, name).tell().chat(14)
    with staged(store=store) as client.proxy:
        assert FACT in client.recalled()
    assert FACT in stored("export")
    assert stored("purge").startswith("purged ")
    assert stored("export") == ""
    with staged(store=store) as client.proxy:
        assert client.recalled() == ""


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.rows(1)
def test_a_deleted_conversation_leaves_no_archive_and_others_alone(
    name: dict[str, str], stored: Callable[[str], str], tmp_path: Path
) -> None:
    with staged(store=f"sqlite:///{tmp_path}/store") as proxy:
        other = Windowed(proxy, {"Authorization": "Bearer two", **name}).tell(EDITED).chat(14)
        client = Windowed(proxy, name).tell().chat(14)
        assert FACT in (lines := stored("export"))
        assert EDITED in lines
        row = proxy.client.get("/spillway/conversations").json()["conversations"][0]
        assert proxy.client.delete(f"/spillway/conversations/{row['id']}").status_code == 200
        assert FACT not in (lines := stored("export"))
        assert EDITED in lines
        assert client.recalled() == ""
        assert EDITED in other.recalled()


@pytest.mark.parametrize("purge", [False, True])
def test_deleted_words_are_in_no_file_and_no_log(
    purge: bool, tmp_path: Path, stored: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    def words_on_disk() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir())

    caplog.set_level("DEBUG", "spillway")
    with staged(store=f"sqlite:///{tmp_path}/store") as proxy:
        assert "hedgehogs" in Windowed(proxy).tell().chat(14).recalled()
        assert b"hedgehogs" in words_on_disk()
        if purge:
            stored("purge")
        else:
            for row in proxy.client.get("/spillway/conversations").json()["conversations"]:
                assert proxy.client.delete(f"/spillway/conversations/{row['id']}").status_code == 200
        assert b"hedgehogs" not in words_on_disk()
    assert "hedgehogs" not in caplog.text


@pytest.mark.parametrize("bound", ["MOST_MESSAGES", "MOST_BYTES"])
def test_the_oldest_goes(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, bound, {"MOST_MESSAGES": 24, "MOST_BYTES": 2400}[bound])
    with staged() as proxy:
        client = Windowed(proxy).chat(2).tell().chat(10, since=2)
        assert FACT in client.recalled()
        assert client.chat(8, since=30).recalled() == ""


def test_the_model_may_search_it() -> None:
    def searcher(question: Question) -> Reply:
        newest = question.messages[-1]
        call = ToolCall("search_conversation", '{"query": "Mathilda\'s hedgehogs"}', "c1")
        return Reply(text=text_of(newest)) if newest["role"] == "tool" else Reply(tool_calls=(call,))

    with staged(searcher, recall="tool") as proxy:
        client = Windowed(proxy).tell().chat(14)
        assert FACT in client.say("Go on.").json()["choices"][0]["message"]["content"]


def test_only_what_was_said_is_archived(stored: Callable[[str], str], tmp_path: Path) -> None:
    """No chore of the client, no command, nothing of a request that is only explained."""
    with staged(store=f"sqlite:///{tmp_path}/store") as proxy:
        client = Windowed(proxy, {"X-OpenWebUI-Chat-Id": "chat-1"}).tell().chat(14)
        for words in ("### Task:\nGenerate a title.", "/compact the titles"):
            chore = {"model": "m", "messages": [{"role": "user", "content": words}]}
            assert proxy.chat(chore, **client.name).status_code == 200
        explained = proxy.client.post("/spillway/explain", json=client.body(ASK), headers=client.name).json()
        assert (None, FACT) in [(each["message"], each["text"]) for each in explained["recalled"]["passages"]]
        lines = stored("export")
    assert FACT in lines
    assert not any(words in lines for words in ("title", ASK, "o'clock"))


TURN = st.tuples(st.integers(0, 2), *[st.sampled_from(["", "", "", "ok", "hi", "Sure!", "Hello! How can I help you?"])] * 2)


@example(
    turns=[
        *((2, "Sure!", ""), (0, "", "hi"), (1, "Sure!", "Sure!"), (2, "", ""), (0, "Sure!", "Sure!"), (0, "ok", "")),
        (1, "ok", ""),
    ],
    most=6,
)
@given(turns=st.lists(TURN, min_size=12, max_size=60), most=st.sampled_from([5, 6, 9, 20]))
def test_no_chat_gets_what_was_said_in_another(turns: list[tuple[int, str, str]], most: int) -> None:
    """Three without names take turns, and say some of the same; what is their own names them."""

    async def play() -> None:
        archivist = Archivist(open_store("memory://", StoreLimits(clock=lambda: 0.0, ttl=9e9, max_bytes=2**24, timeout=20)))
        chats: list[list[dict[str, Any]]] = [[], [], []]
        for number, asked, answered in turns:
            chat = chats[number]
            chat.append(
                {"role": "user", "content": asked or f"chat {number} asks about the matter that has number {len(chat)}"}
            )
            request = SimpleNamespace(messages=chat[-most:], restored=(), conversation="", compaction=None, command=None)
            job: Any = SimpleNamespace(
                exchange=SimpleNamespace(tenant="t", header=lambda _: None), request=request, settings=Settings(archive="on"),
                background=False, managed=Managed(), outcome=Telemetry(lambda: 0.0).silent(), prompt=Earlier(),
            )  # fmt: skip
            await archivist.enrich(job)
            await archivist.before_room(job)
            brought = [text_of(message) for message in job.prompt.archived]
            assert {text.partition(" asks")[0] for text in brought if " asks" in text} <= {f"chat {number}"}
            assert {text.partition(" hears")[0] for text in brought if " hears" in text} <= {f"chat {number}"}
            if not any(asked or answered for _, asked, answered in turns):
                assert brought == [text_of(message) for message in chat[:-most]]
            chat.append(
                {"role": "assistant", "content": answered or f"chat {number} hears all about the matter of number {len(chat)}"}
            )

    asyncio.run(play())
