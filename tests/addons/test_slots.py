"""A conversation stays in its own slot of a llama-server; what gives way is saved, restored, and purged with the store."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.addons import slots
from proxy.core.settings import BackendSetting
from tests.addons.test_conversation_summary import Model
from tests.addons.test_conversation_summary import Talk as Summarised
from tests.engine.cache import cached_model
from tests.engine.server import llama_server
from tests.engine.spec import ModelSpec
from tests.fakes import FakeModel, LlamaCppFake, Reply
from tests.fakes.waiting import HEADERS, Gate, wait_until
from tests.pipeline.talk import MODEL, long_winded, readings, summaries
from tests.pipeline.talk import Talk as Due
from tests.proxying import Proxy, metric, running_proxy

WORDS = " ".join(f"word{number}" for number in range(300))
Talk = list[dict[str, Any]]


def say(proxy: Proxy, talk: Talk, text: str, key: str = "a", **fields: Any) -> int:
    """Take a turn; the tokens of its prompt."""
    talk.append({"role": "user", "content": f"{text} {WORDS}"})
    body = {"model": "m", "messages": talk, "max_tokens": 8, **fields}
    answer = proxy.chat(body, authorization=f"Bearer {key}").json()
    talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return int(answer["usage"]["prompt_tokens"])


def saved(fake: LlamaCppFake, count: int) -> list[str]:
    """The files of so many saves, once they are made."""
    wait_until(lambda: len(fake.acted) == count)
    return [each.removeprefix("save ") for each in fake.acted]


def save_each(proxy: Proxy, fake: LlamaCppFake, talks: list[Talk]) -> list[str]:
    """Take a turn of each; the files in which they are saved."""
    return [saved(fake, at + 1)[at] for at, talk in enumerate(talks) if say(proxy, talk, f"talk {at}")]


def take_turns(proxy: Proxy, talks: list[Talk], turns: int = 3) -> int:
    """Have conversations take turns; the tokens of their prompts."""
    return sum(say(proxy, talk, f"talk {at} turn {turn}") for turn in range(turns) for at, talk in enumerate(talks))


def restores(fake: LlamaCppFake) -> list[str]:
    return [each for each in fake.acted if each.startswith("restore")]


def engine(**options: Any) -> LlamaCppFake:
    return LlamaCppFake([FakeModel("m", 32768)], **options)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "QUIET", 0.0)


@pytest.mark.parametrize(("saves", "asked"), [(False, []), (True, ["/slots"])])
def test_a_server_that_saves_or_shows_no_slots_chooses_them_itself(saves: bool, asked: list[str]) -> None:
    talk: Talk = []
    with engine(slots=2, saves=saves) as fake, running_proxy(fake) as proxy:
        del fake.routes["GET /slots"]
        say(proxy, talk, "first")
        sent = len(fake.requests)
        say(proxy, talk, "second")
        assert "id_slot" not in fake.chats()[-1].json
        assert [each.path for each in fake.requests[sent:]] == [*asked, "/v1/chat/completions"]


def test_conversations_take_turns_in_slots_of_their_own() -> None:
    with engine(slots=2, saves=True) as fake, running_proxy(fake) as proxy:
        take_turns(proxy, [[], []])
        assert [chat.json["id_slot"] for chat in fake.chats()] == [0, 1] * 3
        assert not restores(fake)
        raw = b'{ "id": 1,  "model":"m", "max_tokens": 8, "messages": [{"role": "user", "content": "spaces"} ] }'
        proxy.client.post("/v1/chat/completions", content=raw)
        assert fake.chats()[-1].body == raw.replace(b"{", b'{"id_slot":0,', 1)


def test_a_new_conversation_takes_the_slot_that_begins_like_it() -> None:
    agent: Talk = [{"role": "system", "content": f"You are an agent. {WORDS}"}]
    with engine(slots=2, saves=True) as fake, running_proxy(fake) as proxy:
        for talk in ([], [*agent], [], [*agent], [*agent]):
            say(proxy, talk, f"talk {len(fake.chats())}")
        assert [chat.json["id_slot"] for chat in fake.chats()] == [0, 1, 0, 1, 1]


def test_what_gives_way_is_restored_for_its_own_credential_alone(tmp_path: Path) -> None:
    talks: list[Talk] = [[], [], []]
    store = f"sqlite:///{tmp_path}/store.db"
    with engine(slots=2, saves=True) as fake:
        with running_proxy(fake, store=store) as proxy:
            files = save_each(proxy, fake, talks)
            other = [dict(each) for each in talks[0]]
            say(proxy, other, "of another", key="b")
            assert not restores(fake)
            saved(fake, 4)
            say(proxy, talks[0], "again")
            assert f"restore {files[0]}" in fake.acted
            assert sum(metric(proxy, "spillway_slots_restored_tokens_total").values()) > slots.LEAST
            saved(fake, 6)
        fake.held = [(0, 0)] * 2  # both are started again
        with running_proxy(fake, store=store) as proxy:
            say(proxy, talks[1], "after a restart")
            assert fake.acted.count(f"restore {files[1]}") == 1


def test_what_a_server_moves_to_memory_is_saved_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file is lost the server chooses, once, for it may have it in memory."""
    monkeypatch.setattr(slots, "QUIET", 60.0)
    talks: list[Talk] = [[], []]
    with engine(slots=2, saves=True, clears=True) as fake, running_proxy(fake) as proxy:
        take_turns(proxy, talks)
        done = [each.partition(" spillway-")[0] + each[-6] for each in fake.acted]
        assert done == ["save0", "save1", "restore0", "save0", "restore1", "save1", "restore0"]
        fake.saved.clear()
        take_turns(proxy, talks[:1], 2)
        assert ["id_slot" in chat.json for chat in fake.chats()] == [*[True] * 6, False, True]


