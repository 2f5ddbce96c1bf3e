"""Thinking has an end: by the backend's own field or by Spillway, and an answer that ends in a thought is asked for once more."""

import io
from itertools import count
from typing import Any

import pytest

from tests.dialects.asking import PATHS, question, read
from tests.fakes import FAKES, Brain, FakeBackend, FakeModel, GenericFake, Question, Reply, ToolCall, VllmFake
from tests.fakes.model import Refused
from tests.proxying import Proxy, metric, read_stream, running_proxy

HELLO = [{"role": "user", "content": "What is two and two?"}]
ANSWER = "It is four."
OWN: dict[str, dict[str, Any]] = {
    "llamacpp": {"thinking_budget_tokens": 40},
    "vllm": {"thinking_token_budget": 40},
    "openrouter": {"reasoning": {"max_tokens": 40}},
}
"""Fields by which backends bound a thought of 40 tokens themselves."""
KINDS = ("llamacpp", "ollama", "vllm", "openrouter", "generic", "lmstudio")


def switched_off(body: dict[str, Any]) -> bool:
    efforts = (body.get("reasoning_effort"), (body.get("reasoning") or {}).get("effort"))
    template = body.get("chat_template_kwargs") or {}
    return "none" in efforts or template.get("enable_thinking") is False or body.get("think") is False


def thinker(*, obeys: bool = True, thought: int | None = None, tag: str = "", finish: str | None = None) -> Brain:
    """Thinks without end, or for so many tokens and then says nothing, unless it is bound, has thought, or is not to think."""

    def brain(asked: Question) -> Reply:
        body, tagged = asked.body, f"</{tag}>" in asked.prefix if tag else False
        if switched_off(body) or asked.prefix_reasoning or tagged or "interrupted" in asked.last_user:
            return Reply(text=ANSWER)
        budget = body.get("thinking_budget_tokens") or body.get("thinking_token_budget")
        budget = budget or (body.get("reasoning") or {}).get("max_tokens")
        if budget and obeys:
            return Reply(reasoning="t " * budget, text=ANSWER)
        ideas = (f" t{number}" for number in (count() if thought is None else range(thought)))
        return (
            Reply(text=(f"<{tag}>", *ideas))
            if tag and thought
            else Reply(text=_tagged(tag) if tag else "", reasoning="" if tag else ideas, finish=finish)
        )

    return brain


def _tagged(tag: str) -> Any:
    yield f"<{tag}>"
    yield from (f" t{number}" for number in count())


def backend(kind: str, brain: Brain, **options: Any) -> FakeBackend:
    return FAKES[kind]([FakeModel("m", 8192, thinking=True)], brain, **options)


def answered(proxy: Proxy, path: str, *, stream: bool = True, **fields: Any) -> str:
    response = proxy.client.post(path, json=question(path, stream=stream, messages=HELLO, **fields))
    assert response.status_code == 200, response.text
    seen = read(path, response.content, stream=stream)
    assert seen.error is None
    return seen.text.strip()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rows(12)
def test_a_thought_that_would_never_end_is_followed_by_an_answer(kind: str, path: str, *, stream: bool) -> None:
    with backend(kind, thinker()) as fake, running_proxy(fake, thinking_budget=40) as proxy:
        assert answered(proxy, path, stream=stream) == ANSWER
        first, *more = [chat.json for chat in fake.chats()]
        own = OWN.get(kind, {})
        assert {name: first[name] for name in own} == own
        assert len(more) == (not own)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_that_does_not_hold_its_own_bound_is_held_to_it(kind: str, written: io.StringIO) -> None:
    with backend(kind, thinker(obeys=False)) as fake, running_proxy(fake, thinking_budget=40) as proxy:
        seen = read_stream(proxy.chat(question(PATHS[0], stream=True, messages=HELLO)).content)
        assert (seen.text.strip(), seen.finishes, seen.done) == (ANSWER, ["stop"], 1)
        assert 15 <= seen.reasoning.count(" t") <= 105
        assert sum(metric(proxy, "spillway_concluded_thoughts_total").values()) == 1
    assert " concluded=1 " in written.getvalue()


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "ollama", "generic"])
def test_a_thought_written_as_text_is_closed(kind: str) -> None:
    with backend(kind, thinker(obeys=False, tag="think")) as fake, running_proxy(fake, thinking_budget=40) as proxy:
        text = answered(proxy, PATHS[0])
    thought, mark, answer = text.partition("</think>")
    assert (thought.startswith("<think>"), mark, answer.strip()) == (True, "</think>", ANSWER)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rows(12)
def test_an_answer_that_ends_in_its_thought_is_asked_for_once_more(kind: str, path: str, *, stream: bool) -> None:
    with backend(kind, thinker(thought=30)) as fake, running_proxy(fake) as proxy:
        assert answered(proxy, path, stream=stream) == ANSWER
        _, second = [chat.json for chat in fake.chats()]
    assert switched_off(second)


def test_a_thought_in_the_text_that_ends_without_an_answer_is_closed() -> None:
    with backend("llamacpp", thinker(thought=30, tag="think")) as fake, running_proxy(fake) as proxy:
        thought, mark, answer = answered(proxy, PATHS[0]).partition("</think>")
    assert (thought.startswith("<think>"), mark, answer.strip()) == (True, "</think>", ANSWER)


def test_a_thought_that_goes_round_in_circles_is_left_for_an_answer_without_one() -> None:
    circle = "Wait, I should check that again, because the number may well be another one. "

    def brain(asked: Question) -> Reply:
        return Reply(text=ANSWER) if switched_off(asked.body) else Reply(reasoning=(circle for _ in count()))

    fake = backend("ollama", brain, tokens_per_chunk=16, delay=0.003)
    with fake, running_proxy(fake) as proxy:
        assert answered(proxy, PATHS[0]) == ANSWER
        assert len(fake.chats()[1].json["messages"]) == 1


