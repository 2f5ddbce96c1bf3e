"""A conversation that outgrows its window: compacted, and the compaction lasts."""

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proxy.compaction.results import results_of
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.marks import QUOTES
from proxy.core.jsontext import dumps
from proxy.store import Store
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, Reply, qa, summariser, wait_until, walk
from tests.fakes.waiting import PATIENCE
from tests.histories import FORMS, assistant, call, tool, user
from tests.proxying import UNREDUCED, Proxy, metric, read_stream, running_proxy
from tests.raw import asking, connected

WINDOW = 2048
KEY = {"generic": {"models": {"m": {"window": WINDOW}}}}


def turns(proxy: Proxy, count: int, *, filler: int = 40) -> tuple[list[str], list[dict[str, Any]]]:
    """A client that sends its whole history each time; what was done on each turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are brief."}]
    actions = []
    for number in range(count):
        words = " ".join(f"about{number}x{i}" for i in range(filler))
        messages.append({"role": "user", "content": f"Remember: the code of item{number} is c{number}. {words}"})
        answer = proxy.chat({"model": "m", "messages": messages, "stream": number % 2 == 0, "max_tokens": 60})
        assert answer.status_code == 200, answer.text
        actions.append(answer.headers["x-spillway-action"])
        if number % 2 == 0:
            seen = read_stream(answer.content)
            assert (len(seen.finishes), seen.done, seen.errors) == (1, 1, [])
            text = seen.text
        else:
            text = answer.json()["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
    return actions, messages


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.rows(2)
def test_a_long_chat_never_overflows_and_is_not_summarised_on_each_turn(kind: str) -> None:
    fake = FAKES[kind]([FakeModel("m", WINDOW)], summariser(qa()))
    with fake, running_proxy(fake, **KEY.get(kind, {})) as proxy:
        actions, messages = turns(proxy, 40)
        counted = Counter(actions)
        assert counted["compacted"] >= 2
        assert counted["compacted"] <= 13
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])
        # The system prompt and the newest user message reach the backend as they are.
        last = fake.chats()[-1].json["messages"]
        assert (last[0], last[-1]) == (messages[0], messages[-2])


def test_the_prefix_stays_put_between_compactions() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        actions, _ = turns(proxy, 24)
        sent = [r.json["messages"] for r in fake.chats() if "summar" not in str(r.json["messages"][-1]).lower()]
        assert len(sent) == len(actions)
        for number in range(1, len(sent)):
            if actions[number] in UNREDUCED:
                assert sent[number][: len(sent[number - 1])] == sent[number - 1]


def test_facts_that_the_summariser_kept_are_answered() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        _, messages = turns(proxy, 20)
        messages.append({"role": "user", "content": "What is the code of item1?"})
        answer = proxy.chat({"model": "m", "messages": messages})
        assert "c1" in answer.json()["choices"][0]["message"]["content"]


def test_concurrent_requests_share_one_compaction() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa()), prompt_delay=0.1) as fake, running_proxy(fake) as proxy:
        messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 150} for n in range(11)]
        body = {"model": "m", "messages": messages, "max_tokens": 10}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: proxy.chat(body), range(8)))
        assert {answer.status_code for answer in answers} == {200}
        asked = [r for r in fake.chats() if "summar" in str(r.json["messages"][-1]).lower()]
        assert len(asked) == 1


def test_who_leaves_as_a_compaction_begins_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, left, find, claims = threading.Event(), threading.Event(), Store.find, list[asyncio.Lock]()

    async def slow(self: Store, *asked: Any) -> Checkpoint | None:
        if self._locks and not waits.is_set():
            claims.extend(self._locks.values())
            waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
        return await find(self, *asked)

    monkeypatch.setattr(Store, "find", slow)
    fake = LlamaCppFake([FakeModel("m", WINDOW)], summariser(qa()))
    with fake, running_proxy(fake, store=f"sqlite:///{tmp_path}/kept.sqlite3") as proxy, connected(proxy.url) as client:
        said = ("user", "assistant")
        messages = [{"role": said[n % 2], "content": f"{n} " + "word " * 150} for n in range(11)]
        client.send(asking({"model": "m", "messages": messages}))
        assert waits.wait(PATIENCE)
        client.close()
        assert left.wait(PATIENCE)
        wait_until(lambda: not claims[0].locked())


def test_old_tool_results_are_masked_before_a_model_is_asked() -> None:
    with LlamaCppFake([FakeModel("m", 4096)], summariser(walk(last=3))) as fake, running_proxy(fake) as proxy:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Look into every file."}]
        for number in range(8):
            call = {"id": f"call{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            # No line and no result is long enough to be capped.
            lines = (f"line {number} " * 24 + "\n") * 10
            messages.append({"role": "tool", "tool_call_id": f"call{number}", "content": lines})
        answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20})
        assert answer.headers["x-spillway-action"] == "pruned"
        (sent,) = fake.chats()
        assert fake.invalid_histories == []
        assert sent.json["messages"][-1] == messages[-1]
        assert "left out to save room: read" in sent.json["messages"][2]["content"]


def test_what_can_not_fit_is_refused_with_the_figures(stream: bool) -> None:
    with LlamaCppFake([FakeModel("m", 512)], summariser(walk())) as fake, running_proxy(fake) as proxy:
        system = {"role": "system", "content": "rule " * 2000}
        body = {"model": "m", "stream": stream, "messages": [system, {"role": "user", "content": "hi"}]}
        answer = proxy.chat(body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]
        assert fake.overflows == 0


def overflowing(kind: str) -> FakeBackend:
    """A fake whose window is smaller than it says."""
    options = {"compression": False} if kind == "openrouter" else {}
    return FAKES[kind]([FakeModel("m", 1024)], summariser(qa()), **options)


@pytest.mark.parametrize("kind", ["lmstudio", "openrouter", "llamacpp", "vllm", "generic"])
def test_a_refusal_teaches_the_window_and_is_answered(kind: str, stream: bool) -> None:
    promise = {} if kind == "lmstudio" else {"m": {"window": 100_000}}  # it would be loaded with as much
    with overflowing(kind) as fake, running_proxy(fake, models=promise) as proxy:
        if not promise:
            fake.models[0].window = 100_000
            proxy.chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
            fake.models[0].window = 1024
        messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 100} for n in range(15)]
        answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 30, "stream": stream})
        assert answer.status_code == 200
        text = read_stream(answer.content).text if stream else answer.json()["choices"][0]["message"]["content"]
        assert "Noted" in text
        assert fake.overflows >= 1
        window = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]["window"]
        assert (window["value"], window["trust"]) == (1024, "learned")


def test_an_unknown_window_is_forwarded_and_told() -> None:
    with FAKES["generic"]([FakeModel("m", 4096)], qa()) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        assert (answer.status_code, answer.headers["x-spillway-action"]) == (200, "forwarded")
        assert "x-spillway-window" not in answer.headers
        told = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]
        assert told["window"] is None
        assert "SPILLWAY_MODELS" in told["effective"]["advice"]


@pytest.mark.slow
def test_a_history_of_many_windows_on_its_first_turn_is_summarised_in_pieces() -> None:
    with LlamaCppFake([FakeModel("m", 8192)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        messages: list[dict[str, Any]] = []
        for number in range(200):
            messages.append({"role": "user", "content": f"Remember: the code of item{number} is c{number}. " + "word " * 500})
            messages.append({"role": "assistant", "content": "Noted. " + "word " * 400})
        messages.append({"role": "user", "content": "What is the code of item3?"})
        assert fake.count({"model": "m", "messages": messages}) > 180_000
        answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 50})
        assert (answer.status_code, answer.headers["x-spillway-action"]) == (200, "compacted")
        assert (fake.overflows, fake.invalid_histories) == (0, [])


@pytest.mark.parametrize("size", ["tool result", "user message", "system prompt"])
def test_one_thing_that_is_larger_than_the_window(size: str) -> None:
    window = 2048
    with LlamaCppFake([FakeModel("m", window)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        long = "\n".join(f"line {number} of the long text" for number in range(900))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Read the file and tell."}]
        if size == "tool result":
            call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "c1", "content": long})
        elif size == "user message":
            messages = [{"role": "user", "content": long}]
        else:
            messages.insert(0, {"role": "system", "content": "rule " * 1700})
        answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20})
        assert answer.status_code == 200
        # A system prompt above the trigger that fits is forwarded as it is: compaction can't help.
        expected = {"tool result": "pruned", "user message": "read", "system prompt": "forwarded"}
        assert answer.headers["x-spillway-action"] == expected[size]
        assert (fake.overflows, fake.invalid_histories) == (0, [])


RESULTS = {
    "prose": ("The weather was nice. Everybody went swimming. ", 1.5),
    "json": (dumps([{"entity": "temperature of the porch", "since": "2026-11-01T00:10:00"}]).decode(), 1.5),
    "chinese": (dumps([{"名称": "传感器", "说明": "这是一个关于门廊温度的长期记录"}]).decode(), 1.15),
    "ids": ("9f3c1a77-04be-4d21-b8aa-5e90, ", 1.5),
}
"""What is repeated, and the windows that the smaller result takes. That of the Chinese one is estimated at half of them."""


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.rows(4)
def test_of_a_result_above_the_window_about_half_a_window_stays_however_wrong_its_estimate_was(kind: str, result: str) -> None:
    """Each size has a model of its own, of which nothing is known yet."""
    text, least = RESULTS[result]
    models = {size: FakeModel(f"m{size}", WINDOW) for size in (least, 20.0)}
    with FAKES[kind]([*models.values()], lambda _: Reply(text="Ann.")) as fake, running_proxy(fake) as proxy:
        for size, model in models.items():
            bodies = ({"model": model.id, "messages": [user("Who swam?"), *read(t)]} for t in ("", text))
            bare, one = map(fake.count, bodies)
            messages = [user("Who swam?"), *read(text * int(size * WINDOW / (one - bare)))]
            assert proxy.chat({"model": model.id, "messages": messages}).status_code == 200
            assert 0.3 < fake.count(fake.chats()[-1].json) / WINDOW < 1, size


def read(result: str) -> list[dict[str, Any]]:
    return [assistant(None, tool_calls=[call(0, "read", "{}")]), tool(0, result)]


@pytest.mark.parametrize(("form", "lines"), [("native", 44), ("text", 38)])
@pytest.mark.parametrize("calls_at_a_time", [1, 11])
def test_of_eleven_results_the_oldest_give_way_and_the_newest_stay_whole(form: str, lines: int, calls_at_a_time: int) -> None:
    with LlamaCppFake([FakeModel("m", 4096)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        messages = [user("Read all of them.")]
        for first in range(0, 11, calls_at_a_time):
            batch = range(first, first + calls_at_a_time)
            messages.append(assistant(None, tool_calls=[call(n, "read", f'{{"path": "f{n}"}}') for n in batch]))
            messages += [tool(n, "\n".join(f"{n}: line {line} of it" for line in range(lines))) for n in batch]
        messages = FORMS[form](messages)
        assert 0.85 < fake.count({"model": "m", "messages": messages}) / 4096 < 1
        assert proxy.chat({"model": "m", "messages": messages}).headers["x-spillway-action"] == "pruned"
        sent = results_of(fake.chats()[-1].json["messages"])
        whole = [new.text == old.text for new, old in zip(sent, results_of(messages), strict=True)]
        assert whole == sorted(whole), "the oldest first"
        assert 1 <= sum(whole) <= 8


def test_an_agent_loop_with_a_single_user_message_goes_on_and_on() -> None:
    with LlamaCppFake([FakeModel("m", 4096)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix every test in the project."}]
        for number in range(60):
            call = {"id": f"c{number}", "type": "function", "function": {"name": "run", "arguments": f'{{"n": {number}}}'}}
            messages.append({"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]})
            messages.append(
                {"role": "tool", "tool_call_id": f"c{number}", "content": f"output {number}\n" + "more text\n" * 60}
            )
            answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20})
            assert answer.status_code == 200
        assert (fake.overflows, fake.invalid_histories) == (0, [])
        assert fake.chats()[-1].json["messages"][0] == messages[0]


@pytest.mark.parametrize("chosen", [False, True])
def test_another_model_on_another_backend_summarises(chosen: bool) -> None:
    fake = LlamaCppFake([FakeModel("m", 2048)], qa())
    helper = FAKES["vllm"]([FakeModel("small", 16_384)], summariser(qa()))
    with fake, helper, running_proxy(fake, helper, summary_model=None if chosen else "small") as proxy:
        if chosen:
            assert proxy.client.put("/spillway/summary_model?model=none").status_code == 400
            assert proxy.client.put("/spillway/summary_model?model=small").json() == {"summary_model": "small"}
        turns(proxy, 14)
        assert helper.chats()
        assert all(request.json["model"] == "small" for request in helper.chats())
        assert not [request for request in fake.chats() if "Summarise the" in str(request.json["messages"][-1])]


@pytest.mark.parametrize("reply", ["", "I'm sorry, I cannot do that.", "ok"])
def test_a_useless_summary_is_replaced_by_one_made_without_a_model(reply: str) -> None:
    def useless(question: Any) -> Reply:
        return Reply(text=reply if "Summarise the" in question.last_user else "Noted.")

    with LlamaCppFake([FakeModel("m", 2048)], useless) as fake, running_proxy(fake) as proxy:
        actions, _ = turns(proxy, 14)
        assert "compacted" in actions
        assert any(QUOTES in str(request.json["messages"]) for request in fake.chats())
        verdict = "empty" if reply in ("", "ok") else "refusal"
        assert all(f'verdict="{verdict}"' in labels for labels in metric(proxy, "spillway_summaries_total"))
