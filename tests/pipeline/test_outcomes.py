"""One outcome per request, whatever becomes of it: through the real HTTP stack."""

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import Brain, FakeModel, LlamaCppFake, Question, Reply, scripted, summariser, walk, words
from tests.fakes.brains import asks_summary
from tests.proxying import Proxy, metric, read_stream, running_proxy
from tests.rawbackend import SSE, Call, RawBackend, answering, raw_backend

USER = {"role": "user", "content": "hi"}


def until(done: Callable[[], bool]) -> None:
    """Ask again as often as it takes; the test's own time limit ends it."""
    while not done():
        pass


def requests_by_status(proxy: Proxy) -> Counter[str]:
    counted: Counter[str] = Counter()
    for labels, value in metric(proxy, "spillway_requests_total").items():
        counted[labels.split('status="')[1].split('"')[0]] += int(value)
    return counted


def test_every_request_counts_once_with_its_status() -> None:
    with LlamaCppFake(brain=scripted(["hi"]), window=600) as fake, running_proxy(fake) as proxy:
        assert proxy.chat({"messages": [USER]}).status_code == 200
        assert proxy.chat({"messages": "junk"}).status_code == 400
        huge = {"role": "user", "content": "word " * 20_000}
        refused = proxy.chat({"messages": [{"role": "system", "content": "word " * 20_000}, huge]})
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        fake.stop()
        assert proxy.chat({"messages": [USER]}).status_code == 502
        assert requests_by_status(proxy) == {"200": 1, "400": 2, "502": 1}
        assert sum(metric(proxy, "spillway_upstream_failures_total").values()) == 1


def test_what_is_not_plain_forwarding_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    secret = "a secret prompt"
    with caplog.at_level(logging.INFO, logger="spillway"), LlamaCppFake(brain=scripted(["hi"])) as fake:
        with running_proxy(fake) as proxy:
            proxy.chat({"model": "fake-model", "messages": [{"role": "user", "content": secret}]})
            assert [r for r in caplog.records if r.name == "spillway"] == [], "plain forwarding is not news"
            fake.stop()
            proxy.chat({"model": "fake-model", "messages": [{"role": "user", "content": secret}]})
        said = [record.getMessage() for record in caplog.records if record.name == "spillway"]
        assert len(said) == 1
        assert "status=502 error=upstream_unavailable action=forwarded backend=llamacpp model=fake-model " in said[0]
        assert 'done="Not answered by the backend."' in said[0]
        assert secret not in caplog.text


def test_headers_that_go_out_while_the_history_is_shortened_say_so_and_the_end_tells_the_rest() -> None:
    """A slow summary: the response is opened by the grace period, before anything is known of the result."""
    released = threading.Event()

    def slow(asked: Any) -> Reply:
        if "Summarise the" in asked.last_user:
            released.wait(20)
            return Reply(text="The user said some words, many times over, and wanted nothing but that they be noted.")
        return Reply(text="Noted.")

    history = [
        {"role": "user" if turn % 2 == 0 else "assistant", "content": f"{turn} " + "some words to fill it " * 40}
        for turn in range(15)
    ]
    body = {"model": "fake-model", "messages": history, "stream": True}
    asked = {**body, "stream_options": {"include_usage": True}}
    with LlamaCppFake(brain=slow, window=2048) as fake, running_proxy(fake, grace=0.05) as proxy:
        with proxy.client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            assert answer.headers["x-spillway-action"] == "compacting"
            assert "x-spillway-fill" not in answer.headers
            released.set()
            seen = read_stream(answer.read())
        assert seen.text.endswith("Noted.")
        assert seen.done == 1
        told = json.loads(seen.comments[-1].removeprefix("spillway "))
        assert told["action"] == "compacted"
        assert told["saved_tokens"] > 300
        assert 0 < told["fill"] < 0.8
        assert seen.usage is not None
        assert seen.usage["spillway"] == told
        plain = read_stream(proxy.chat({**asked, "messages": history[:1]}).content)
        assert not any(comment.startswith("spillway ") for comment in plain.comments)
        assert plain.usage is not None
        assert "spillway" not in plain.usage, "where nothing was done, the backend's frames pass as they came"


def fails_to_summarise(question: Question) -> Reply:
    return Reply(text="The", error="GPU lost", after=1) if asks_summary(question) else walk(last=700)(question)


def summarises_briefly(question: Question) -> Reply:
    return Reply(text="The model counts words, one by one.") if asks_summary(question) else walk(last=700)(question)


def begins_anew(question: Question) -> Reply:
    return Reply(text=words(1, 1500))


LONG = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "some words to fill it " * 8} for n in range(14)]
SUMMARISED = summariser(walk(last=700))


