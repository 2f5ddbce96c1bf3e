"""Usage totals: what was used of each model, by whom."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from proxy.addons.metrics import Metrics
from proxy.outcome import Telemetry
from tests.fakes import FakeModel, LlamaCppFake, VllmFake, qa
from tests.pipeline.test_recalling import WINDOW, brain, long_chat
from tests.proxying import Proxy, metric, running_proxy

HELLO = [{"role": "user", "content": "hello there"}]
NAME = "spillway_usage_tokens_total"


def totals(proxy: Proxy, **labels: str) -> dict[str, int]:
    """By kind, of the lines with these labels, for the holder of the first key if there are any."""
    found: Counter[str] = Counter()
    text = proxy.client.get("/metrics", headers={"authorization": "Bearer one"}).text
    for line in text.split("\n"):
        if line.startswith(f"{NAME}{{") and all(f'{name}="{value}"' in line for name, value in labels.items()):
            found[line.split('kind="')[1].split('"')[0]] += int(float(line.rsplit(" ", 1)[1]))
    return dict(found)


def ask(proxy: Proxy, key: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": HELLO, "max_tokens": 20, **fields}
    answer = proxy.chat(body, authorization=f"Bearer {key}")
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def test_each_key_and_each_model_has_its_own() -> None:
    with (
        VllmFake([FakeModel("m"), FakeModel("n")], qa()) as fake,
        running_proxy(fake, api_keys=("one", "two")) as proxy,
    ):
        used = {
            (key, model): [ask(proxy, key, model=model) for _ in range(number)]
            for key, model, number in (("one", "m", 2), ("one", "n", 1), ("two", "m", 1))
        }
        owners = {
            row["owner"]
            for row in proxy.client.get("/spillway/conversations", headers={"authorization": "Bearer one"}).json()[
                "conversations"
            ]
        }
        (mine,) = owners
        for kind in ("prompt", "completion"):
            for model in ("m", "n"):
                told = sum(usage[f"{kind}_tokens"] for usage in used["one", model])
                assert totals(proxy, key=mine, model=model)[kind] == told
            everybody = sum(usage[f"{kind}_tokens"] for each in used.values() for usage in each)
            assert totals(proxy, backend="vllm")[kind] == everybody
        text = proxy.client.get("/metrics", headers={"authorization": "Bearer one"}).text
        assert len({line.split('key="')[1][:8] for line in text.split("\n") if line.startswith(f"{NAME}{{")}) == 2
        assert "Bearer" not in text
        assert proxy.client.get("/metrics").status_code == 401


def test_without_keys_nobody_is_told_apart_however_many_send_one() -> None:
    with VllmFake([FakeModel("m")], qa()) as fake, running_proxy(fake) as proxy:
        for number in range(5):
            ask(proxy, f"sk-{number}")
        assert set(metric(proxy, NAME)) == {
            f'{{backend="vllm",key="",kind="{kind}",model="m"}}' for kind in ("completion", "prompt")
        }


def test_what_was_cached_recalled_and_summarised_is_counted() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        used = [ask(proxy, "k", messages=long_chat(), max_tokens=40) for _ in range(2)]
        told = totals(proxy)
        assert told["cached"] == sum(each["prompt_tokens_details"]["cached_tokens"] for each in used) > 0
        recalled = [each["spillway"]["recalled"]["tokens"] for each in used if "recalled" in each["spillway"]]
        assert told["recalled"] == sum(recalled) > 0
        assert told["summary"] > 100


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(clock=lambda: 0.0)


def lines(telemetry: Telemetry) -> list[str]:
    (metrics,) = telemetry.observers
    assert isinstance(metrics, Metrics)
    return [each for each in metrics.render().decode().split("\n") if each.startswith(f"{NAME}{{")]


def test_a_summary_ahead_of_time_is_on_the_account_of_the_sender(telemetry: Telemetry) -> None:
    telemetry.observers = (Metrics(keyed=True),)
    outcome = telemetry.open("r", dialect="chat", credential="digest")
    outcome.record_route("b", "m")
    background = telemetry.background("ahead", outcome)
    background.add("summarised", verdict="kept", tokens=300)
    background.close(0)
    (line,) = lines(telemetry)
    assert line.endswith(" 300.0")
    assert 'kind="summary"' in line
    assert 'key=""' not in line


def test_names_that_clients_make_up_come_to_an_end(telemetry: Telemetry) -> None:
    telemetry.observers = (Metrics(),)
    for number in range(400):
        outcome = telemetry.open("r")
        outcome.record_route("b", f"made up {number}")
        outcome.usage = {"prompt_tokens": 10, "completion_tokens": 1}
        outcome.close(200)
    shown = lines(telemetry)
    assert len({line.split('model="')[1].split('"')[0] for line in shown}) == 257
    assert sum(float(line.rsplit(" ", 1)[1]) for line in shown if 'kind="prompt"' in line) == 4000


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": None, "prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": "x"}}],
)
def test_odd_usage_counts_for_nothing(telemetry: Telemetry, usage: dict[str, Any]) -> None:
    telemetry.observers = (Metrics(),)
    outcome = telemetry.open("r")
    outcome.usage = usage
    outcome.close(200)
    assert lines(telemetry) == []
