"""Under the policy `local` tool results are within the limits from the first request on, and stay as they were then."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from proxy.compaction.shorten import HINT
from proxy.core.request import text_of
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, Question, Reply
from tests.proxying import Proxy, running_proxy

WINDOW = 16_000
SYSTEM = {"role": "system", "content": "You work in a shell."}


def printed(step: int, lines: int = 120) -> str:
    return "\n".join(f"step {step}: what the command printed in line {number}" for number in range(lines))


def called(step: int, output: str, name: str = "bash") -> list[dict[str, Any]]:
    made = {"id": f"c{step}", "type": "function", "function": {"name": name, "arguments": f'{{"command": "run {step}"}}'}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": f"c{step}", "content": output},
    ]


def worked(steps: int) -> list[dict[str, Any]]:
    task = {"role": "user", "content": "Go on until it works.\n" + printed(0)}
    return [SYSTEM, task, *(each for n in range(1, steps + 1) for each in called(n, printed(n)))]


def brain(question: Question) -> Reply:
    asks = "ummari" in text_of(question.messages[-1])
    return Reply(text="They ran many steps, one behind the other, and none of them failed." if asks else "Good.")


@contextmanager
def staged(**settings: Any) -> Iterator[tuple[FakeBackend, Proxy]]:
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake, **{"policy": "local", **settings}) as proxy:
        yield fake, proxy


def ask(proxy: Proxy, messages: list[dict[str, Any]]) -> Any:
    answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20})
    assert answer.status_code == 200, answer.text
    return answer


def outputs(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def test_each_result_is_cut_when_it_comes_and_the_prompt_only_grows() -> None:
    with staged() as (fake, proxy):
        for steps in range(1, 7):
            answer = ask(proxy, worked(steps))
            assert answer.headers["x-spillway-action"] == "shaped"
            assert answer.headers["x-spillway-shaped"].startswith("results=")
        sent = [chat.json["messages"] for chat in fake.chats()]
    for before, after in pairwise(sent):
        assert after[: len(before)] == before
    # The results are shorter, and all else is as the client sent it.
    given = worked(6)
    assert [m for m in sent[-1] if m["role"] != "tool"] == [m for m in given if m["role"] != "tool"]
    for step, cut in enumerate((m["content"] for m in sent[-1] if m["role"] == "tool"), start=1):
        whole = printed(step)
        assert len(cut) <= 1500 < len(whole)
        assert cut.startswith(whole[:200])
        assert cut.endswith(whole[-200:] + HINT)
        assert "left out here" in cut


def test_a_compaction_goes_on_from_the_cut_results() -> None:
    with staged(trigger=0.3, target=0.2) as (fake, proxy):
        actions = [ask(proxy, worked(steps)).headers["x-spillway-action"] for steps in range(2, 24, 3)]
        assert set(actions[2:]) & {"pruned", "compacted"}
        assert fake.invalid_histories == []
        every = [output for chat in fake.chats() for output in outputs(chat.json)]
        assert max(map(len, every)) <= 1500


def test_what_was_cut_out_is_recalled_from_the_whole_result() -> None:
    fact = "The build key of Mathilda's hedgehogs is Pim-4711."
    lines = printed(1).split("\n")
    found = "\n".join([*lines[:60], fact, *lines[60:]])
    messages = [SYSTEM, {"role": "user", "content": "Run it."}, *called(1, found)]
    for number in range(30):
        messages += [{"role": "assistant", "content": f"Well, {number}."}]
        messages += [{"role": "user", "content": f"And then {number}? " + "Tell me more of the garden. " * 25}]
    messages += [{"role": "assistant", "content": "Fine."}]
    messages += [{"role": "user", "content": "What is the build key of Mathilda's hedgehogs?"}]
    with staged(trigger=0.25, target=0.15) as (fake, proxy):
        answer = ask(proxy, messages)
        assert int(answer.headers["x-spillway-recalled"]) >= 1
        prompt = fake.chats()[-1].json["messages"]
    assert "Pim-4711" in text_of(prompt[-1])
    assert "Pim-4711" not in str(prompt[:-1])


def test_what_was_saved_is_explained_and_counted() -> None:
    with staged() as (_, proxy):
        told = proxy.client.post("/spillway/explain", json={"model": "m", "messages": worked(2)}).json()
        answer = ask(proxy, worked(2))
        metrics = proxy.client.get("/metrics").text
    saved = told["shaped"]["results"]
    assert 500 < saved < 5000
    assert answer.headers["x-spillway-shaped"] == f"results={saved}"
    assert f'spillway_shaped_tokens_total{{backend="llamacpp",kind="results",model="m"}} {float(saved)}' in metrics