def test_of_several_choices_none_is_ended() -> None:
    def brain(_: Question) -> Reply:
        return Reply(reasoning=" t" * 90, text=ANSWER)

    with backend("generic", brain) as fake, running_proxy(fake, thinking_budget=40) as proxy:
        choices = proxy.chat(question(PATHS[0], stream=False, messages=HELLO, n=2)).json()["choices"]
        assert [choice["message"]["content"] for choice in choices] == [ANSWER, ANSWER]


def test_a_bound_that_the_thought_has_used_up_holds_for_the_answer_alone() -> None:
    with backend("ollama", thinker()) as fake, running_proxy(fake) as proxy:
        assert answered(proxy, PATHS[0], max_tokens=20) == ANSWER
        assert [chat.json["options"]["num_predict"] for chat in fake.chats()] == [20, 20]


def test_it_is_asked_no_third_time(*, stream: bool) -> None:
    def brain(_: Question) -> Reply:
        return Reply(reasoning="I wonder.")

    with backend("llamacpp", brain) as fake, running_proxy(fake) as proxy:
        response = proxy.client.post(PATHS[0], json=question(PATHS[0], stream=stream, messages=HELLO))
        assert read(PATHS[0], response.content, stream=stream).finish == "stop"
        assert len(fake.chats()) == 2


def test_a_model_that_thinks_again_is_ended() -> None:
    def brain(_: Question) -> Reply:
        return Reply(reasoning=(f" t{number}" for number in count()))

    with backend("ollama", brain) as fake, running_proxy(fake, thinking_budget=40) as proxy:
        seen = read_stream(proxy.chat(question(PATHS[0], stream=True, messages=HELLO)).content)
        assert (seen.finishes, seen.done, seen.errors, len(fake.chats())) == (["length"], 1, [], 3)


def test_a_vllm_that_can_bound_no_thought_is_told_of_none_again(written: io.StringIO) -> None:
    fake = VllmFake([FakeModel("m", 8192)], thinker(), reasoning_config=False)
    with fake, running_proxy(fake, thinking_budget=40) as proxy:
        assert answered(proxy, PATHS[0]) == answered(proxy, PATHS[0]) == ANSWER
        assert ["thinking_token_budget" in chat.json for chat in fake.chats()] == [True, *([False] * 4)]
    assert written.getvalue().count("can't limit thinking") == 1


@pytest.mark.parametrize(
    ("path", "fields", "bound"),
    [
        (PATHS[0], {"reasoning_effort": "low"}, 80),
        (PATHS[0], {"reasoning_effort": "high"}, 400),
        (PATHS[0], {"reasoning": {"max_tokens": 50}}, 50),
        (PATHS[0], {"thinking_budget_tokens": 60}, 60),
        (PATHS[0], {"reasoning_effort": "none"}, None),
        (PATHS[1], {"reasoning": {"effort": "medium"}}, 200),
        (PATHS[2], {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400),
        (PATHS[2], {"output_config": {"effort": "low"}}, 80),
        (PATHS[3], {"think": "low"}, 80),
        (PATHS[3], {"think": False}, None),
    ],
)
def test_clients_bound_it_within_the_users_bound(path: str, fields: dict[str, Any], bound: int | None) -> None:
    with backend("llamacpp", thinker()) as fake, running_proxy(fake, models={"m": {"thinking_budget": 400}}) as proxy:
        assert answered(proxy, path, **fields) == ANSWER
        assert fake.chats()[0].json.get("thinking_budget_tokens") == bound


def test_an_effort_gives_way_to_the_bound_where_both_are_refused() -> None:
    with backend("openrouter", thinker()) as fake, running_proxy(fake, thinking_budget=400) as proxy:
        own: dict[str, Any] = {"reasoning": {"effort": "low", "exclude": False}, "reasoning_effort": "low"}
        assert answered(proxy, PATHS[0], **own) == ANSWER
        sent = fake.chats()[0].json
    assert (sent["reasoning"], "reasoning_effort" in sent) == ({"max_tokens": 80, "exclude": False}, False)


def test_a_clients_own_budget_holds_without_a_setting() -> None:
    with backend("ollama", thinker()) as fake, running_proxy(fake) as proxy:
        wish: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 40}}
        assert answered(proxy, PATHS[2], **wish) == ANSWER


def test_a_server_that_refuses_the_switch_is_shown_the_thought_alone() -> None:
    def refusing(asked: Question) -> Reply:
        if asked.body.get("reasoning_effort"):
            raise Refused(400, {"error": {"message": "no such effort"}})
        return thinker()(asked)

    fake = GenericFake([FakeModel("m", 8192)], refusing)
    with fake, running_proxy(fake, thinking_budget=40) as proxy:
        assert answered(proxy, PATHS[0]) == ANSWER


@pytest.mark.parametrize("kind", ["llamacpp", "ollama", "generic"])
@pytest.mark.parametrize("thought", [None, 30])
def test_the_answer_may_be_a_call(kind: str, thought: int | None, *, stream: bool) -> None:
    def brain(asked: Question) -> Reply:
        reply = thinker(obeys=False, thought=thought)(asked)
        return Reply(tool_calls=[ToolCall("add", '{"a": 2}')]) if reply.text == ANSWER else reply

    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    with backend(kind, brain) as fake, running_proxy(fake, thinking_budget=40) as proxy:
        body = question(PATHS[0], stream=stream, messages=HELLO, tools=tools)
        answer = proxy.chat(body)
        assert fake.chats()[-1].json["tools"] == tools
    assert answer.text.count('"add"') == 1
    assert answer.text.count('"finish_reason":"tool_calls"') == 1
