"""Memory of users: what is kept of whom, where it comes back, and that it never reaches anybody else."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.addons import user_memory
from proxy.core.history.marks import REMEMBERED
from proxy.core.settings import Settings
from proxy.store.sqlite import SqliteDriver
from tests.dialects.asking import PATHS, question, read
from tests.fakes import FakeModel, LlamaCppFake, qa
from tests.proxying import Proxy, running_proxy

KEY, OTHER = "webui-key-12345", "other-key-12345"
NUTS, DESSERT = "I am allergic to nuts.", "Can you suggest a dessert with nuts?"


def of(user: str | None, chat: str | None = "c1", key: str = KEY) -> dict[str, str]:
    """Headers of Open WebUI for a user's chat."""
    named = {"x-openwebui-user-id": user, "x-openwebui-chat-id": chat}
    return {"authorization": f"Bearer {key}", **{name: value for name, value in named.items() if value is not None}}


@contextmanager
def serving(memory: str = "user", **settings: Any) -> Iterator[tuple[LlamaCppFake, Proxy]]:
    fake = LlamaCppFake([FakeModel("m", 8192)], qa())
    with fake, running_proxy(fake, api_keys=(KEY, OTHER), memory=memory, **settings) as proxy:
        yield fake, proxy


def say(proxy: Proxy, text: str, headers: dict[str, str], *before: Any, **fields: Any) -> str:
    messages = [*before, {"role": "user", "content": text}]
    answer = proxy.client.post("/v1/chat/completions", json={"model": "m", "messages": messages, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def sent(fake: LlamaCppFake) -> str:
    """The newest prompt that reached the backend."""
    return str(fake.chats()[-1].json["messages"])


def kept(proxy: Proxy, user: str = "anna", key: str = KEY) -> list[str]:
    answer = proxy.client.get("/spillway/memory", params={"user": user}, headers={"x-api-key": key})
    return [each["text"] for each in answer.json()["statements"]]


def test_a_statement_comes_into_another_conversation_with_its_day_and_not_into_its_own() -> None:
    with serving() as (fake, proxy):
        say(proxy, f"{NUTS} What is 2+2?", of("anna"))
        assert REMEMBERED not in sent(fake)
        said = [{"role": "user", "content": NUTS}, {"role": "assistant", "content": "Noted."}]
        say(proxy, DESSERT, of("anna"), *said)
        assert REMEMBERED not in sent(fake), "it is in the conversation anyway"
        say(proxy, DESSERT, of("anna", "c2"))
        content = fake.chats()[-1].json["messages"][-1]["content"]
        assert content.startswith(REMEMBERED)
        assert f"\n- {NUTS}\n" in content
        assert content.endswith(f"\n\n{DESSERT}")
        say(proxy, "Tell me about heat pumps.", of("anna", "c3"))
        assert REMEMBERED not in sent(fake), "nothing that this message needs"


def test_off_nothing_is_kept_and_a_command_is_the_models() -> None:
    with LlamaCppFake([FakeModel("m")], qa()) as fake, running_proxy(fake, api_keys=(KEY,)) as proxy:
        say(proxy, NUTS, of("anna"))
        say(proxy, DESSERT, of("anna", "c2"))
        say(proxy, "/remember", of("anna", "c2"))
        assert sent(fake) == str([{"role": "user", "content": "/remember"}])
        assert len(fake.chats()) == 3
        assert kept(proxy) == []


@pytest.mark.parametrize(
    ("memory", "headers"),
    [
        ("user", of("bert", "c2")), ("user", of("anna", "c2", OTHER)), ("user", of(None, "c2")), ("user", of("anna", None)),
        ("user", of("anna", "local:socket")), ("user", of("anna", "channel:1")), ("user", of("", "c2")),
        ("key", of(None, None)), ("key", of(None, None, OTHER)),
    ],
)  # fmt: skip
def test_nothing_of_one_user_reaches_another(memory: str, headers: dict[str, str]) -> None:
    with serving(memory) as (fake, proxy):
        say(proxy, NUTS, of("anna"))
        say(proxy, DESSERT, headers)
        assert "allergic" not in sent(fake)
        assert "allergic" not in say(proxy, "/remember", headers)
        say(proxy, "/forget all", headers)
        assert kept(proxy) == [NUTS]


def test_two_names_are_nobodys_and_no_name_is_trusted_without_a_key() -> None:
    with serving() as (fake, proxy):
        say(proxy, NUTS, of("anna"))
        twice = [*of("bert", "c2").items(), ("x-openwebui-user-id", "anna")]
        asked = {"model": "m", "messages": [{"role": "user", "content": DESSERT}]}
        assert proxy.client.post("/v1/chat/completions", json=asked, headers=httpx.Headers(twice)).status_code == 200
        assert "allergic" not in sent(fake)
        unknown = proxy.client.post("/v1/chat/completions", json=asked, headers=of("anna", "c2", "no-key-of-it"))
        assert unknown.status_code == 401
    with pytest.raises(ValueError, match="memory needs api_keys"):
        Settings(memory="user")
    with pytest.raises(ValueError, match="memory needs api_keys"):
        Settings.model_validate({"models": {"m": {"memory": "key"}}})


def test_a_model_may_be_left_out() -> None:
    with serving(models={"m": {"memory": "off"}}) as (_, proxy):
        say(proxy, NUTS, of("anna"))
        assert "nothing is kept here" in say(proxy, "/remember I like tea", of("anna"))
        assert kept(proxy) == []


def test_the_holder_of_a_key_may_be_one_person() -> None:
    with serving("key") as (fake, proxy):
        mine = {"authorization": f"Bearer {OTHER}"}
        say(proxy, NUTS, mine)
        say(proxy, DESSERT, mine)
        assert NUTS in sent(fake)
        assert kept(proxy, "", OTHER) == [NUTS]
        # A name in the form that Open WebUI signs is not read, but shows that there are several users.
        say(proxy, DESSERT, {**mine, "x-openwebui-user-jwt": "e30.e30.AA"})
        assert NUTS not in sent(fake)
        assert kept(proxy, "") == []


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([{"role": "tool", "tool_call_id": "1", "content": NUTS}], {}),
        ([{"role": "assistant", "content": NUTS}, {"role": "user", "content": "Go on."}], {}),
        ([{"role": "system", "content": NUTS}, {"role": "user", "content": "Hello."}], {}),
        ([{"role": "user", "content": "Always answer in French."}], {}),
        ([{"role": "user", "content": f"My PIN is 4711 and my key sk-proj-4f9A8b7C6d5E4f3A. {NUTS[:4]}"}], {}),
        ([{"role": "user", "content": f"[TOOL_RESULT]{NUTS}[/TOOL_RESULT]"}], {}),
        ([{"role": "user", "content": f"### Task:\nGenerate a title.\n{NUTS}"}], {}),
        ([{"role": "user", "content": NUTS}], {"response_format": {"type": "json_object"}}),
    ],
)
def test_nothing_is_kept_of_tools_models_rules_secrets_chores(messages: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "page", "arguments": "{}"}}
    before = [{"role": "user", "content": "Read it."}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    history = [*(before if messages[0]["role"] == "tool" else ()), *messages]
    with serving() as (_, proxy):
        body = {"model": "m", "messages": history, **fields}
        assert proxy.client.post("/v1/chat/completions", json=body, headers=of("anna")).status_code == 200
        assert kept(proxy) == []


@pytest.mark.parametrize("path", PATHS)
def test_commands_are_answered_by_spillway_at_every_door_and_leave_no_trace(path: str, stream: bool) -> None:
    with serving() as (fake, proxy):

        def command(*messages: dict[str, Any]) -> str:
            body = question(path, stream=stream, messages=[*messages])
            return read(path, proxy.client.post(path, json=body, headers=of("anna")).content, stream=stream).text

        asked = {"role": "user", "content": "/remember our server is called kiwi"}
        answer = command(asked)
        assert answer == "🗂️ Memory: remembered."
        assert "kiwi" in command({"role": "user", "content": "/remember"})
        assert "not remembered" in command({"role": "user", "content": "/remember my password is x"})
        assert "not remembered" in command({"role": "user", "content": "/remember always answer in French"})
        assert fake.chats() == []
        command(asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "Hello."})
        assert "/remember" not in sent(fake)
        assert "Memory:" not in sent(fake)
        assert command({"role": "user", "content": "/forget Kiwi server"}) == "🗂️ Memory: 1 statement forgotten."
        assert command({"role": "user", "content": "/forget kiwi"}) == "🗂️ Memory: 0 statements forgotten."
        assert kept(proxy) == []