def purge(proxy: Proxy) -> None:
    store = proxy.app.state.services.summaries.store
    asyncio.run_coroutine_threadsafe(store.purge(), proxy.loop).result(20)


def test_a_purged_store_restores_nothing_and_has_the_files_emptied() -> None:
    talk: Talk = []
    with engine(saves=True) as fake, running_proxy(fake) as proxy:
        say(proxy, talk, "secret")
        (name,) = saved(fake, 1)
        purge(proxy)
        say(proxy, [], "something else")
        assert fake.acted[1] == f"save {name}", "overwritten with an empty slot"
        wait_until(lambda: len(fake.acted) == 3)
        say(proxy, talk, "again")
        assert not restores(fake)


def test_files_that_nobody_knows_any_more_are_emptied() -> None:
    """The store was purged, or the list has expired, while Spillway was off."""
    with engine(saves=True) as fake:
        with running_proxy(fake) as proxy:
            say(proxy, [], "secret")
            (name,) = saved(fake, 1)
        with running_proxy(fake) as proxy:
            say(proxy, [], "something else")
            assert fake.acted[1:3] == [f"restore {name}", f"save {name}"]


@pytest.mark.parametrize(("words", "placed"), [(100, [1, 1, 0, 0]), (300, [1, 1, 0])])
def test_a_refused_summary_leaves_a_chat_in_its_slot(monkeypatch: pytest.MonkeyPatch, words: int, placed: list[int]) -> None:
    """The prompt with an extract is read there, and a summary asked for in the other, with a transcript."""
    monkeypatch.setattr(slots, "QUIET", 60.0)
    with LlamaCppFake([MODEL], long_winded, slots=2, saves=True) as fake, running_proxy(fake, ahead="on") as proxy:
        Due(proxy).ask({"role": "user", "content": "word " * words})
        wait_until(lambda: len(summaries(fake)) + len(readings(fake)) == len(placed))
        assert [request.json["id_slot"] for request in (*summaries(fake), *readings(fake))] == placed
        assert restores(fake) == []


def test_what_was_purged_is_emptied_when_a_slot_that_stays_is_quiet() -> None:
    talks: list[Talk] = [[], []]
    with engine(slots=2, saves=True) as fake, running_proxy(fake) as proxy:
        files = save_each(proxy, fake, talks)
        purge(proxy)
        say(proxy, talks[0], "it goes on")
        wait_until(lambda: len(restores(fake)) == 1)
        assert [fake.saved[name] for name in files] == [0, 0]
        assert fake.held[0][1] == max(fake.saved.values()) > slots.LEAST, "it is back, saved under a new name"


