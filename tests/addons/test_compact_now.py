"""Compaction on demand, by a message and by id: what its client is told, what the model reads, and what holds afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.core.history.marks import OPEN
from tests.dialects.asking import PATHS, question, read
from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.pipeline.talk import Talk, summaries, user
from tests.proxying import Proxy, metric, running_proxy

FOCUS = "the code of item2"


@contextmanager
def serving(window: int = 8192, **settings: Any) -> Iterator[tuple[LlamaCppFake, Proxy]]:
    with LlamaCppFake([FakeModel("m", window)], summariser(qa())) as fake, running_proxy(fake, **settings) as proxy:
        yield fake, proxy


def history(turns: int = 8) -> list[dict[str, Any]]:
    said = [[user(number), {"role": "assistant", "content": "Noted."}] for number in range(turns)]
    return [message for turn in said for message in turn]


@pytest.mark.parametrize("path", PATHS)
def test_a_command_is_answered_by_spillway_and_holds_for_the_next_request(path: str, stream: bool) -> None:
    with serving() as (fake, proxy):
        command = {"role": "user", "content": f"/compact {FOCUS}"}
        asked = question(path, stream=stream, messages=[*history(), command])
        answer = read(path, proxy.client.post(path, json=asked).content, stream=stream)
        assert answer.text.startswith("✅ Conversation compacted: ")
        assert answer.finish in ("stop", "completed", "end_turn")
        assert len(fake.chats()) == len(summaries(fake)) == 1
        assert sum(metric(proxy, "spillway_compactions_on_demand_total").values()) == 1
        assert FOCUS in str(fake.chats()[0].json["messages"][-1])
        later = [*history(), command, {"role": "assistant", "content": answer.text}, user(9)]
        proxy.client.post(path, json=question(path, stream=stream, messages=later))
        sent = str(fake.chats()[-1].json["messages"])
        assert len(summaries(fake)) == 1
        assert OPEN in sent
        assert "about2x3 " not in sent
        assert "/compact" not in sent
        assert "Conversation compacted" not in sent


def test_what_was_done_is_told_once() -> None:
    with serving() as (_, proxy):
        asked = {"model": "m", "messages": [*history(), {"role": "user", "content": "/compact"}], "stream": True}
        told = proxy.chat(asked).text
        assert told.count("tokens. A summary by the model replaces what came before") == 1
        assert [words in told for words in ("Conversation shortened", "did not help")] == [False, False]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "user", "content": "/compact"}], "⚠️ Nothing was compacted: "),
        ([*history(1), {"role": "user", "content": [{"type": "text", "text": " /compact\n"}]}], "⚠️ Nothing was "),
        ([{"role": "user", "content": "/compaction of soil"}], "Noted."),
        ([{"role": "user", "content": "What does /compact do?"}], "Noted."),
        ([{"role": "user", "content": "/compact: failed at 10:02\n/compact: failed at 10:03"}], "Noted."),
        ([{"role": "user", "content": "/compact the log\nand tell me what it says"}], "Noted."),
        ([{"role": "user", "content": " " * 300 + "/compact" + " \n" * 700 + "y" * 2_100}], "Noted."),
    ],
)
def test_what_is_no_command_or_finds_nothing_to_do(messages: list[dict[str, Any]], says: str) -> None:
    with serving() as (fake, proxy):
        answer = proxy.chat({"model": "m", "messages": messages}).json()
        assert answer["choices"][0]["message"]["content"].startswith(says)
        assert len(fake.chats()) == (says == "Noted.")


def test_a_conversation_is_compacted_by_id_with_its_own_credentials_and_for_its_own_tenant() -> None:
    keys: dict[str, Any] = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    with serving(**keys) as (fake, proxy):
        talk = Talk(proxy, key="anne-key-12345", turns=8)
        talk.ask()
        anne, bert, boss = ({"x-api-key": f"{name}-key-12345"} for name in ("anne", "bert", "boss"))
        row = proxy.client.get("/spillway/conversations", headers=anne).json()["conversations"][0]
        path = f"/spillway/conversations/{row['id']}/compact"
        refused = [proxy.client.post(path, headers=head).status_code for head in (bert, boss)]
        assert refused == [404, 403]
        assert not summaries(fake)
        done = proxy.client.post(path, headers=anne, json={"focus": FOCUS}).json()
        assert done["compacted"] is True
        assert done["tokens_before"] > done["tokens_after"]
        assert done["summary"] == "written"
        assert FOCUS in str(summaries(fake)[0].json["messages"][-1])
        talk.ask()
        assert OPEN in str(fake.chats()[-1].json["messages"])
        assert len(summaries(fake)) == 1
        rows = proxy.client.get("/spillway/conversations", headers=anne).json()["conversations"]
        assert [each["id"] for each in rows] == [row["id"]]


def test_a_conversation_that_is_not_kept_says_what_to_do() -> None:
    with serving() as (_, proxy):
        answer = proxy.client.post("/spillway/conversations/c_gone/compact", json={"focus": ""})
        assert answer.status_code == 404
        assert "comes back with its next request" in answer.json()["error"]["message"]
        Talk(proxy, turns=1)
        row = proxy.client.get("/spillway/conversations").json()["conversations"][0]
        wrong = proxy.client.post(f"/spillway/conversations/{row['id']}/compact", json={"focus": 3})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "focus")
