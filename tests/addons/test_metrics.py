"""`/metrics`: what is counted, names by Prometheus' conventions, and the dashboard that is made of them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.addons.metrics import Metrics
from proxy.outcome import Telemetry
from tests.fakes import FakeModel, LlamaCppFake, VllmFake, qa
from tests.fakes.waiting import wait_until
from tests.pipeline.talk import MODEL, Talk, wait_ahead
from tests.pipeline.test_ahead import brain as talking
from tests.pipeline.test_recalling import WINDOW, brain, long_chat
from tests.proxying import Proxy, metric, running_proxy

CONFIG = Path(__file__).parent.parent.parent / "config"
DASHBOARD = CONFIG / "grafana/dashboards/spillway.json"


@pytest.fixture(scope="module")
def shown() -> str:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], brain)
    with fake, running_proxy(fake) as proxy:
        for _ in range(2):
            proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40})
        return proxy.client.get("/metrics").text


def test_names_follow_the_conventions_of_prometheus(shown: str) -> None:
    families = list(text_string_to_metric_families(shown))
    assert len(families) > 20
    for family in families:
        assert re.fullmatch(r"(spillway|process)(_[a-z][a-z0-9]*)+", family.name)
        assert family.documentation
        assert family.type != "histogram" or family.name.endswith(("_seconds", "_ratio", "_bytes", "_tokens"))


def histogram(text: str, name: str) -> tuple[float, float]:
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name == name
    }
    return values[f"{name}_count"], values[f"{name}_sum"]


def test_what_was_done_ahead_is_not_what_users_waited_for() -> None:
    with LlamaCppFake([MODEL], talking()) as fake, running_proxy(fake, ahead="on") as proxy:
        Talk(proxy).ask()
        wait_ahead(proxy, done=1)
        wait_until(lambda: metric(proxy, "spillway_compaction_seconds_count"))
        (labels,) = metric(proxy, "spillway_compaction_seconds_count")
        assert 'when="ahead"' in labels


# Who used what

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
    body = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 20, **fields}
    answer = proxy.chat(body, authorization=f"Bearer {key}")
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def test_each_key_and_each_model_has_its_own() -> None:
    with VllmFake([FakeModel("m"), FakeModel("n")], qa()) as fake, running_proxy(fake, api_keys=("one", "two")) as proxy:
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


def test_what_was_cached_recalled_and_summarised_is_counted() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        used = [ask(proxy, "k", messages=long_chat(), max_tokens=40) for _ in range(2)]
        told = totals(proxy)
        assert told["cached"] == sum(each["prompt_tokens_details"]["cached_tokens"] for each in used) > 0
        recalled = [each["spillway"]["recalled"]["tokens"] for each in used if "recalled" in each["spillway"]]
        assert told["recalled"] == sum(recalled) > 0
        assert told["summary"] > 100


def test_names_that_clients_make_up_come_to_an_end() -> None:
    metrics = Metrics()
    telemetry = Telemetry(clock=lambda: 0.0)
    telemetry.observers = (metrics,)
    odd: tuple[dict[str, Any], ...] = ({}, {"prompt_tokens": None}, {"prompt_tokens_details": {"cached_tokens": "x"}})
    for number in range(400):
        outcome = telemetry.open("r", (), credential=f"c{number % 20}" if number > 50 else "one")
        outcome.record_route(("b", f"made up {number}"), "b", listed=False)
        outcome.usage = {"prompt_tokens": 10, "completion_tokens": 1}
        if number:  # it was refused before anything answered
            outcome.add("first_byte")
        outcome.close(200)
    outcome = telemetry.open("r", ())
    outcome.record_route(("b", "real"), "b", listed=True)
    outcome.usage = {"prompt_tokens": 0}
    outcome.close(404)
    for usage in odd:
        outcome = telemetry.open("r", ())
        outcome.usage = usage
        outcome.close(200)
    shown = [each for each in metrics.render().decode().split("\n") if each.startswith(f"{NAME}{{")]
    models = {line.split('model="')[1].split('"')[0] for line in metrics.render().decode().split("\n") if 'model="' in line}
    assert len(models) == 256 + 3, "and none, the real one and the others"
    assert models >= {"real", "other", "made up 1", "made up 32"}
    assert not models & {"made up 0", "made up 33"}
    assert sum(float(line.rsplit(" ", 1)[1]) for line in shown if 'kind="prompt"' in line) == 4000


def test_operators_are_told_of_every_metric(shown: str) -> None:
    told = (CONFIG.parent / "docs/operations.md").read_text()
    families = text_string_to_metric_families(shown)
    names = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in families}
    own = {name for name in names if name.startswith("spillway_")}
    assert {name for name in own if f"`{name}" not in told} == set()
    assert "_created" not in shown, "nobody reads when a series began"


# The dashboard


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def queries(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return asked + [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]


def known() -> dict[str, set[str]]:
    """The names that queries may use, and the labels of each."""
    names: dict[str, set[str]] = {}
    metrics = Metrics()
    for collector, plain in metrics._registry._collector_to_names.items():
        for name in plain:
            names[name] = {"le", *getattr(collector, "_labelnames", ())}
    return names


def test_every_metric_and_label_of_the_dashboard_and_the_alerts_exists(dashboard: dict[str, Any], shown: str) -> None:
    alerts = yaml.safe_load((CONFIG / "alerts.yml").read_text())["groups"][0]["rules"]
    asked, names = [*queries(dashboard), *(alert["expr"] for alert in alerts)], known()
    seen = {sample.name for family in text_string_to_metric_families(shown) for sample in family.samples}
    used = set()
    for query in asked:
        mentioned = re.findall(r"\b((?:spillway|process)_\w+)(\{[^}]*\})?", query)
        assert mentioned, query
        for name, chosen in mentioned:
            used.add(name)
            assert name in names or name in seen, name
            own = names.get(name, set()) | {"job", "instance"}
            for label in re.findall(r"(\w+)=~?\"", chosen):
                assert label in own, f"{name} has no label {label}"
        grouped = re.findall(r"by \(([\w, ]+)\)", query) + re.findall(r"label_values\(\w+, (\w+)\)", query)
        for label in ", ".join(grouped).split(", ") if grouped else ():
            has = all(label in names.get(name, set()) | {"instance"} for name, _ in mentioned)
            assert has, f"{query}: no label {label}"
    assert {name.removesuffix("_bucket") for name in used} >= {
        *("spillway_fill_ratio", "spillway_first_byte_seconds", "spillway_compaction_seconds", "spillway_prefix_reuse_ratio"),
    }  # fmt: skip


def test_the_dashboard_has_every_counter_there_is(dashboard: dict[str, Any]) -> None:
    asked = " ".join(queries(dashboard))
    counters = {name for name in known() if name.startswith("spillway_") and name.endswith("_total")}
    assert {name for name in counters if name not in asked} == set()