@pytest.mark.parametrize(("bound", "most"), [("MOST_FILES", 1), ("MOST_BYTES", 1000)])
def test_the_longest_unused_files_are_emptied_beyond_the_bound(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    monkeypatch.setattr(slots, bound, most)
    talks: list[Talk] = [[], [], []]
    with engine(saves=True) as fake, running_proxy(fake) as proxy:
        files = save_each(proxy, fake, talks[:2])
        say(proxy, talks[2], "talk 2")
        wait_until(lambda: fake.saved[files[0]] != 0)  # the name is free, so it is the third one's
        say(proxy, talks[1], "again")
        assert restores(fake) == [f"restore {files[1]}"], "the one that was used last stays"
        say(proxy, talks[0], "again")
        assert len(restores(fake)) == 1


@pytest.mark.parametrize("what", ["", "/summary"])
def test_what_a_viewer_has_deleted_is_neither_saved_nor_restored(what: str) -> None:
    with LlamaCppFake(brain=Model(), window=2048, saves=True) as fake, running_proxy(fake, recall="off") as proxy:
        talk = Summarised(proxy, fake, Model(), {})
        (name,) = saved(fake, 1)
        assert proxy.client.delete(f"/spillway/conversations/{talk.id}{what}").status_code == 200
        assert fake.acted[1] == f"save {name}", "overwritten with an empty slot"
        assert fake.saved[name] == 0
        proxy.chat({"model": "m", "messages": [{"role": "user", "content": "else"}], "max_tokens": 8})
        talk.turn("Again")
        assert not restores(fake)


def test_of_two_slots_that_hold_a_conversation_the_one_that_was_used_last_goes_on() -> None:
    gates = [Gate(HEADERS), Gate(HEADERS)]
    waiting = iter(gates)
    asked: Talk = [{"role": "user", "content": WORDS}]
    body = {"model": "m", "stream": True, "messages": asked, "max_tokens": 8}
    with (
        engine(slots=2, saves=True, brain=lambda _: Reply(text="Yes.", gate=next(waiting, None))) as fake,
        running_proxy(fake, grace=0.01, heartbeat=0.01) as proxy,
        ExitStack() as opened,
    ):
        proxy.client.headers["authorization"] = "Bearer a"
        streams = list[httpx.Response]()
        for gate in gates:
            streams.append(opened.enter_context(proxy.client.stream("POST", "/v1/chat/completions", json=body)))
            gate.wait_reached()  # the response opens before that: it could come second, or when the first has gone
        for gate, stream in zip(gates, streams, strict=True):
            gate.open()
            stream.read()
        say(proxy, [*asked, {"role": "assistant", "content": "Yes."}], "and then")
        assert [chat.json["id_slot"] for chat in fake.chats()] == [0, 1, 1]


def test_a_request_that_finds_no_slot_free_says_that_it_waits_for_one() -> None:
    gate = Gate(HEADERS)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": WORDS}], "max_tokens": 8}
    with (
        engine(saves=True, gate=gate) as fake,
        running_proxy(fake, grace=0.01, heartbeat=0.01) as proxy,
        proxy.client.stream("POST", "/v1/chat/completions", json=body) as first,
    ):
        gate.wait_reached(20)
        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as second:
            parts, seen = second.iter_bytes(), b""
            while slots.FREE_SLOT.encode() not in seen:
                seen += next(parts)
            assert len(fake.chats()) == 1
            gate.open()
            assert b"[DONE]" in b"".join(parts)
        first.read()


def test_what_takes_longer_to_restore_than_to_read_is_read() -> None:
    with engine(saves=True, slot_ms=1e9) as fake, running_proxy(fake) as proxy:
        take_turns(proxy, [[], []])
        assert len(restores(fake)) == 1, "that showed it"


def test_slots_that_are_read_anew_all_the_same_are_left_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of hybrid and recurrent models are, and of those with a sliding window (llama.cpp issue 27813)."""
    monkeypatch.setattr(LlamaCppFake, "usage_details", lambda *_: {"prompt_tokens_details": {"cached_tokens": 0}})
    with engine(saves=True) as fake, running_proxy(fake) as proxy:
        take_turns(proxy, [[], []])
        assert len(restores(fake)) == slots.IN_VAIN


def test_the_real_server_reads_nothing_again_that_gave_way(tmp_path: Path) -> None:
    model, talks = cached_model(ModelSpec(mode="walk")), [Talk(), Talk()]
    (tmp_path / "slots").mkdir()
    with (
        llama_server(
            model.path, log=tmp_path / "log", alias="m", ctx=8192, cache_ram=0, slot_save_path=f"{tmp_path}/slots/"
        ) as server,
        running_proxy(BackendSetting(url=server.url, name="llamacpp")) as proxy,
    ):
        prompts = take_turns(proxy, talks, 2)
        assert sum(metric(proxy, "spillway_slots_restored_tokens_total").values()) > 2 * slots.LEAST
        read = httpx.get(f"{server.url}/metrics", trust_env=False).text.partition("\nllamacpp:prompt_tokens_total ")[2]
        assert float(read.split()[0]) < 0.8 * prompts, "a prompt was read twice"
