"""The policy `local` and what agents put in front of every prompt, seen from the backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.neutral.request import text_of
from proxy.settings import ModelSetting
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, qa, summariser
from tests.proxying import Proxy, running_proxy
from tests.shaping.test_guide import ASK, FORMS, GUIDE, RULES, claude, opencode, text

WINDOW = 16_000


@contextmanager
def staged(window: int = WINDOW, **settings: Any) -> Iterator[tuple[FakeBackend, Proxy]]:
    with (
        LlamaCppFake([FakeModel("m", window)], summariser(qa())) as fake,
        running_proxy(fake, **{"policy": "local", **settings}) as proxy,
    ):
        yield fake, proxy


def ask(proxy: Proxy, messages: list[dict[str, Any]], **fields: Any) -> Any:
    answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def said(answer: Any) -> dict[str, Any]:
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


# The guide layer


@pytest.mark.parametrize("form", FORMS)
def test_a_guide_is_brought_within_bounds_and_stays_so_while_the_conversation_grows(form: Any) -> None:
    with staged() as (fake, proxy):
        messages = form(GUIDE)
        for number in range(4):
            answer = ask(proxy, messages)
            assert answer.headers["x-spillway-action"] == "forwarded"
            saved = int(answer.headers["x-spillway-shaped"].removeprefix("guide="))
            assert saved > 800
            messages += [said(answer), {"role": "user", "content": f"And {number}?"}]
        sent = [chat.json["messages"] for chat in fake.chats()]
    assert all(now[: len(before)] == before for before, now in itertools.pairwise(sent))
    for rule in RULES:
        assert rule in text(sent[0])
    assert ASK in text_of(sent[0][-1])


@pytest.mark.parametrize("policy", ["standard", "auto"])
def test_without_the_switch_a_guide_is_as_it_is_sent(policy: str, tmp_path: Path) -> None:
    own = tmp_path / "own.md"
    own.write_text("OWN")
    body = {"model": "m", "messages": opencode(GUIDE), "max_tokens": 20}
    with staged(policy=policy, guide_file=own) as (fake, proxy):
        answer = proxy.chat(body)
        assert "x-spillway-shaped" not in answer.headers
        assert fake.chats()[-1].json == body


@pytest.mark.parametrize("form", FORMS)
def test_a_version_of_the_users_own_stands_for_a_guide(form: Any, tmp_path: Path) -> None:
    own = tmp_path / "AGENTS.local.md"
    own.write_text("Run `make test`. Touch nothing else.\n")
    with staged(models={"m": ModelSetting(guide_file=own)}) as (fake, proxy):
        ask(proxy, form(GUIDE))
        assert text(fake.chats()[-1].json["messages"]) == text(form("Run `make test`. Touch nothing else."))


def test_a_limit_for_guides_holds_whatever_the_policy() -> None:
    with staged(policy="standard", limits={"guide": 300}) as (fake, proxy):
        ask(proxy, claude(GUIDE))
        assert len(text(fake.chats()[-1].json["messages"])) < 2000 < len(GUIDE)
