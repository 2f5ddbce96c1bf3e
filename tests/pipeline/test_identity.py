"""Clients' own names for their conversations, through the whole proxy."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes import LlamaCppFake, walk
from tests.proxying import Proxy, running_proxy

SAME = {"role": "user", "content": "The environment is a shell in /work. " * 20}
MODEL = "fake-model"


def ask(proxy: Proxy, path: str, text: str, headers: Mapping[str, str], **more: Any) -> Any:
    given = [SAME, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": text}]
    body = {"model": MODEL, "max_tokens": 20, "messages": given, "input": given, **more}
    if path == "/v1/responses":
        del body["messages"], body["max_tokens"]
    response = proxy.client.post(path, json=body, headers={"authorization": "Bearer me", **headers})
    assert response.status_code == 200
    return response


@pytest.mark.parametrize(
    ("path", "headers", "more"),
    [
        ("/v1/responses", {"session-id": "NAME", "thread-id": "NAME"}, {"prompt_cache_key": "NAME"}),
        ("/v1/responses", {}, {"prompt_cache_key": "NAME"}),
        ("/v1/messages", {"x-claude-code-session-id": "NAME"}, {}),
        ("/v1/chat/completions", {}, {"prompt_cache_key": "NAME"}),
        ("/v1/chat/completions", {"x-openwebui-chat-id": "NAME"}, {}),
    ],
)
def test_a_conversation_is_known_by_its_name_in_the_log_by_a_digest(
    path: str, headers: dict[str, str], more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="spillway")
    with LlamaCppFake(brain=walk(last=3)) as fake, running_proxy(fake) as proxy:
        for name, key in (("secret-one", "me"), ("secret-one", "me"), ("two", "me"), ("secret-one", "you")):
            named = {header: value.replace("NAME", name) for header, value in headers.items()}
            body = {field: value.replace("NAME", name) for field, value in more.items()}
            ask(proxy, path, "go", {**named, "authorization": f"Bearer {key}"}, **body)
        ask(proxy, path, "go", {})
    names = re.findall(r"conversation=([0-9a-f]{16})", caplog.text)
    assert (len(names), names[0]) == (4, names[1])
    assert len(set(names)) == 3
    assert "secret-one" not in caplog.text


def test_a_name_leads_to_nothing_that_is_kept() -> None:
    """Another history under the same name is another history."""
    with LlamaCppFake(brain=walk(last=3), window=1024) as fake, running_proxy(fake) as proxy:
        long = [{"role": "user", "content": f"fact {number} " * 60} for number in range(8)]
        for history in (long, [{"role": "user", "content": "something else"}]):
            proxy.client.post("/v1/responses", json={"model": MODEL, "input": history, "prompt_cache_key": "same"})
        assert "fact" not in str(fake.chats()[-1].json["messages"])
