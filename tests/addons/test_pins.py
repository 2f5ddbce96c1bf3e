"""Pins: what a user wants kept word for word, set by messages, on the page and in the configuration."""

from typing import Any

import pytest

from proxy.addons.pins import HEADING
from proxy.core.history.marks import OPEN
from tests.addons.test_compact_now import history, serving
from tests.dialects.asking import PATHS, question, read
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, summariser
from tests.pipeline.talk import Talk, summaries, text_in, user
from tests.proxying import Proxy, running_proxy

RULE = "Answer in metric units, whatever I ask."


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asked(proxy: Proxy, messages: list[dict[str, Any]], text: str) -> str:
    """Send a message at the end of a history, which it and its answer extend."""
    messages.append(said(text))
    answer = proxy.chat({"model": "m", "messages": messages}).json()["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": answer})
    return str(answer)


def at_length(question: Question) -> Reply:
    """An answer that no other conversation has."""
    return Reply(text=" ".join(f"{question.last_user[:40]}, {number}." for number in range(8)))


def system(chat: Any) -> str:
    first = chat.json["messages"][0]
    return str(first["content"]) if first["role"] == "system" else ""


@pytest.mark.parametrize("path", PATHS)
def test_a_pin_is_in_every_prompt_word_for_word_and_its_command_in_none(path: str, stream: bool) -> None:
    with serving() as (fake, proxy):
        messages = [*history(), said(f"/pin {RULE}")]
        answer = read(
            path, proxy.client.post(path, json=question(path, stream=stream, messages=messages)).content, stream=stream
        )
        assert answer.text.startswith("📌 Pinned, ")
        assert " of at most 1,024." in answer.text
        assert not fake.chats()
        messages += [{"role": "assistant", "content": answer.text}]
        for text in ("Hello", "/compact", "And now?"):
            messages.append(said(text))
            told = read(
                path, proxy.client.post(path, json=question(path, stream=stream, messages=messages)).content, stream=stream
            )
            messages.append({"role": "assistant", "content": told.text})
        assert len(summaries(fake)) == 1
        first, *_, last = [chat for chat in fake.chats() if chat not in summaries(fake)]
        assert [system(each).endswith(f"{HEADING}\n- {RULE}") for each in (first, last)] == [True, True]
        assert [OPEN in str(each.json["messages"]) for each in (first, last)] == [False, True]
        assert "/pin" not in str(last.json)
        assert "Pinned, " not in str(last.json)


def test_pins_are_listed_and_removed_by_number() -> None:
    with serving() as (fake, proxy):
        messages = [{"role": "system", "content": "You are brief."}]
        asked(proxy, messages, "/pin one\nin two lines")
        asked(proxy, messages, "My son is called Tom.")
        assert "`/unpin 2` removes" in asked(proxy, messages, "/pin")
        assert asked(proxy, messages, "/pins").split("\n", 1)[1] == "1. one\nin two lines\n2. My son is called Tom."
        assert asked(proxy, messages, "/unpin 1") == "📌 Unpinned: one in two lines"
        assert asked(proxy, messages, "/unpin 7").startswith("⚠️ Nothing was pinned or unpinned: ")
        asked(proxy, messages, "Hello")
        assert system(fake.chats()[-1]) == f"You are brief.\n\n{HEADING}\n- My son is called Tom."
        newest = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]
        assert newest["sentence"].startswith("Sent with 1 pin, ")
        asked(proxy, messages, "/unpin 1")
        assert asked(proxy, messages, "/pins").startswith("📌 Pins of this conversation: none.")
        asked(proxy, messages, "Hello again")
        assert system(fake.chats()[-1]) == "You are brief."


def test_pins_take_an_eighth_of_the_window_at_most() -> None:
    with serving() as (fake, proxy):
        messages: list[dict[str, Any]] = []
        assert asked(proxy, messages, f"/pin {'far too long ' * 1000}").startswith(
            "⚠️ Nothing was pinned or unpinned: 1 pin of "
        )
        assert asked(proxy, messages, "/pin").startswith("⚠️ Nothing was pinned or unpinned: write `/pin TEXT`")
        asked(proxy, messages, "Hello")
        assert system(fake.chats()[-1]) == ""