@pytest.mark.parametrize(
    ("brain", "messages", "settings", "logged"),
    [
        (SUMMARISED, [USER], {}, ["status=200 action=compacted ", "event=resumed id=", " gained="]),
        (summarises_briefly, [*LONG, USER], {}, ["status=200 action=compacted "]),
        (summariser(walk()), [USER], {}, ["ended=answer_windows"]),
        (begins_anew, [USER], {}, ["answer (it said the same again) when it was asked", " ended=window "]),
        (fails_to_summarise, [USER], {}, ["summary by m failed in its stream: ", "summary=extract"]),
    ],
    ids=["the answer", "and the history", "by its length", "anew", "failed summary"],
)
def test_what_was_done_in_the_middle_of_an_answer_is_told_with_the_same_figures_everywhere(
    brain: Brain, messages: list[Any], settings: Any, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "m", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    with (
        caplog.at_level(logging.INFO, logger="spillway"),
        LlamaCppFake([FakeModel("m", 1024)], brain) as fake,
        running_proxy(fake, **settings) as proxy,
    ):
        seen = read_stream(proxy.chat(body).content)
        assert seen.usage is not None
        told = seen.usage["spillway"]
        notices = [event["data"]["description"] for event in seen.events]
        figures = re.findall(r"\((\d+) → (\d+) tokens\)", str(notices))
        assert told["saved_tokens"] == sum(int(before) - int(after) for before, after in figures) > 500
        assert 0.85 < told["fill"] <= 1
        (outcome,) = proxy.client.get("/spillway/outcomes").json()["outcomes"]
        assert (told["action"], told["saved_tokens"]) == ("compacted", outcome["saved"])
        assert len(told["compactions"]) == outcome["compactions"] >= len(figures)
        assert told["compactions"] == outcome["reduced"]
        assert sum(metric(proxy, "spillway_compactions_total").values()) == outcome["compactions"]
        assert sum(metric(proxy, "spillway_saved_tokens_total").values()) == told["saved_tokens"]
        text = caplog.text
        for line in (*logged, f" compactions={outcome['compactions']} ", f" saved={outcome['saved']} "):
            assert line in text
        events = proxy.client.get(f"/spillway/conversations/{outcome['conversation']}").json()["timeline"][0]["events"]
        names = [event["event"] for event in events]
        assert names.count("restarted") == (3 if brain is begins_anew else 0)
        assert ("backend_failed" in names) is (brain is fails_to_summarise)


def test_what_was_shortened_is_told_as_the_backend_counts_it() -> None:
    body = {"model": "m", "messages": [*LONG, USER]}
    with LlamaCppFake([FakeModel("m", 1000, letters=3)]) as fake, running_proxy(fake) as proxy:
        proxy.chat(body)
        (outcome,) = proxy.client.get("/spillway/outcomes").json()["outcomes"]
        assert outcome["tokens_before"] == fake.count(body) > outcome["tokens_after"] > 0


ONE = {"model": "fake-model", "messages": [USER]}
ERROR_FRAME = b'data: {"error":{"message":"the GPU is gone","code":500}}\n\n'


@pytest.mark.parametrize("broken", [[b"data: {"], [ERROR_FRAME]])
def test_a_stream_that_breaks_is_no_success(broken: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    brain = scripted([Reply(text="Well then.", raw=broken)])
    with caplog.at_level(logging.INFO, logger="spillway"), LlamaCppFake(brain=brain) as fake:
        with running_proxy(fake) as proxy:
            proxy.chat({**ONE, "stream": True})
        said = [record.getMessage() for record in caplog.records if record.name == "spillway"]
        assert len(said) == 1
        assert "status=200 error=upstream_failed" in said[0]


def test_who_hangs_up_at_the_end_mark_has_got_everything() -> None:
    """Clients do, and the backend may take its time to end the body."""
    ended = threading.Event()
    chunk = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'

    def script(_: RawBackend, call: Call) -> None:
        call.send(SSE + chunk + b"data: [DONE]\n\n" if call.path.endswith("/completions") else answering({}, "404 No"))
        ended.wait(20 if call.path.endswith("/completions") else 0)

    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        with proxy.client.stream("POST", "/v1/chat/completions", json={**ONE, "model": "m", "stream": True}) as answer:
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    break
        until(lambda: sum(requests_by_status(proxy).values()) >= 1)
        assert requests_by_status(proxy) == {"200": 1}
        ended.set()


def test_what_is_passed_on_or_turned_away_has_an_outcome_too() -> None:
    with LlamaCppFake(brain=scripted(["hi"])) as fake, running_proxy(fake, api_keys=("k",), allow=("metrics",)) as proxy:
        assert proxy.chat(ONE).status_code == 401
        passed = proxy.chat(ONE, authorization="Bearer k", **{"x-spillway-bypass": "1"})
        assert passed.status_code == 200
        fake.stop()
        assert proxy.chat(ONE, authorization="Bearer k", **{"x-spillway-bypass": "1"}).status_code == 502
        assert requests_by_status(proxy) == {"401": 1, "200": 1, "502": 1}
        (labels,) = metric(proxy, "spillway_upstream_failures_total")
        assert 'backend="llamacpp",model="fake-model"' in labels