def test_the_newest_value_holds() -> None:
    with serving() as (fake, proxy):
        for number, text in enumerate(("I live in Berlin.", "Ich wohne in Köln.", "We use Postgres 15.", NUTS)):
            say(proxy, text, of("anna", f"c{number}"))
        say(proxy, "We moved to Postgres 16.", of("anna", "c9"))
        assert kept(proxy) == ["Ich wohne in Köln.", "We use Postgres 15.", NUTS, "We moved to Postgres 16."]
        say(proxy, "How do I upgrade Postgres?", of("anna", "d1"))
        assert 0 < sent(fake).find("Postgres 15") < sent(fake).find("Postgres 16")
        say(proxy, NUTS.lower(), of("anna", "d2"))
        assert kept(proxy)[-1] == NUTS.lower()
        assert NUTS not in kept(proxy)


def test_an_edited_message_and_a_deleted_conversation_tell_nothing_any_more() -> None:
    with serving() as (_, proxy):
        say(proxy, NUTS, of("anna"))
        say(proxy, "I am allergic to fish.", of("anna"))
        assert kept(proxy) == ["I am allergic to fish."], "sent again in other words"
        say(proxy, "I like tea.", of("anna", "c2"))
        rows = proxy.client.get("/spillway/conversations", headers=of(None)).json()["conversations"]
        fish = next(row["id"] for row in rows if "fish" in row["title"] or "nuts" in row["title"])
        assert proxy.client.delete(f"/spillway/conversations/{fish}", headers=of(None)).status_code == 200
        assert kept(proxy) == ["I like tea."]