def test_a_client_that_drops_its_oldest_messages_keeps_its_pins_once_it_was_compacted() -> None:
    with LlamaCppFake([FakeModel("m", 2048)], summariser(at_length)) as fake, running_proxy(fake) as proxy:
        messages: list[dict[str, Any]] = []
        asked(proxy, messages, f"/pin {RULE}")
        for number in range(16):
            asked(proxy, messages, user(number)["content"])
            messages[:-20] = []
        assert RULE not in str(messages)
        assert system(fake.chats()[-1]).endswith(RULE)
        asked(proxy, messages, "/unpin 1")
        asked(proxy, messages, "Hello")
        assert RULE not in str(fake.chats()[-1].json)


def test_an_edited_history_has_the_pins_that_it_shows() -> None:
    with serving() as (fake, proxy):
        messages = history(2)
        asked(proxy, messages, "/pin one")
        asked(proxy, messages, "Hello")
        messages[-4]["content"] = "/pin two"
        asked(proxy, messages, "Hello again")
        assert system(fake.chats()[-1]) == f"{HEADING}\n- two"
        del messages[-6:]
        asked(proxy, messages, "/pins")
        assert asked(proxy, messages, "/pins").endswith("your last message.")


def test_pins_of_the_configuration_stand_in_front_and_no_background_task_has_any() -> None:
    with serving(models={"m": {"pins": [RULE]}}) as (fake, proxy):
        messages: list[dict[str, Any]] = []
        asked(proxy, messages, "/pin one")
        asked(proxy, messages, "Hello")
        assert system(fake.chats()[-1]) == f"{HEADING}\n- {RULE}\n- one"
        proxy.chat({"model": "m", "messages": [said("### Task:\nGenerate a title.")]})
        assert system(fake.chats()[-1]) == ""


def test_viewers_pin_what_they_may_read_and_delete_it_with_the_conversation() -> None:
    keys: dict[str, Any] = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    with serving(**keys) as (fake, proxy):
        anne, bert, boss = ({"x-api-key": f"{name}-key-12345"} for name in ("anne", "bert", "boss"))
        talk = Talk(proxy, key="anne-key-12345", turns=1)
        place = f"/spillway/conversations/{proxy.client.get('/spillway/conversations', headers=anne).json()['conversations'][0]['id']}"
        early = proxy.client.put(f"{place}/pins", headers=anne, json={"pins": [RULE]})
        assert (early.status_code, early.json()["error"]["code"]) == (409, "too_short")
        talk.ask()
        refused = [proxy.client.put(f"{place}/pins", headers=who, json={"pins": [RULE]}).status_code for who in (bert, boss)]
        assert refused == [404, 403]
        for wrong in ({"pins": [3]}, {"pins": "x"}, {"pins": ["far too long " * 1000]}):
            answer = proxy.client.put(f"{place}/pins", headers=anne, json=wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "pins")
        done = proxy.client.put(f"{place}/pins", headers=anne, json={"pins": [RULE]}).json()
        assert done == proxy.client.get(f"{place}/pins", headers=anne).json()
        assert (done["pins"], done["most"]) == ([{"text": RULE, "said": False}], 1024)
        talk.ask()
        assert system(fake.chats()[-1]) == f"You are brief.\n\n{HEADING}\n- {RULE}"
        assert text_in(talk.ask(said("/unpin 1"))).startswith("📌 Unpinned: ")
        talk.ask()
        assert system(fake.chats()[-1]) == "You are brief."
        proxy.client.put(f"{place}/pins", headers=anne, json={"pins": [RULE]})
        assert proxy.client.delete(place, headers=anne).status_code == 200
        talk.ask()
        assert system(fake.chats()[-1]) == "You are brief."
