"""A conversation whose next turn would be due, and what is seen of what is done about it."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from tests.fakes import Brain, FakeBackend, FakeModel, Gate, Question, Reply, asks_summary, qa, summariser
from tests.fakes.http import Recorded
from tests.fakes.waiting import wait_until
from tests.proxying import Proxy, metric

WINDOW = 2048
MODEL = FakeModel("m", WINDOW)
BECAME = re.compile(r'became="(\w+)"')


def holding(gate: Gate, brain: Brain | None = None) -> Brain:
    """A model whose summaries have to pass a gate."""
    talks = summariser(brain or qa())

    def answer(question: Question) -> Reply:
        reply = talks(question)
        return replace(reply, gate=gate) if asks_summary(question) else reply

    return answer


def long_winded(question: Question) -> Reply:
    """Answers in a word, but at length where that is asked for; it thinks before it does."""
    if "At length" not in question.last_user:
        return Reply(text="Noted.")
    return Reply(text=" ".join(f"long{number}" for number in range(350)), reasoning="Let me see.")


def user(number: int, topic: str = "item") -> dict[str, Any]:
    words = " ".join(f"about{number}x{i}" for i in range(40))
    return {"role": "user", "content": f"Remember: the code of {topic}{number} is c{number}. {words}"}


@dataclass
class Talk:
    """A client that sends all of it each time. Its seventh answer fills the window so far that an eighth turn would be due."""

    proxy: Proxy
    topic: str = "item"
    key: str = "a-key"
    turns: int = 6
    """That were before, of which only the first was asked here."""

    def __post_init__(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are brief."}]
        for number in range(self.turns):
            self.messages.append(user(number, self.topic))
            if number == 0:
                self.again()
            self.messages.append({"role": "assistant", "content": "Noted."})

    def ask(self, message: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
        self.messages.append(message or user(self.turns, self.topic))
        self.turns += 1
        answer = self.again(**options)
        self.messages.append({"role": "assistant", "content": text_in(answer)})
        return answer

    @contextmanager
    def following(self, says: bytes, within: float) -> Iterator[list[bytes]]:
        """Stream the next turn, from when its answer says this to its end; what came, and still comes."""
        came: list[bytes] = []
        self.messages.append(user(self.turns, self.topic))
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._read, came)
            wait_until(lambda: says in b"".join(came), within)
            yield came
            reading.result(within)

    def _read(self, came: list[bytes]) -> None:
        body = {"model": "m", "messages": self.messages, "stream": True}
        head = {"authorization": f"Bearer {self.key}"}
        with self.proxy.client.stream("POST", "/v1/chat/completions", json=body, headers=head) as response:
            for data in response.iter_raw():
                came += [data]

    def again(self, **options: Any) -> httpx.Response:
        """What was asked last, once more; its answer is dropped."""
        body = {"model": "m", "messages": self.messages, "max_tokens": 60, **options}
        answer = self.proxy.chat(body, authorization=f"Bearer {self.key}")
        assert answer.status_code == 200, answer.text
        return answer


def text_in(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def ahead(proxy: Proxy) -> dict[str, int]:
    """How often what became of it."""
    told = metric(proxy, "spillway_ahead_total").items()
    return {found[1]: int(times) for labels, times in told if (found := BECAME.search(labels))}


def wait_ahead(proxy: Proxy, **expected: int) -> None:
    """Block until it has come to this."""
    wait_until(lambda: ahead(proxy) == expected, 20.0)


def is_summary_call(request: Recorded) -> bool:
    return "Summarise" in str(request.json["messages"][-1]["content"])


def summaries(fake: FakeBackend) -> list[Recorded]:
    return [request for request in fake.chats() if is_summary_call(request)]


def readings(fake: FakeBackend) -> list[Recorded]:
    return [r for r in fake.chats() if r.json.get("max_tokens") == 1 and not is_summary_call(r)]
