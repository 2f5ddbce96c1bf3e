"""Whose a compaction is: the key's that let a request in, whatever its system prompt says."""

from typing import Any

import pytest

from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.proxying import Proxy, running_proxy

WINDOW = 2048
ROLES = ("user", "assistant")
HISTORY: list[dict[str, Any]] = [{"role": ROLES[n % 2], "content": f"said {n} " + "word " * 150} for n in range(11)]


def action(proxy: Proxy, system: str = "", **headers: str) -> str:
    """What was done to the same long history, under this system prompt and with these headers."""
    lead = [{"role": "system", "content": system}] if system else []
    body = {"model": "m", "messages": [*lead, *HISTORY], "max_tokens": 10}
    answer = proxy.client.post(
        "/v1/chat/completions", json=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-spillway-action"]


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ({"x_api_key": "key-of-a"}, [{"x_api_key": "key-of-b"}, {"authorization": "Bearer key-of-b"}]),
        ({"authorization": "Bearer key-of-a"}, [{"authorization": "Bearer key-of-b"}]),
    ],
)
def test_a_tenant_is_the_key_that_let_the_request_in(mine: dict[str, str], others: list[dict[str, str]]) -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa()))
    with fake, running_proxy(fake, api_keys=("key-of-a", "key-of-b")) as proxy:
        none = {} if "authorization" in mine else {"authorization": "Bearer none"}
        assert action(proxy, **mine, **none) == "compacted"
        for again in (mine, {"x_api_key": "key-of-a"}, {"authorization": "bearer key-of-a"}):
            for extra in ({}, {"api_key": "of the backend"}, {"cookie": "a=1"}):
                assert action(proxy, **again, **extra) == "continued"
        for other in others:
            none = {} if "authorization" in other else {"authorization": "Bearer none"}
            assert action(proxy, **other, **none) == ("compacted" if other is others[0] else "continued")


@pytest.mark.parametrize("header", ["authorization", "x_api_key", "api_key", "x_goog_api_key", "x_auth_token"])
def test_without_keys_a_tenant_is_the_credential_that_is_sent(header: str) -> None:
    none = {} if header == "authorization" else {"authorization": "Bearer none"}
    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        assert action(proxy, **{header: "one", **none}) == "compacted"
        assert action(proxy, **{header: "one", **none, "x_request_id": "r", "cookie": "__cf_bm=1"}) == "continued"
        assert action(proxy, **{header: "another", **none}) == "compacted"
        assert action(proxy, **none) == "compacted"


def test_a_clock_in_the_system_prompt_loses_no_checkpoint_and_is_never_another_ones() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        prompts = [f"You help. It is {at}." for at in ("04:09:56", "23:59 on Monday, May 3, 2027", "noon")]
        done = [action(proxy, prompt) for prompt in prompts]
        assert done == ["compacted", "continued", "continued"]
        sent = [chat.json["messages"][0] for chat in fake.chats()][-3:]
        assert sent == [{"role": "system", "content": prompt} for prompt in prompts]
