"""One outcome per request, whatever becomes of it: through the real HTTP stack."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from proxy.settings import BackendSetting
from tests.fakes import LlamaCppFake, Reply, scripted
from tests.proxying import Proxy, read_stream, running_proxy

USER = {"role": "user", "content": "hi"}


def metric(proxy: Proxy, name: str) -> dict[str, float]:
    """Lines of a metric: labels, and the value."""
    lines = [line for line in proxy.client.get("/metrics").text.split("\n") if line.startswith(f"{name}{{")]
    return {line[len(name) :].rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


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


def test_a_backend_that_was_never_there_counts_as_a_failure() -> None:
    gone = BackendSetting(url="http://127.0.0.1:9/v1", name="gone", kind="llamacpp")
    with running_proxy(gone) as proxy:
        assert proxy.chat({"model": "m", "messages": [USER]}).status_code == 502
        assert sum(metric(proxy, "spillway_upstream_failures_total").values()) == 1
        assert requests_by_status(proxy) == {"502": 1}


def test_a_summary_that_can_not_be_used_counts_as_none() -> None:
    def useless(asked: Any) -> Reply:
        return Reply(text="I cannot do that." if "Summarise the" in asked.last_user else "Noted.")

    with LlamaCppFake(brain=useless, window=2048) as fake, running_proxy(fake) as proxy:
        history: list[dict[str, Any]] = []
        for turn in range(12):
            history += [{"role": "user", "content": f"{turn} " + "some words to fill it " * 40}]
            answer = proxy.chat({"model": "fake-model", "messages": history})
            history += [answer.json()["choices"][0]["message"]]
        counted = metric(proxy, "spillway_summaries_total")
        assert counted
        assert all('ok="false"' in labels for labels in counted)


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
        assert "llamacpp/fake-model: 502 upstream_unavailable" in said[0]
        assert secret not in caplog.text


def test_every_request_is_a_line_at_debug_and_no_name_begins_a_line_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="spillway"), LlamaCppFake(brain=scripted(["hi"])) as fake:
        with running_proxy(fake) as proxy:
            proxy.chat({"model": "m\nERROR forged", "messages": [USER]})
        said = [record.getMessage() for record in caplog.records if record.name == "spillway"]
        assert any("200 forwarded" in line for line in said)
        assert not any("\n" in line for line in said)


def test_headers_that_go_out_while_the_history_is_shortened_say_so_and_the_end_tells_the_rest() -> None:
    """A slow summary: the response is opened by the grace period, before anything is known of the result."""
    released = threading.Event()

    def slow(asked: Any) -> Reply:
        if "Summarise the" in asked.last_user:
            released.wait(20)
            return Reply(
                text="The user said some words, many times over, and wanted nothing but that they be noted."
            )
        return Reply(text="Noted.")

    history = [
        {
            "role": "user" if turn % 2 == 0 else "assistant",
            "content": f"{turn} " + "some words to fill it " * 40,
        }
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
        assert plain.comments == []
        assert plain.usage is not None
        assert "spillway" not in plain.usage, "where nothing was done, the backend's frames pass as they came"
