"""Clients that change their own past: they send the newest messages only, or a note in place of old results."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from proxy.core.jsontext import dumps
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.histories import assistant, function, user
from tests.prefix import common
from tests.proxying import UNREDUCED, Proxy, read_stream, running_proxy
from tests.store.support import RedisServer, redis_server

__all__ = ["redis_server"]

pytestmark = pytest.mark.slow

Messages = list[dict[str, Any]]
Client = Callable[[Messages], Messages]
WINDOW, TURNS, FIRST = 8192, 60, 24
SECRET = "ZEBRA-4711"
TOOLS = [function("read", "Reads.")]


def words(topic: str, count: int) -> str:
    return " ".join(f"{topic}{number}" for number in range(count))


def newest(most: int, first: int = 0) -> Client:
    """A rolling window; `first`: how many of the oldest it holds on to."""
    return lambda history: [*history[:first], *history[max(first, len(history) - most) :]]


def clearing(most: int, note: str) -> Client:
    """One that leaves results in the newest messages alone."""
    return lambda history: [
        message if message["role"] != "tool" or at >= len(history) - most
        else {**message, "content": note.format(len(message["content"]) // 7)}
        for at, message in enumerate(history)
    ]  # fmt: skip


def one_at_a_time(history: Messages) -> Messages:
    return history[-40 + len(history) // 2 % 2 :]


@dataclass
class Talk:
    """A conversation, and what its client makes of it."""

    proxy: Proxy
    fake: LlamaCppFake
    client: Client = list
    agent: bool = False
    topic: str = "t"
    system: str = "You help."
    streamed: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    """Without the system prompt."""

    def __post_init__(self) -> None:
        self.history: Messages = [user(f"Go through all of it. The word is {SECRET}. " + words(self.topic, 20))]

    def turn(self, size: int = 100) -> None:
        number = len(self.actions)
        clock = f"{self.system} It is 10:{number:02}."
        sent = [{"role": "system", "content": clock}, *self.client(self.history)]
        body = {"model": "m", "messages": sent, "stream": self.streamed, **({"tools": TOOLS} if self.agent else {})}
        answer = self.proxy.chat(body, **self.headers)
        assert answer.status_code == 200, answer.text
        self.actions.append(answer.headers["x-spillway-action"])
        self.prompts.append(dumps(self.fake.chats()[-1].json["messages"][1:]).decode())
        told = read_stream(answer.content).text if self.streamed else answer.json()["choices"][0]["message"]["content"]
        if self.agent:
            call = {"id": f"{self.topic}{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            self.history += [
                assistant(f"Part {number}. {words('seen', 20)}", tool_calls=[call]),
                {"role": "tool", "tool_call_id": call["id"], "content": words(f"{self.topic}{number}x", size)},
            ]
        else:
            self.history += [assistant(told), user(f"Question {number}. " + words(f"{self.topic}{number}q", size))]

    def reduced(self, since: int = 0) -> int:
        return sum(action not in UNREDUCED for action in self.actions[since:])


@contextmanager
def talking(**settings: Any) -> Iterator[tuple[LlamaCppFake, Proxy]]:
    def brain(question: Question) -> Reply:
        said = len(question.last_user)
        return Reply(text=f"That makes {said}. " + words(f"a{question.last_user[:14]}", 60))

    with LlamaCppFake([FakeModel("m", WINDOW, tools=True)], brain) as fake:
        with running_proxy(fake, **settings) as proxy:
            yield fake, proxy
        assert (fake.overflows, fake.invalid_histories) == (0, [])


CLIENTS: dict[str, tuple[Client, bool]] = {
    "newest forty": (newest(41), False),
    "newest forty, begins with an answer": (newest(40), False),
    "one message at a time": (one_at_a_time, False),
    "first and newest": (newest(40, first=1), False),
    "clears old results": (clearing(24, "[Old tool result content cleared]"), True),
    "clears with a count": (clearing(12, "Old environment output: ({} lines omitted)"), True),
    "cuts calls from their results": (newest(31), True),
    "first and newest, cuts calls": (newest(31, first=1), True),
    "window that holds no word of the user": (newest(32), True),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_changes_its_past_is_rarely_shortened(name: str) -> None:
    client, agent = CLIENTS[name]
    with talking() as (fake, proxy):
        talk = Talk(proxy, fake, client, agent, streamed=name == "newest forty")
        for _ in range(TURNS):
            talk.turn()
        assert 0 < talk.reduced(FIRST) <= (TURNS - FIRST) / 5 + 1  # where it begins to count decides on one
        repeated = [common(a, b) / len(b) for a, b in zip(talk.prompts, talk.prompts[1:], strict=False)]
        assert median(repeated[FIRST:]) > 0.5
        assert all(SECRET in prompt for prompt in talk.prompts)
        assert len(proxy.client.get("/spillway/conversations").json()["conversations"]) == 1


def test_what_was_left_out_stays_covered_where_nothing_of_the_covered_is_sent_any_more() -> None:
    with talking() as (fake, proxy):
        talk = Talk(proxy, fake, newest(17))
        for turn in range(40):
            talk.turn(300 if turn < 14 else 10)
        assert talk.reduced() > 0
        assert talk.reduced(15) == 0
        assert all(SECRET in prompt for prompt in talk.prompts)


def begun(proxy: Proxy, fake: LlamaCppFake, **fields: Any) -> Talk:
    """One whose client has left its beginning out of a history that was shortened, and would go on so."""
    talk = Talk(proxy, fake, newest(21), **fields)
    while not (talk.actions and talk.actions[-1] in UNREDUCED and SECRET not in str(talk.client(talk.history))):
        talk.turn()
        assert len(talk.actions) < TURNS
    return talk


def edited(speaker: str) -> Client:
    def change(history: Messages) -> Messages:
        sent = newest(21)(history)
        at = next(at for at in range(4, 8) if sent[at]["role"] == speaker)
        return [*sent[:at], {**sent[at], "content": "Never mind."}, *sent[at + 1 :]]

    return change


def alike(history: Messages) -> Messages:
    """Another conversation that begins as this one's window does, and soon goes its own way."""
    return [*newest(21)(history)[:7], user("And now for something else.")]


