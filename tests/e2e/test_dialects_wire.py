"""What goes to backends of requests in other dialects than theirs, besides the body; and what is left to them."""

import threading
from typing import Any

import pytest

from proxy.api.access import COUNTING
from proxy.conversation_state import ConversationState
from proxy.core.settings import BackendSetting
from proxy.counting import Counting
from proxy.dialects import DIALECTS
from proxy.exchange import Exchange
from proxy.tokens.meter import Meter
from tests.fakes import GenericFake, LlamaCppFake, scripted
from tests.proxying import running_proxy
from tests.store.support import HandClock, open_with

HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 50, "messages": HELLO},
    "/v1/responses": {"input": HELLO},
    "/api/chat": {"messages": HELLO, "stream": False},
}
KEY = "sk-of-the-backend"


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("name", ["x-api-key", "authorization"])
def test_a_backend_gets_the_clients_key_where_it_looks_and_nothing_of_another_api(path: str, name: str) -> None:
    key = KEY if name == "x-api-key" else f"Bearer {KEY}"
    headers = {name: key, "anthropic-version": "2023-06-01", "anthropic-beta": "x", "x-request-source": "test"}
    with GenericFake(brain=scripted(["Hi."]), api_key=KEY) as fake, running_proxy(fake) as proxy:
        body = {"model": "fake-model", **ASKED[path]}
        assert proxy.client.post(f"{path}?beta=true", json=body, headers=headers).status_code == 200
        chat = fake.chats()[0]
        assert chat.query == ""
        got = dict(chat.headers)
        assert (got["authorization"], got["x-request-source"]) == (f"Bearer {KEY}", "test")
        assert not [each for each in got if each.startswith("anthropic-") or each == "x-api-key"]


def test_a_chat_request_keeps_what_it_has() -> None:
    with GenericFake(brain=scripted(["Hi."])) as fake, running_proxy(fake) as proxy:
        body = {"model": "fake-model", "messages": HELLO}
        headers = {"x-api-key": "k", "anthropic-version": "1"}
        proxy.client.post("/v1/chat/completions?api-version=7", json=body, headers=headers)
        chat = fake.chats()[0]
        got = dict(chat.headers)
        assert (chat.query, got["x-api-key"], got["anthropic-version"]) == ("api-version=7", "k", "1")


@pytest.mark.parametrize("path", COUNTING)
@pytest.mark.parametrize("how", ["bypass", "unmanaged"])
def test_a_count_is_left_to_a_backend_like_the_request_itself(path: str, how: str) -> None:
    with LlamaCppFake() as fake:
        setting = BackendSetting(url=fake.url, name="b", managed=how != "unmanaged")
        with running_proxy(setting) as proxy:
            body = {"model": "fake-model", "messages": HELLO, "input": HELLO}
            headers = {"x-spillway-bypass": "1"} if how == "bypass" else {}
            proxy.client.post(path, json=body, headers=headers)
        assert path in [request.path for request in fake.requests]


@pytest.mark.anyio
async def test_many_values_are_not_read_on_the_loop() -> None:
    threads = []

    async def nothing() -> dict[str, Any]:
        return {}

    async def send(_: Any) -> None:
        return None

    def reads(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return dialect.read(body)

    dialect, store = DIALECTS["/v1/responses"], open_with("memory://", HandClock())
    state = ConversationState(store=store, counting=Counting(meter=Meter(), store=store), max_body=2**20)
    exchange = Exchange({"type": "http", "method": "POST", "path": "/", "headers": []}, nothing, send)
    few = b'{"model":"m","input":"%b"}' % (b"x" * 100_000)
    many = b'{"model":"m","input":[%b]}' % b",".join([b'{"role":"user","content":"x"}'] * 2000)
    for body in (few, many):
        await state.read(exchange, body, reads)
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threads[0]
