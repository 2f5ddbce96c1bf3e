"""A larger window instead of a compaction: conversations move, stay, and are compacted only where that is full too."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.core.settings import BackendSetting, Settings
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, Question, Reply, VllmFake, asks_summary
from tests.fakes.base import HttpFake
from tests.fakes.http import Exchange, Recorded
from tests.fakes.waiting import await_until
from tests.pipeline.test_ahead import planned
from tests.pipeline.test_observing import observed
from tests.pipeline.test_policy import tool
from tests.proxying import Proxy, metric, read_stream, running_proxy

SMALL, LARGE, HUGE = 2048, 8192, 16_384
MOVED = "✅ Moved to large (8,192 tokens)"
Messages = list[dict[str, Any]]


def brain(question: Question) -> Reply:
    return Reply(text="They spoke of items, and of their codes." if asks_summary(question) else "Yes")


def chat(turns: int) -> Messages:
    """A conversation whose turns have about 170 tokens each."""
    words = [f"The code of item{n} is c{n}. " + " ".join(f"about{n}x{i}" for i in range(30)) for n in range(turns)]
    roles = [("user", each, "assistant", "Noted.") for each in words]
    messages = [{"role": role, "content": text} for a, b, c, d in roles for role, text in ((a, b), (c, d))]
    return messages[:-1]


def counted(proxy: Proxy, messages: Messages, model: str = "small") -> int:
    body = {"model": model, "messages": messages, "max_tokens": 9}
    return int(proxy.client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"])


@contextmanager
def staged(*backends: HttpFake | BackendSetting, chain: str = "small large", **settings: Any) -> Iterator[Proxy]:
    names = chain.split()
    models = {name: {"overflow": other} for name, other in pairwise(names)}
    with running_proxy(*backends, **{"models": models, **settings}) as proxy:
        yield proxy


def two(**options: Any) -> FakeBackend:
    return VllmFake([FakeModel("small", SMALL), FakeModel("large", LARGE)], brain, **options)


def ask(proxy: Proxy, messages: Messages, **options: Any) -> Any:
    answer = proxy.chat({"model": "small", "messages": messages, "max_tokens": 40, **options})
    assert answer.status_code == 200, answer.text
    return answer


def served(request: Recorded) -> str:
    return str(request.json["model"])


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses", "ollama"])
def test_a_conversation_moves_once_and_stays(dialect: str, stream: bool) -> None:
    def said(turns: int) -> tuple[Any, str]:
        body: dict[str, Any] = {"model": "small", "stream": stream}
        path = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses", "ollama": "/api/chat"}
        body |= {"input" if dialect == "responses" else "messages": chat(turns)}
        body |= {"max_tokens": 40} if dialect in ("chat", "messages") else {}
        answer = proxy.client.post(path[dialect], json=body)
        assert answer.status_code == 200, answer.text
        return answer, answer.text

    with two() as fake, staged(fake, status=["content"]) as proxy:
        answer, text = said(4)
        assert (answer.headers["x-spillway-action"], served(fake.chats()[-1])) == ("forwarded", "small")
        for turns in (20, 21, 30):
            answer, text = said(turns)
            assert answer.headers["x-spillway-action"] == "moved"
            assert answer.headers["x-spillway-window"] == str(LARGE)
            assert fake.chats()[-1].json["messages"] == chat(turns)
            assert served(fake.chats()[-1]) == "large"
            assert (MOVED in text) is (stream and turns == 20)
            assert "Yes" in text
        assert sum(metric(proxy, "spillway_moves_total").values()) == 1
        (labels,) = metric(proxy, "spillway_moves_total")
        assert 'model="large"' in labels
        assert (fake.overflows, fake.cuts) == (0, 0)
        assert [served(each) for each in fake.chats()] == ["small", "large", "large", "large"]


def test_it_is_told_by_one_event_and_compacted_where_the_larger_window_is_full() -> None:
    with two() as fake, staged(fake) as proxy:
        seen = read_stream(ask(proxy, chat(20), stream=True).content)
        assert [each["data"] for each in seen.events] == [{"description": MOVED, "done": True}]
        assert seen.text == "Yes"
        full = ask(proxy, chat(60), stream=True)
        assert "compact" in full.headers["x-spillway-action"]
        assert full.headers["x-spillway-window"] == str(LARGE)
        assert {served(each) for each in fake.chats()} == {"large"}  # its summary too
        after = ask(proxy, [*chat(60), {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And?"}])
        assert (after.headers["x-spillway-action"], served(fake.chats()[-1])) == ("continued", "large")
        row = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]
        assert (row["model"], row["window"]) == ("large", LARGE)


def test_the_answer_names_the_model_that_the_backend_names() -> None:
    with two() as fake, staged(fake) as proxy:
        assert ask(proxy, chat(4)).json()["model"] == "small"
        assert ask(proxy, chat(20)).json()["model"] == "large"


def test_a_count_for_the_first_model_that_comes_late_changes_nothing() -> None:
    with two(prompt_delay=0.3) as fake, staged(fake) as proxy:
        count = fake.routes["POST /tokenize"]

        async def late(exchange: Exchange) -> None:
            await await_until(lambda: bool(fake.chats()))
            await count(exchange)

        fake.routes["POST /tokenize"] = late
        answer = ask(proxy, chat(20), stream=True)
        assert (answer.headers["x-spillway-action"], answer.headers["x-spillway-window"]) == ("moved", str(LARGE))
        assert any(each.path == "/tokenize" for each in fake.requests)


def test_it_stays_after_a_restart_and_is_not_told_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with two() as fake:
        with staged(fake, store=store) as proxy:
            ask(proxy, chat(10))
        # By its size alone it would be back: the trigger is higher now.
        with staged(fake, store=store, trigger=0.9) as proxy:
            answer = ask(proxy, chat(9), stream=True)
            assert answer.headers["x-spillway-action"] == "forwarded"  # before the mark
            answer = ask(proxy, chat(10), stream=True)
            assert (answer.headers["x-spillway-action"], read_stream(answer.content).events) == ("moved", [])


def test_a_client_that_shortens_its_history_is_back_at_the_first_model() -> None:
    with two() as fake, staged(fake) as proxy:
        ask(proxy, chat(20))
        answer = ask(proxy, chat(20)[-7:])
        assert (answer.headers["x-spillway-action"], served(fake.chats()[-1])) == ("forwarded", "small")
        for system, to in (("word " * 1800, "large"), ("You are brief.", "small")):
            ask(proxy, [{"role": "system", "content": system}, {"role": "user", "content": "hi"}])
            assert served(fake.chats()[-1]) == to


def test_a_chain_is_followed_to_the_first_model_that_it_fits() -> None:
    models = [FakeModel("small", SMALL), FakeModel("large", LARGE), FakeModel("huge", HUGE)]
    with VllmFake(models, brain) as fake, staged(fake, chain="small large huge") as proxy:
        for turns, to in ((20, "large"), (60, "huge"), (61, "huge"), (400, "huge")):
            action = ask(proxy, chat(turns)).headers["x-spillway-action"]
            assert (served(fake.chats()[-1]), "compact" in action) == (to, turns == 400)
        assert sum(metric(proxy, "spillway_moves_total").values()) == 2


def test_another_backend_gets_the_request_as_its_model_needs_it_and_no_key_of_the_client() -> None:
    small = LlamaCppFake([FakeModel("m", SMALL)], brain)
    large = OllamaFake([FakeModel("m", LARGE, tools=False, num_ctx=LARGE)], calls)
    with small, large, staged(small, large, models={"m": {"overflow": "ollama/m"}}) as proxy:
        body = {"model": "m", "messages": chat(20), "tools": [tool(0)], "max_tokens": 40}
        head = {"authorization": "Bearer of-the-client"}
        answer = proxy.chat({**body, "messages": chat(3)}, **head)
        assert (answer.headers.get("x-spillway-tools"), small.chats()[-1].json["tools"]) == (None, [tool(0)])
        answer = proxy.chat(body, **head)
        sent = large.chats()[-1]
        assert (answer.headers["x-spillway-tools"], answer.headers["x-spillway-backend"]) == ("emulated", "ollama")
        assert (sent.path, sent.header("authorization")) == ("/api/chat", None)
        assert "tools" not in sent.json
        assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "tool_0"
        assert small.chats()[-1].header("authorization") == head["authorization"]


def calls(question: Question) -> Reply:
    del question
    return Reply(text='<tool_call>{"name": "tool_0", "arguments": {"what": "it"}}</tool_call>')


GONE: dict[str, Any] = {
    "refused": lambda large: large.stop(),
    "502": lambda large: large.fail_next(502, b"Bad Gateway", times=9),
    "429": lambda large: large.fail_next(429, {"error": {"message": "Slow down."}}, times=9),
    "401": lambda large: large.fail_next(401, {"error": {"message": "No such key."}}, times=9),
    "200 with an error": lambda large: large.fail_next(200, {"error": {"message": "upstream", "code": 502}}, times=9),
}


@pytest.mark.parametrize("how", GONE)
def test_if_the_larger_one_is_gone_the_conversation_is_compacted_as_without_it(how: str, stream: bool) -> None:
    small, large = LlamaCppFake([FakeModel("small", SMALL)], brain), VllmFake([FakeModel("large", LARGE)], brain)
    with small, large, staged(small, large) as proxy:
        ask(proxy, chat(4))
        ask(proxy, chat(20))
        assert len(large.chats()) == 1
        GONE[how](large)
        answer = ask(proxy, chat(21), stream=stream)
        assert "compact" in answer.headers["x-spillway-action"]
        assert answer.headers["x-spillway-window"] == str(SMALL)
        assert "Yes" in answer.text
        row = proxy.client.get(f"/spillway/requests/{answer.headers['x-request-id']}").json()
        assert (row["model"], row["window"], row["checkpoint"]["kind"]) == ("small", SMALL, "compacted")
        assert sum(metric(proxy, "spillway_moves_total").values()) == 1
        # It is not tried again before the conversation is due once more.
        large.start()
        before, following = len(large.chats()), [{"role": "assistant", "content": "Noted."}, *chat(1)]
        answer = ask(proxy, [*chat(21), *following])
        assert (answer.headers["x-spillway-action"], len(large.chats())) == ("continued", before)


def test_a_refusal_of_the_request_itself_goes_to_the_client() -> None:
    with two() as fake, staged(fake) as proxy:
        ask(proxy, chat(4))
        fake.fail_next(400, {"error": {"message": "temperature must be at most 2"}})
        answer = proxy.chat({"model": "small", "messages": chat(20), "temperature": 3})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "temperature must be at most 2")


@pytest.mark.parametrize("overflow", ["lrge", "alike", "left-alone"])
def test_a_model_that_gives_no_room_takes_no_conversation(overflow: str) -> None:
    models = [FakeModel("small", SMALL), FakeModel("alike", SMALL), FakeModel("left-alone", LARGE)]
    known = {"small": {"overflow": overflow}, "left-alone": {"managed": False}}
    with VllmFake(models, brain) as fake, staged(fake, models=known) as proxy:
        assert "compact" in ask(proxy, chat(20)).headers["x-spillway-action"]
        assert served(fake.chats()[-1]) == "small"


def test_what_is_never_moved() -> None:
    with two() as fake, staged(fake) as proxy:
        explained = proxy.client.post("/spillway/explain", json={"model": "small", "messages": chat(20)}).json()
        assert (explained["model"], explained["window"]) == ("large", LARGE)
        counted(proxy, chat(20))
        bypassed = proxy.chat({"model": "small", "messages": chat(20)}, **{"x-spillway-bypass": "1"})
        assert bypassed.status_code == 400  # it is too long for that one
        chore = proxy.chat({"model": "small", "messages": chat(20)}, **{"x-task": "title_generation"})
        assert chore.status_code == 200
        assert {served(each) for each in fake.chats()} == {"small"}


def test_where_it_would_move_is_said_under_observe() -> None:
    with two() as fake, staged(fake, strategy="observe") as proxy:
        for turns, would, lost in ((4, "forwarded", ""), (20, "moved", "refused"), (60, "compacted", "refused")):
            proxy.chat({"model": "small", "messages": chat(turns), "max_tokens": 9})
            said = observed(proxy)
            assert (said["model"], said["would"], said["lost"], said["window"]) == ("small", would, lost, SMALL)
        assert {served(each) for each in fake.chats()} == {"small"}


@pytest.mark.parametrize("kind", [LmStudioFake, OllamaFake])
def test_only_the_model_that_answers_is_loaded(kind: type[FakeBackend]) -> None:
    models = [FakeModel("small", SMALL), FakeModel("large", LARGE, loaded=False)]
    with kind(models, brain) as fake, staged(fake, profile_ttl=1e-9) as proxy:
        first = ask(proxy, chat(20), stream=True)
        assert (first.headers["x-spillway-action"], first.headers["x-spillway-window"]) == ("moved", str(LARGE))
        assert MOVED in first.text
        models[0].loaded = False
        again = ask(proxy, chat(21))
        assert (again.headers["x-spillway-action"], again.headers["x-spillway-window"]) == ("moved", str(LARGE))
        assert models[0].loaded is False


@pytest.mark.parametrize("kind", [LmStudioFake, OllamaFake])
def test_a_long_history_moves_though_no_model_is_loaded(kind: type[FakeBackend]) -> None:
    models = [FakeModel("small", SMALL, loaded=False), FakeModel("large", LARGE, loaded=False)]
    with kind(models, brain) as fake, staged(fake) as proxy:
        proxy.client.post("/spillway/explain", json={"model": "small", "messages": chat(20)})
        assert [each.loaded for each in models] == [False, False]
        assert ask(proxy, chat(20)).headers["x-spillway-action"] == "moved"


def test_a_model_that_is_loaded_with_less_than_it_was_made_for_gives_its_conversation_back() -> None:
    models = [FakeModel("small", SMALL), FakeModel("large", SMALL // 2, trained_window=LARGE, loaded=False)]
    with LmStudioFake(models, brain) as fake, staged(fake) as proxy:
        answer = ask(proxy, chat(20), stream=True)
        assert ("compact" in answer.headers["x-spillway-action"], answer.headers["x-spillway-window"]) == (True, str(SMALL))
        assert served(fake.chats()[-1]) == "small"
        assert MOVED not in answer.text


def test_no_backend_sees_the_notice_that_a_client_sends_back() -> None:
    with two() as fake, staged(fake, status=["content"]) as proxy:
        seen = read_stream(ask(proxy, chat(20), stream=True).content)
        assert MOVED in seen.text
        ask(proxy, [*chat(20), {"role": "assistant", "content": seen.text}, *chat(1)])
        assert fake.chats()[-1].json["messages"][-2] == {"role": "assistant", "content": "Yes"}


@pytest.mark.parametrize("chain", ["small large", "small lrge"])
def test_nothing_is_compacted_ahead_of_a_move(chain: str) -> None:
    with two() as fake, staged(fake, ahead="on", chain=chain) as proxy:
        plans = 0
        for turns in range(5, 10):
            assert ask(proxy, chat(turns)).headers["x-spillway-action"] == "forwarded"
            plans += len(planned(proxy))
        assert (plans > 0) is (chain != "small large")


@pytest.mark.parametrize(
    ("chain", "named"),
    [
        ({"a": "b", "b": "a"}, "a → b → a|b → a → b"),
        ({"a": "b", "b": "c", "c": "b"}, "b → c → b|c → b → c"),
        ({"qwen*": "big", "big": "qwen3"}, "big → qwen3 → big|qwen3 → big → qwen3"),
    ],
)
def test_a_circle_is_refused_by_name(chain: dict[str, str], named: str) -> None:
    with pytest.raises(ValidationError, match=f"overflow leads in a circle: ({named})"):
        Settings.model_validate({"models": {model: {"overflow": to} for model, to in chain.items()}})


def test_a_model_that_a_pattern_sends_to_itself_is_the_last() -> None:
    settings = Settings.model_validate({"overflow": "huge", "models": {"qwen*": {"overflow": "qwen3-32k"}}})
    assert settings.overflows("qwen3-8b") == ["qwen3-32k"]
    assert settings.overflows("gemma") == ["huge"]
    assert settings.overflows("huge") == []
    assert settings.helpers == {("overflow", "huge"), ("overflow", "qwen3-32k")}  # which are warned of if nothing lists them