OTHERS: dict[str, dict[str, Any]] = {
    "credential": {"headers": {"authorization": "Bearer another"}},
    "system prompt": {"system": "You are somebody else."},
    "conversation, by its name": {"headers": {"session-id": "another"}},
    "user's words": {"client": edited("user")},
    "answer": {"client": edited("assistant")},
    "conversation that begins alike": {"client": alike},
    "order": {"client": lambda history: [*newest(21)(history)[1:3], *newest(21)(history)]},
}


@pytest.mark.parametrize("other", [{}, *OTHERS.values()], ids=["none", *OTHERS])
def test_another_one_gets_nothing_of_what_was_left_out(other: dict[str, Any]) -> None:
    with talking() as (fake, proxy):
        talk = begun(proxy, fake)
        for name, value in other.items():
            setattr(talk, name, value)
        talk.turn()
        assert (SECRET in talk.prompts[-1]) == (not other)


def test_few_words_are_not_enough_to_be_taken_for_another_conversation() -> None:
    with talking() as (fake, proxy):
        talk = begun(proxy, fake)
        chat: Sequence[dict[str, Any]] = [user("Hi"), assistant("Hello!"), user("Thanks"), assistant("You're welcome!")]
        talk.history += [assistant("Fine."), *chat, user(words("more", 1_500))]
        talk.turn()
        talk.client = lambda history: [*chat, history[-3], assistant("It is."), user("Bye")]
        talk.turn()
        assert SECRET not in talk.prompts[-1]


@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_what_is_deleted_leads_nowhere_any_more(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server: RedisServer | None = request.getfixturevalue("redis_server") if store == "redis" else None
    path = tmp_path / "store.sqlite3"
    url = "memory://" if store == "memory" else f"sqlite:///{path}" if server is None else server.url
    with talking(store=url) as (fake, proxy):
        talk = begun(proxy, fake)
        for _ in range(20):  # further checkpoints, and one that is led to from elsewhere than at first
            talk.turn()
        (row,) = proxy.client.get("/spillway/conversations").json()["conversations"]
        assert proxy.client.delete(f"/spillway/conversations/{row['id']}").status_code == 200
        if store == "sqlite":
            with closing(sqlite3.connect(path)) as db:
                assert db.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)
        talk.turn()
        assert SECRET not in talk.prompts[-1]
