"""Models that do not go on with their answer as they were asked to, on every kind of backend that is believed to have them do so."""

import pytest

from tests.fakes import FAKES, STRAYS, FakeModel, LlamaCppFake, Question, Reply, strays, summariser, words
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

GO = [{"role": "user", "content": "go"}]
LAST = 1300
KINDS = [kind for kind in FAKES if kind != "generic"]
ECHOES = [how for how in STRAYS if how.startswith(("repeats", "goes on"))]
"""What is taken out of the answer without asking in another way."""


def asked(proxy: Proxy, *, stream: bool) -> tuple[str, str, str]:
    answer = proxy.chat({"model": "m", "stream": stream, "messages": GO})
    if stream:
        seen = read_stream(answer.content)
        assert (len(seen.ids), seen.done, seen.errors) == (1, 1, [])
        (finish,) = seen.finishes
        return seen.text, seen.reasoning, finish
    (choice,) = answer.json()["choices"]
    message = choice["message"]
    return message["content"], message.get("reasoning_content") or "", choice["finish_reason"]


# Streamed and whole share the road: each pair of kind and way is tried in one of them.
CASES = [(kind, how, (n + m) % 2 == 0) for n, kind in enumerate(KINDS) for m, how in enumerate(STRAYS)]


@pytest.mark.parametrize(("kind", "how", "stream"), CASES)
@pytest.mark.rows(6)
def test_nothing_is_said_twice(kind: str, how: str, stream: bool) -> None:
    """An answer of nearly three windows; and what did not work is not tried a second time."""
    fake = FAKES[kind]([FakeModel("m", 1024)], summariser(strays(how, LAST)), closes_turn=True)
    with fake, running_proxy(fake) as proxy:
        for turn in range(2):
            text, _, finish = asked(proxy, stream=stream)
            assert text == words(1, LAST)
            assert finish == "stop"
            closed = [r for r in fake.chats() if r.json["messages"][-1]["role"] == "assistant"]
            told = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]
            if how not in ECHOES:
                assert (kind != "ollama") <= len(closed) <= 2, f"turn {turn}: each way once"
                assert not closed or told["refused_continuations"]["origin"] == "began its answer anew"


def thinks_again(question: Question) -> Reply:
    """Thinks from the beginning if its thoughts are a finished turn to it."""
    if "interrupted while you were thinking" in question.last_user:
        return Reply(reasoning="So it is clear.", text=words(1, 40))
    return Reply(reasoning=" ".join(f"t{n}" for n in range(1, 1200)), text=words(1, 40))


def test_no_thought_is_thought_twice() -> None:
    models = [FakeModel("m", 1024, thinking=True)]
    with LlamaCppFake(models, summariser(thinks_again), closes_turn=True) as fake, running_proxy(fake) as proxy:
        text, reasoning, finish = asked(proxy, stream=True)
        assert (text, finish) == (words(1, 40), "stop")
        head, anew = reasoning.rsplit("\n\n", 1)
        assert head == " ".join(f"t{n}" for n in range(1, len(head.split()) + 1))
        assert anew == "So it is clear."


def test_a_way_that_the_user_chose_is_not_asked_for_without_end() -> None:
    brain = summariser(strays("restarts", LAST))
    model = {"window": 1024, "continuation": "continue_final_message"}
    fake = LlamaCppFake([FakeModel("m", 1024)], brain, closes_turn=True)
    with fake, running_proxy(fake, models={"m": model}) as proxy:
        text, _, finish = asked(proxy, stream=True)
        assert text == words(1, len(text.split()))
        assert finish == "length"
        assert len(fake.chats()) < 12
