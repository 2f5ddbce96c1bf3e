"""What was compacted ahead is found again in whatever form clients send an answer back: it is covered itself, being long."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import LlamaCppFake, summariser
from tests.pipeline.talk import MODEL, Talk, ahead, long_winded, summaries, user, wait_ahead
from tests.proxying import running_proxy

pytestmark = pytest.mark.slow

Message = dict[str, Any]


def chat(said: list[Message]) -> tuple[str, Message]:
    return "/v1/chat/completions", {"model": "m", "messages": said}


def messages(said: list[Message]) -> tuple[str, Message]:
    return "/v1/messages", {"model": "m", "max_tokens": 900, "system": said[0]["content"], "messages": said[1:]}


def responses(said: list[Message]) -> tuple[str, Message]:
    return "/v1/responses", {"model": "m", "instructions": said[0]["content"], "input": said[1:], "store": False}


def ollama(said: list[Message]) -> tuple[str, Message]:
    return "/api/chat", {"model": "m", "messages": said, "stream": False}


def _chat(answer: Any) -> list[Message]:
    message = answer["choices"][0]["message"]
    # Most clients drop what was thought, and some send parts.
    return [{"role": "assistant", "content": [{"type": "text", "text": f"{message['content']}\n"}]}]


def _messages(answer: Any) -> list[Message]:
    return [{"role": "assistant", "content": answer["content"]}]


def _ollama(answer: Any) -> list[Message]:
    return [answer["message"]]


def _responses(answer: Any) -> list[Message]:
    return list(answer["output"])


FORMS: dict[str, tuple[Callable[[list[Message]], tuple[str, Message]], Callable[[Any], list[Message]]]] = {
    "chat": (chat, _chat), "messages": (messages, _messages), "responses": (responses, _responses), "ollama": (ollama, _ollama),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_that_comes_back_is_known(form: str) -> None:
    ask, sent_back = FORMS[form]
    with LlamaCppFake([MODEL], summariser(long_winded)) as fake, running_proxy(fake, ahead="on") as proxy:
        said = Talk(proxy, turns=3).messages
        said.append({"role": "user", "content": "At length, please."})
        path, body = ask(said[:2])
        proxy.client.post(path, json=body)
        path, body = ask(said)
        answer = proxy.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        wait_ahead(proxy, done=1)
        path, body = ask([*said, *sent_back(answer.json()), user(9)])
        following = proxy.client.post(path, json=body)
        assert following.headers["x-spillway-action"] == "continued"
        assert ahead(proxy) == {"done": 1}
        assert len(summaries(fake)) == 1
        forwarded = fake.chats()[-1].json["messages"]
        assert forwarded[-1]["content"].endswith(user(9)["content"])
        assert not any(m["role"] == "assistant" and "long0 long1" in str(m["content"]) for m in forwarded)