def test_what_is_forgotten_is_gone_from_the_file_and_was_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = tmp_path / "store.sqlite3"
    with serving(store=f"sqlite:///{store}", log_level="debug") as (_, proxy):
        say(proxy, NUTS, of("anna"))
        say(proxy, "I like tea.", of("anna", "c2"))
        say(proxy, DESSERT, of("anna", "c3"))

        def stored() -> bytes:
            return b"".join(path.read_bytes() for path in tmp_path.iterdir())

        assert b"allergic" in stored()
        say(proxy, "/forget nuts", of("anna", "c4"))
        assert kept(proxy) == ["I like tea."]
        assert b"allergic" not in stored()
        answer = proxy.client.delete("/spillway/memory", params={"user": "anna"}, headers=of(None))
        assert answer.json() == {"deleted": 1}
        assert b"like tea" not in stored()
    logged = [each.getMessage() for each in caplog.records if not each.name.startswith("http")]  # the client's own
    assert not [line for line in logged if "allergic" in line or "anna" in line or "tea" in line]


def test_a_page_deletes_one_statement_and_shows_nothing_to_other_keys_or_admins() -> None:
    with serving(admin_keys=("boss-key-12345",), allow=("content",)) as (_, proxy):
        say(proxy, NUTS, of("anna"))
        say(proxy, "I like tea.", of("anna", "c2"))
        found = proxy.client.get("/spillway/memory?user=anna", headers=of(None)).json()["statements"]
        params = {"user": "anna", "statement": found[0]["id"]}
        boss = {"x-api-key": "boss-key-12345"}
        for viewer in (boss, of(None, key=OTHER)):
            assert proxy.client.get("/spillway/memory?user=anna", headers=viewer).json() == {"statements": []}
            assert proxy.client.delete("/spillway/memory", params=params, headers=viewer).json() == {"deleted": 0}
        assert proxy.client.delete("/spillway/memory", params=params, headers=of(None)).json() == {"deleted": 1}
        assert kept(proxy) == ["I like tea."]


def test_the_statement_used_least_lately_goes_first_and_old_ones_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_memory, "MOST", 3)
    now = [1_700_000_000.0]
    with serving(clock=lambda: now[0], store_ttl=1000.0) as (fake, proxy):
        for number, text in enumerate((NUTS, "I like tea.", "I speak Polish.")):
            say(proxy, text, of("anna", f"c{number}"))
            now[0] += 10
        say(proxy, DESSERT, of("anna", "d1"))
        assert NUTS in sent(fake)
        say(proxy, "I play chess.", of("anna", "d2"))
        assert kept(proxy) == [NUTS, "I speak Polish.", "I play chess."], "nuts were needed since"
        now[0] += 985
        say(proxy, "I collect stamps.", of("anna", "d3"))
        assert kept(proxy) == [NUTS, "I play chess.", "I collect stamps."]


def test_a_store_that_fails_costs_the_memory_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("no disk")

    with serving() as (fake, proxy):
        say(proxy, NUTS, of("anna"))
        with monkeypatch.context() as patched:
            patched.setattr(SqliteDriver, "execute", broken)
            say(proxy, DESSERT, of("anna", "c2"))
            say(proxy, "I like tea.", of("anna", "c3"))
            assert [REMEMBERED in str(each.json) for each in fake.chats()] == [False] * 3
            assert "the store does not answer" in say(proxy, "/remember", of("anna", "c4"))
            assert "the store does not answer" in say(proxy, "/forget nuts", of("anna", "c4"))
            assert proxy.client.get("/spillway/memory?user=anna", headers=of(None)).json() == {"statements": None}
            assert proxy.client.delete("/spillway/memory?user=anna", headers=of(None)).status_code == 503


def test_what_was_told_nearby_is_not_sent_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (fake, proxy):
        say(proxy, NUTS, of("anna"))
        upstream = proxy.app.state.services.relay.router.upstreams[0]
        monkeypatch.setattr(upstream, "near", False)
        say(proxy, DESSERT, of("anna", "c2"))
        assert "allergic" not in sent(fake)
        monkeypatch.setattr(upstream, "near", True)
        say(proxy, DESSERT, of("anna", "c3"))
        assert NUTS in sent(fake)
