"""Two replicas behind one Redis: a compaction is made once and serves both."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.proxying import running_proxy
from tests.store.support import RedisServer, redis_server

__all__ = ["redis_server"]


def test_replicas_share_one_compaction_and_its_checkpoint(redis_server: RedisServer) -> None:
    roles = ("user", "assistant")
    messages: list[dict[str, Any]] = [
        {"role": roles[n % 2], "content": f"shared {n} " + "word " * 150} for n in range(11)
    ]
    body = {"model": "m", "messages": messages, "max_tokens": 10}
    store = redis_server.url
    with (
        LlamaCppFake([FakeModel("m", 2048)], summariser(qa()), prompt_delay=0.2) as fake,
        running_proxy(fake, store=store) as one,
        running_proxy(fake, store=store) as two,
    ):
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda proxy: proxy.chat(body), [one, two] * 3))
        assert {answer.status_code for answer in answers} == {200}
        sent = [request.json["messages"] for request in fake.chats()]
        asked = [each for each in sent if "Summarise" in str(each[-1]["content"])]
        assert len(asked) == 1
        forwarded = [each for each in sent if each not in asked]
        assert all(each == forwarded[0] for each in forwarded)
        messages += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And?"}]
        later = two.chat({"model": "m", "messages": messages, "max_tokens": 10})
        assert later.headers["x-spillway-action"] == "forwarded"
