"""`/metrics`: what is counted, names by Prometheus' conventions, and the dashboard that is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.addons.metrics import Metrics
from tests.fakes import FakeModel, LlamaCppFake
from tests.fakes.waiting import wait_until
from tests.pipeline.talk import MODEL, Talk, wait_ahead
from tests.pipeline.test_ahead import brain as talking
from tests.pipeline.test_recalling import WINDOW, brain, long_chat
from tests.proxying import metric, running_proxy

load_yaml = pytest.importorskip("yaml").safe_load
CONFIG = Path(__file__).parent.parent.parent / "config"
DASHBOARD = CONFIG / "grafana/dashboards/spillway.json"

# What `promtool check metrics` looks at (client_golang, prometheus/testutil/promlint/validations).
UNITS = {
    "milliseconds": "seconds", "microseconds": "seconds", "minutes": "seconds", "hours": "seconds", "days": "seconds",
    "percent": "ratio", "percents": "ratio", "fraction": "ratio", "share": "ratio",
    "kilobytes": "bytes", "megabytes": "bytes", "gigabytes": "bytes", "bits": "bytes", "chars": "bytes",
}  # fmt: skip
SHORT = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "m", "h", "d", "pct"}
TYPES = {"counter", "gauge", "histogram", "summary", "metric"}


def problems(text: str) -> Iterator[str]:
    for family in text_string_to_metric_families(text):
        name, words = family.name, family.name.split("_")
        samples = {sample.name for sample in family.samples}
        if not family.documentation:
            yield f"{name}: no help text"
        if family.type == "counter" and not all(each.endswith(("_total", "_created")) for each in samples):
            yield f"{name}: a counter ends with _total"
        if family.type != "counter" and name.endswith("_total"):
            yield f"{name}: only a counter ends with _total"
        if family.type not in {"histogram", "summary"} and name.endswith(("_bucket", "_count", "_sum")):
            yield f"{name}: that ending is a histogram's"
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
            yield f"{name}: neither colons nor capitals"
        yield from (f"{name}: use {UNITS[word]}, not {word}" for word in words if word in UNITS)
        yield from (f"{name}: {word} is an abbreviation" for word in words if word in SHORT)
        yield from (f"{name}: a name does not tell the type" for word in words if word in TYPES)
        if family.type == "histogram" and words[-1] not in {"seconds", "ratio", "bytes", "tokens"}:
            yield f"{name}: a histogram has a unit"
        for label in {label for sample in family.samples for label in sample.labels}:
            if not re.fullmatch(r"[a-z][a-z_]*", label) or label == "quantile":
                yield f"{name}: label {label}"


@pytest.fixture(scope="module")
def shown() -> str:
    """What is shown after some traffic."""
    fake = LlamaCppFake([FakeModel("m", WINDOW)], brain)
    with fake, running_proxy(fake) as proxy:
        for _ in range(2):
            proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40})
        return proxy.client.get("/metrics").text


def test_names_and_units_follow_the_conventions_of_prometheus(shown: str) -> None:
    names = {family.name for family in text_string_to_metric_families(shown)}
    assert len(names) > 20
    assert all(name.startswith(("spillway_", "process_")) for name in names)
    assert list(problems(shown)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "# HELP a_milliseconds x\n# TYPE a_milliseconds gauge\na_milliseconds 1\n",
        "# HELP a_total x\n# TYPE a_total gauge\na_total 1\n",
        "# TYPE a gauge\na 1\n",
        '# HELP a_fill x\n# TYPE a_fill histogram\na_fill_bucket{le="+Inf"} 1\na_fill_count 1\na_fill_sum 1\n',
        "# HELP waitMs x\n# TYPE waitMs gauge\nwaitMs 1\n",
        "# HELP a_count x\n# TYPE a_count gauge\na_count 1\n",
    ],
)  # fmt: skip
def test_the_check_finds_what_is_wrong(wrong: str) -> None:
    assert list(problems(wrong)) != []


def histogram(text: str, name: str) -> tuple[float, float]:
    """How many were observed, and their sum."""
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name == name
    }
    return values[f"{name}_count"], values[f"{name}_sum"]


def test_the_histograms_hold_each_request(shown: str) -> None:
    fills, fill = histogram(shown, "spillway_fill_ratio")
    assert fills == 2
    assert 0.2 < fill / 2 < 0.9
    begun, waited = histogram(shown, "spillway_first_byte_seconds")
    assert begun == 2
    compactions, compacting = histogram(shown, "spillway_compaction_seconds")
    assert compactions == 1
    assert 0 < compacting < waited, "the one that compacted waited for that"
    told, reused = histogram(shown, "spillway_prefix_reuse_ratio")
    assert told == 2
    assert 0.5 < reused < 2, "the second prompt was read before, nearly all of it"


def test_what_was_done_ahead_is_not_what_users_waited_for() -> None:
    with LlamaCppFake([MODEL], talking()) as fake, running_proxy(fake, ahead="on") as proxy:
        Talk(proxy).ask()
        wait_ahead(proxy, done=1)
        wait_until(lambda: metric(proxy, "spillway_compaction_seconds_count"))
        (labels,) = metric(proxy, "spillway_compaction_seconds_count")
        assert 'when="ahead"' in labels


def test_a_system_prompt_that_is_longer_than_the_clients_saves_nothing() -> None:
    own = "Be kind, and answer in full sentences. " * 20
    asked = [{"role": "system", "content": "Be."}, {"role": "user", "content": "hello"}]
    with LlamaCppFake() as fake, running_proxy(fake, policy="local", system_prompt=own) as proxy:
        answer = proxy.chat({"model": "m", "messages": asked})
        assert answer.headers["x-spillway-shaped"].startswith("system=-")
        for _ in range(2):
            assert list(metric(proxy, "spillway_shaped_tokens_total").values()) == [0.0]
            assert list(metric(proxy, "spillway_requests_total").values()) == [1.0]


def test_operators_are_told_of_every_metric(shown: str) -> None:
    told = (CONFIG.parent / "docs/operations.md").read_text()
    families = text_string_to_metric_families(shown)
    names = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in families}
    own = {name for name in names if name.startswith("spillway_") and not name.endswith("_created")}
    assert {name for name in own if f"`{name}" not in told} == set()


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


def test_every_metric_and_label_of_the_dashboard_exists(dashboard: dict[str, Any], shown: str) -> None:
    asked, names = queries(dashboard), known()
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
            assert all(label in names[name] for name, _ in mentioned), f"{query}: no label {label}"
    assert {name.removesuffix("_bucket") for name in used} >= {
        *("spillway_fill_ratio", "spillway_first_byte_seconds", "spillway_compaction_seconds", "spillway_prefix_reuse_ratio"),
    }  # fmt: skip


def test_the_dashboard_has_every_counter_there_is(dashboard: dict[str, Any]) -> None:
    asked = " ".join(queries(dashboard))
    counters = {name for name in known() if name.startswith("spillway_") and name.endswith("_total")}
    assert {name for name in counters if name not in asked} == set()


def test_panels_do_not_overlap_and_say_what_they_show(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_what_provisions_it_agrees_with_the_composition(dashboard: dict[str, Any]) -> None:
    services = load_yaml((CONFIG.parent / "docker-compose.yml").read_text())["services"]
    grafana, prometheus = services["grafana"], services["prometheus"]
    assert grafana["profiles"] == prometheus["profiles"] == ["monitoring"]
    mounts = dict(mount.split(":")[:2] for mount in (*grafana["volumes"], *prometheus["volumes"]) if mount[0] == ".")
    inside = {target: CONFIG.parent / source for source, target in mounts.items()}
    assert all(source.exists() for source in inside.values())
    (provider,) = load_yaml((CONFIG / "grafana/provisioning/dashboards/spillway.yml").read_text())["providers"]
    assert (inside[provider["options"]["path"]] / DASHBOARD.name).read_text() == DASHBOARD.read_text()
    (source,) = load_yaml((CONFIG / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {each["datasource"]["type"] for each in dashboard["panels"] if "targets" in each} == {source["type"]}
    named = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(named.parent) == provider["options"]["path"]
    assert named.name == DASHBOARD.name
    assert f"--config.file={next(path for path in inside if path.endswith('.yml'))}" in prometheus["command"]


def test_prometheus_reads_each_of_the_compositions_spillways() -> None:
    services = load_yaml((CONFIG.parent / "docker-compose.yml").read_text())["services"]
    (job,) = load_yaml((CONFIG / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    own = {name for name, service in services.items() if service.get("image") == "spillway"}
    assert set(found["names"]) == own
    assert str(found["port"]) == services["spillway"]["environment"]["SPILLWAY_PORT"]
    assert job["job_name"] == "spillway", "the dashboard asks for it by this name"
