"""Prompts of conversations that begin alike reach the backend as each client sent them, in every dialect."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import FakeModel, LlamaCppFake
from tests.pipeline.test_stabilising import fine
from tests.proxying import Proxy, running_proxy

Turns = list[dict[str, Any]]
HELLO: Turns = [{"role": "user", "content": "hello"}]
SECOND: Turns = [*HELLO, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "and now?"}]
DIALECTS: dict[str, tuple[str, Callable[[str, Turns], dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", lambda system, turns: {"messages": [{"role": "system", "content": system}, *turns]}),
    "responses": ("/v1/responses", lambda system, turns: {"instructions": system, "input": turns}),
    "messages": ("/v1/messages", lambda system, turns: {"max_tokens": 50, "system": system, "messages": turns}),
    "ollama": ("/api/chat", lambda system, turns: {"stream": False, "messages": [{"role": "system", "content": system}, *turns]}),
}  # fmt: skip
ALIKE: dict[str, tuple[str, ...]] = {
    "customers": (
        "Look up orders for customer_id 6f1a3c52-8c3b-4f0e-9d62-1f0a7a3c1b11 only.",
        "Look up orders for customer_id 0b9e7d10-51f2-4c43-8a8e-77e1d2c0a9f4 only.",
        "Look up orders for customer_id c3d2e1f0-2b6a-4d57-9c1b-3e5f7a9b0d12 only.",
    ),
    "dates": ("Count sales since 2026-01-01.", "Count sales since 2026-02-01.", "Count sales since 2025-12-31."),
    "deadlines": ("Due by 5 March 2026, 17:00.", "Due by 6 March 2026, 9:30.", "Due by 1 May 2026, 12:00."),
    "runs": ("Read only run_8fk29dk1.", "Read only run_9fk29dk2.", "Read only run_1fk29dk7."),
    "counts": ("Do step 3 of 20.", "Do step 4 of 20.", "Do step 5 of 20."),
    "clocks on a regenerate": ("It is 10:41.", "It is 10:42.", "It is 10:41."),
}


def arrived(proxy: Proxy, fake: LlamaCppFake, dialect: str, system: str, turns: Turns) -> Turns:
    """The prompt that the backend is sent for this one."""
    path, body = DIALECTS[dialect]
    answer = proxy.client.post(path, json={"model": "m", **body(system, turns)})
    assert answer.status_code == 200, answer.text
    return [dict(message) for message in fake.chats()[-1].json["messages"]]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.rows(8)
def test_conversations_of_one_key_are_never_mixed(dialect: str, alike: str) -> None:
    with LlamaCppFake([FakeModel("m", 8192)], fine) as fake, running_proxy(fake) as proxy:
        for turns in (HELLO, SECOND):
            for system in ALIKE[alike]:
                sent = [{"role": "system", "content": system}, *turns]
                assert arrived(proxy, fake, dialect, system, turns) == sent
