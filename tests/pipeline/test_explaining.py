"""`POST /spillway/explain`: what would happen, without a model being asked."""

from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.pipeline.test_counting import history
from tests.proxying import running_proxy


def test_a_short_request_is_forwarded() -> None:
    with LlamaCppFake([FakeModel("m", 2048)]) as fake, running_proxy(fake) as proxy:
        body = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, *history(3, 20)]}
        told = proxy.client.post("/spillway/explain", json=body).json()
        assert (told["action"], told["messages"], told["window"]) == ("forwarded", body["messages"], 2048)
        parts = told["parts"]
        assert [part["role"] for part in parts["messages"]] == ["system", "user", "assistant", "user"]
        total = sum(part["tokens"] for part in parts["messages"]) + parts["template_and_tools"]
        assert abs(total - told["prompt_tokens"]) <= 2
        assert fake.chats() == []


def test_a_long_one_is_due_until_a_checkpoint_stands_for_it() -> None:
    with LlamaCppFake([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        body = {"model": "m", "messages": history(15, 130)}
        told = proxy.client.post("/spillway/explain", json=body).json()
        assert (told["action"], told["checkpoint"]) == ("due", None)
        assert "bring it down" in told["note"]
        assert told["prompt_tokens"] > told["budget"]["trigger"]
        assert fake.chats() == []
        real = proxy.chat({**body, "max_tokens": 20})
        assert real.headers["x-spillway-action"] == "compacted"
        again = proxy.client.post("/spillway/explain", json=body).json()
        assert again["action"] == "continued"
        assert again["checkpoint"]["covered_messages"] > 0
        assert again["messages"][-1] == body["messages"][-1]
