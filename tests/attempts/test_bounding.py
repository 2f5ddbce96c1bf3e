"""Answers whose bound a backend would refuse: the client gets them all the same."""

from typing import Any

import pytest

from tests.fakes import FakeModel, GenericFake, LlamaCppFake, VllmFake, summariser, walk
from tests.fakes.llamacpp import POOL_FULL
from tests.fakes.tokens import FakeTokenizer
from tests.proxying import read_stream, running_proxy

WINDOW = 1024
LONG = 3000
"""Tokens of an answer, about a third as many words."""
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
SMALLER = f"max_tokens={LONG} cannot be greater than max_model_len={WINDOW}. Please request fewer output tokens."


def model() -> FakeModel:
    return FakeModel("m", WINDOW)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_vllm_is_not_asked_for_an_answer_that_it_would_refuse(name: str) -> None:
    with VllmFake([model()], summariser(walk())) as fake, running_proxy(fake) as proxy:
        whole = proxy.chat({**ASKED, name: LONG}).json()
        seen = read_stream(proxy.chat({**ASKED, name: LONG, "stream": True}).content)
        assert whole["usage"]["completion_tokens"] == LONG
        said = whole["choices"][0]["message"]["content"]
        assert seen.text[: len(said) - 20] == said[:-20]  # its last word may be cut
        assert seen.finishes == [whole["choices"][0]["finish_reason"]] == ["length"]
        assert fake.overflows == 0
        assert all(request.json[name] <= WINDOW for request in fake.chats() if name in request.json)


@pytest.mark.parametrize("size", [1, 7, (1, 1, 40)])
def test_a_paused_answer_is_as_long_as_it_may_be_however_many_tokens_a_delta_holds(size: int | tuple[int, ...]) -> None:
    """Of a model whose vocabulary nobody knows: estimated, it would end so many tokens too early, or too late."""
    with VllmFake([model()], summariser(walk()), tokens_per_chunk=size) as fake:
        with running_proxy(fake) as proxy:
            seen = read_stream(proxy.chat({**ASKED, "max_tokens": LONG, "stream": True}).content)
        assert (seen.finishes, seen.errors) == (["length"], [])
        assert FakeTokenizer(fake.letters).count(seen.text) == LONG


def test_a_bound_that_fits_goes_out_as_it_came() -> None:
    with VllmFake([model()], walk(last=5)) as fake, running_proxy(fake) as proxy:
        assert proxy.chat({**ASKED, "max_tokens": WINDOW}).status_code == 200
        assert fake.chats()[0].json["max_tokens"] == WINDOW


def test_where_nothing_told_that_it_is_vllm_its_refusal_does() -> None:
    """Behind a gateway, for one."""
    error = {"message": SMALLER, "type": "BadRequestError", "param": "max_tokens", "code": 400}
    with GenericFake([model()], summariser(walk()), window_field="context_length") as fake:
        fake.fail_next(400, {"error": error})
        with running_proxy(fake) as proxy:
            seen = read_stream(proxy.chat({**ASKED, "stream": True, "max_tokens": LONG}).content)
        assert (seen.finishes, seen.errors) == (["length"], [])
        assert len(seen.text.split()) > WINDOW // 2
        assert fake.chats()[1].json["max_tokens"] <= WINDOW


def test_a_window_less_the_bound_is_told_from_a_window_before_it_is_learned() -> None:
    """vLLM 0.15 (vllm-project/vllm#33418): the bound is lowered, and no word of the prompt is left out."""
    said = "This model's maximum context length is 1096 tokens. However, your request has 1642 input tokens."
    asked = {**ASKED, "messages": [{"role": "user", "content": "w7 " * 800}], "max_tokens": LONG}
    with GenericFake([FakeModel("m", 4096)], walk(last=20)) as fake, running_proxy(fake) as proxy:
        fake.fail_next(400, {"error": {"message": said, "param": "input_tokens", "code": 400}})
        assert proxy.chat(asked).status_code == 200
        first, second = (request.json for request in fake.chats())
        assert (first["messages"], first["max_tokens"]) == (second["messages"], LONG)
        assert 2000 < second["max_tokens"] <= 4096 - 1642
        model = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]
        assert model["window"]["value"] == 4096, "only the window less the bound explains that the second one was taken"
        assert proxy.chat(asked).status_code == 200
        assert 2000 < fake.chats()[2].json["max_tokens"] < LONG, "no turn is refused for that again"


def test_a_prompt_that_leaves_no_room_for_its_bound_is_refused_in_one_turn_alone() -> None:
    """Older vLLM and OpenRouter's kind, behind a gateway."""
    said = "This model's maximum context length is 4096 tokens. However, you requested 4642 tokens (1642 in the messages, 3000 in the completion)."
    asked = {**ASKED, "messages": [{"role": "user", "content": "w7 " * 800}], "max_tokens": LONG}
    with GenericFake([FakeModel("m", 4096)], walk(last=20)) as fake, running_proxy(fake) as proxy:
        fake.fail_next(400, {"error": {"message": said, "param": "messages", "code": 400}})
        assert [proxy.chat(asked).status_code for _ in range(2)] == [200, 200]
        assert [request.json["max_tokens"] < LONG for request in fake.chats()] == [False, True, True]


@pytest.mark.parametrize("bound", [{"max_tokens": LONG}, {}], ids=["bounded", "without a bound"])
def test_an_answer_is_bounded_by_what_can_be_paid_for_and_the_user_is_told(bound: dict[str, int], stream: bool) -> None:
    said = "This request requires more credits, or fewer max_tokens. You can only afford 50."
    with GenericFake([model()], walk()) as fake, running_proxy(fake) as proxy:
        fake.fail_next(402, {"error": {"message": said, "code": 402}})
        answer = proxy.chat({**ASKED, **bound, "stream": stream})
        assert (answer.status_code, fake.chats()[1].json["max_tokens"], len(fake.chats())) == (200, 50, 2)
        assert ": ⚠️ The credit" in answer.text if stream else answer.headers["x-spillway-max-tokens"] == "50"
        fake.fail_next(402, {"error": {"message": said, "code": 402}})
        fake.fail_next(402, {"error": {"message": said.replace("50", "40"), "code": 402}})
        assert proxy.chat({**ASKED, **bound}).status_code == 402, "it is lowered once"


def test_a_first_request_waits_for_the_model_to_be_loaded(stream: bool) -> None:
    loading = {"error": {"message": "Loading model", "code": 503, "type": "unavailable_error"}}
    with GenericFake([model()], walk(last=5)) as fake, running_proxy(fake, grace=0.0) as proxy:
        fake.fail_next(503, loading)
        fake.fail_next(503, loading)
        answer = proxy.chat({**ASKED, "stream": stream})
        assert (answer.status_code, len(fake.chats())) == (200, 3)
        assert not stream or (answer.content.startswith(b":") and read_stream(answer.content).errors == [])


def test_memory_that_stays_full_though_nobody_shares_it_is_told_in_the_backends_words() -> None:
    full = {"error": {"code": 500, "message": POOL_FULL, "type": "server_error"}}
    with LlamaCppFake([FakeModel("m", 16384)], walk()) as fake, running_proxy(fake) as proxy:
        for _ in range(4):
            fake.fail_next(500, full)
        refused = proxy.chat(ASKED)
        assert (refused.status_code, refused.json()["error"]["message"]) == (500, POOL_FULL)
        assert len(fake.chats()) <= 3
