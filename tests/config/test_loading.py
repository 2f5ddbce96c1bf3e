import re
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.config import check_tokenizers, is_nearby, load_settings, proxy_for, server_options
from proxy.core.errors import SettingError
from proxy.core.settings import Settings

NEAR = (
    *("127.0.0.1", "::1", "localhost.", "host.docker.internal", "192.168.1.20", "10.0.0.7", "::ffff:10.0.0.7", "fd12::1"),
    *("fe80::1", "169.254.3.4", "100.101.102.103", "ollama", "gpu.lan", "Studio.local", "box.home.arpa", "evil-lan"),
)
FAR = ("openrouter.ai", "api.example.com", "8.8.8.8", "2606:4700::1111", "100.128.0.1", "my.notlan")


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", *Settings.model_fields):
        monkeypatch.delenv(f"SPILLWAY_{name.upper()}", raising=False)


def toml(folder: Path, text: str) -> Path:
    path = folder / "spillway.toml"
    path.write_text(text)
    return path


def refusal(config: Path | None = None, **overrides: Any) -> str:
    with pytest.raises(SettingError) as caught:
        load_settings(config, **overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_any_setting_it_is_a_private_proxy() -> None:
    settings = load_settings()
    assert (settings.host, settings.backends) == ("127.0.0.1", ())
    assert (settings.target, settings.trigger, settings.pause) == (0.5, 0.8, 0.9)


def test_command_line_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml(tmp_path, "port = 1\nhost = 'localhost'\nlog_level = 'debug'\n[models.'q*']\nwindow = 8192\n")
    monkeypatch.setenv("SPILLWAY_PORT", "2")
    monkeypatch.setenv("SPILLWAY_LOG_LEVEL", "")
    assert load_settings(config).port == 2
    settings = load_settings(config, port=3, host=None)
    assert (settings.port, settings.host, settings.log_level) == (3, "localhost", "debug")
    assert settings.models["q*"].window == 8192
    monkeypatch.setenv("SPILLWAY_CONFIG", str(config))
    assert load_settings().host == "localhost"


def test_settings_are_printed_with_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = toml(tmp_path, "port = 1\n\ntrigger = '75%'\n[models.'q*']\npause = '95%'\n")
    monkeypatch.setenv("SPILLWAY_PORT", "2")
    monkeypatch.setenv("SPILLWAY_STORE_TTL", "1d")
    monkeypatch.setenv("SPILLWAY_LIMITS__LINES", "400")
    given = ["--log-level", "debug", "--api-keys", "s3cret", "--backend", '[{"url": "http://a", "api_key": "s4cret"}]']
    assert main(["config", "--config", str(config), *given]) == 0
    printed = [re.split(" {2,}", row) for row in capsys.readouterr().out.split("\n")]
    assert {row[0]: row[-1] for row in printed if row[-1] not in ("default", "")} == {
        "port = 2": "SPILLWAY_PORT",
        "store_ttl = 86400.0": "SPILLWAY_STORE_TTL",
        'limits = {"lines": 400}': "SPILLWAY_LIMITS__LINES",
        "trigger = 0.75": f"{config}:3",
        'models = {"q*": {"pause": 0.95}}': f"{config}:4",
        'log_level = "debug"': "command line",
        'api_keys = "(hidden)"': "command line",
        'backends = [{"url": "http://a", "name": "a", "kind": "auto", "api_key": "(hidden)", "managed": true}]': "command line",
    }
    assert {row[0].split(" = ")[0] for row in printed if row[0]} == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("url", "root", "name"),
    [
        ("http://localhost:1234", "http://localhost:1234", "localhost-1234"),
        ("http://localhost:1234/v1/", "http://localhost:1234", "localhost-1234"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api", "openrouter.ai"),
        ("http://[::1]:80/", "http://[::1]:80", "--1-80"),
        ("http://me:secret@host:1", "http://host:1", "host-1"),
        ("http://me:s@host/a@b/v1/", "http://host/a@b", "host"),
        ("localhost:1234/v1", "http://localhost:1234", "localhost-1234"),
        ("[::1]:80", "http://[::1]:80", "--1-80"),
        ("http://host:1/v1/v1", "http://host:1", "host-1"),
        ("http://host:1/v1/chat/completions", "http://host:1", "host-1"),
        ("https://openrouter.ai/api/v1/models/", "https://openrouter.ai/api", "openrouter.ai"),
        ("http://host:1//api/tags", "http://host:1", "host-1"),
        ("http://models:1", "http://models:1", "models-1"),
    ],
)
def test_a_backend_is_its_root_and_named_for_its_place(url: str, root: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_BACKENDS", f'[{{"url":"{url}"}}]')
    backend = load_settings().backends[0]
    assert (backend.url, backend.name) == (root, name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("SPILLWAY_TRIGER", "the nearest is SPILLWAY_TRIGGER"), ("SPILLWAY_BACKEND", "the nearest is SPILLWAY_BACKENDS"),
        ("SPILLWAY_STROE__X", "the nearest is SPILLWAY_STORE"),
        ("SPILLWAY_BACKEND__0__URL", "the nearest is SPILLWAY_BACKENDS"), ("SPILLWAY_QQQQQQQQ", "no such setting"),
        ("SPILLWAY_", "no such setting"),
    ],
)  # fmt: skip
def test_a_misspelt_variable_is_named_with_the_nearest(name: str, nearest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "s3cret")
    message = refusal()
    assert message.startswith(f"{name}: no such setting")
    assert message.endswith(nearest)
    assert "s3cret" not in message


@pytest.mark.parametrize("service", ["SPILLWAY", "SPILLWAY_REDIS", "SPILLWAY_1"])
def test_what_kubernetes_injects_is_left_alone(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    injected = {
        "SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "8484", "SERVICE_PORT_HTTP": "8484", "SERVICE_PORT_METRICS_2": "9090",
        "PORT": "tcp://10.0.0.1:8484", "PORT_8484_TCP": "tcp://10.0.0.1:8484", "PORT_8484_TCP_PROTO": "tcp",
        "PORT_8484_TCP_PORT": "8484", "PORT_8484_TCP_ADDR": "10.0.0.1", "PORT_53_UDP": "udp://[::1]:53",
        "PORT_53_SCTP_PORT": "53", "PORT_8000_TCP_PORT_START": "8000",
    }  # fmt: skip
    for name, value in injected.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert load_settings().port == 8484
    monkeypatch.setenv("SPILLWAY_PORT", "http://10.0.0.1")
    assert "SPILLWAY_PORT=" in refusal()


def test_keys_are_trimmed_and_not_shown() -> None:
    settings = load_settings(api_keys=[" s3cret\n"], backends=[{"url": "http://a", "api_key": "s4cret\n"}])
    assert (settings.api_keys, settings.backends[0].api_key) == (("s3cret",), "s4cret")
    assert "cret" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "x", ["SPILLWAY_PORT='x'", "integer"]),
        ("PORT", "70000", ["SPILLWAY_PORT='70000'", "65535"]),
        ("TRIGGER", "1.5", ["SPILLWAY_TRIGGER='1.5'", "such as 0.8 or 80%, or tokens"]),
        ("TRIGGER", "80", ["SPILLWAY_TRIGGER='80'", "such as 0.8 or 80%, or tokens"]),
        ("TRIGGER", "nan", ["SPILLWAY_TRIGGER='nan'", "finite"]),
        ("TRIGGER", "0.4", ["target 0.5", "below trigger 0.4"]),
        ("PAUSE", "0.7", ["trigger 0.8", "at most pause 0.7"]),
        ("READ_TIMEOUT", "inf", ["SPILLWAY_READ_TIMEOUT='inf'", "finite"]),
        ("MAX_BODY", "-1", ["SPILLWAY_MAX_BODY='-1'", "greater than 0"]),
        ("STATUS", "loud", ["SPILLWAY_STATUS__0='loud'", "'auto'", "'off'"]),
        ("HOST", "0.0.0.0", ["0.0.0.0", "SPILLWAY_API_KEYS", "SPILLWAY_ALLOW=open"]),
        ("ALLOW", "maybe", ["SPILLWAY_ALLOW__0='maybe'", "'open'"]),
        ("BACKENDS", "nope", ["SPILLWAY_BACKENDS__0__URL='nope'", "must start with http://"]),
        ("BACKENDS", '[{"url":"example.com"}]', ["SPILLWAY_BACKENDS__0__URL='example.com'", "http://"]),
        ("BACKENDS", '[{"url":"http://"}]', ["SPILLWAY_BACKENDS__0__URL", "root such as"]),
        ("BACKENDS", '[{"url":"http://a:99999"}]', ["SPILLWAY_BACKENDS__0__URL", "65535"]),
        ("BACKENDS", '[{"url":"http://a/v1?x=1"}]', ["SPILLWAY_BACKENDS__0__URL", "without query"]),
        ("BACKENDS", '[{"url":"http://a","name":"a\\nb"}]', ["SPILLWAY_BACKENDS__0__NAME", "letters"]),
        ("BACKENDS", '[{"url":"http://a","kind":"x"}]', ["SPILLWAY_BACKENDS__0__KIND='x'", "one of auto, ollama"]),
        ("BACKENDS", '[{"url":"http://a","u":1}]', ["SPILLWAY_BACKENDS__0__U", "api_key, kind, managed, name, url"]),
        ("BACKENDS", '[{"url":"http://a"},{"url":"http://a"}]', ["different names", "'a'"]),
        ("MODELS", "q", ["SPILLWAY_MODELS='q'", "must be JSON"]),
        ("LIMITS", "[", ["SPILLWAY_LIMITS='['", "must be JSON"]),
        ("MODELS", '{"q*":{"window":5}}', ["SPILLWAY_MODELS__Q*__WINDOW=5", "256"]),
        ("MODELS", '{"q*":{"wind":5}}', ["SPILLWAY_MODELS__Q*__WIND", "trigger, vision, window"]),
        ("MODELS", '{"q*":{"trigger":0.3}}', ["models q*", "target 0.5", "trigger 0.3"]),
        ("LIMITS__KEEP", ",", ["SPILLWAY_LIMITS", "empty list"]),
        ("DISCOVER", "http://nas:1", ["SPILLWAY_DISCOVER__0='http://nas:1'", "SPILLWAY_BACKENDS"]),
        ("SUMMARY_MODEL", "  ", ["SPILLWAY_SUMMARY_MODEL='  '", "at least 1"]),
        ("API_KEYS", '[""]', ["SPILLWAY_API_KEYS__0", "at least 1"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(
    name: str, value: str, says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SPILLWAY_{name}", value)
    message = refusal()
    assert all(part in message for part in says), message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_KEYS", '["s3cret", 5'), ("API_KEYS", '[{"s3cret": 1}]'),
        ("BACKENDS", '[{"url":"http://a","api_key":["s3cret"]}]'), ("BACKENDS", '{"url":"http://a","api_key":"s3cret"'),
        ("BACKENDS", '[{"url":"http://a","api_key":"s3cret"'),
    ],
)  # fmt: skip
def test_keys_are_not_shown_in_errors(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SPILLWAY_{name}", value)
    message = refusal()
    assert f"SPILLWAY_{name}" in message
    assert "s3cret" not in message


@pytest.mark.parametrize(
    ("typed", "keys"), [("one", ("one",)), ("a, b,", ("a", "b")), ('["a","b"]', ("a", "b")), ('["a,b"]', ("a,b",))]
)
def test_lists_may_be_json_or_words(typed: str, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_API_KEYS", typed)
    assert load_settings().api_keys == keys


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("https://openrouter.ai/api", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://openrouter.ai/api", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("https://openrouter.ai/api", {"HTTP_PROXY": "http://p:3128"}, None),
        ("https://openrouter.ai/api", {"ALL_PROXY": "socks5://p:1080"}, "socks5://p:1080"),
        ("http://10.0.0.5:8000", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://10.0.0.5:8000", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.5"}, None),
        ("http://10.0.0.5:8000", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.5:8000"}, None),
        ("http://gpu.lan:8000", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "other, .lan"}, None),
        ("http://gpu.lan:8000", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("http://127.0.0.1:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://localhost:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://[::1]:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://[::ffff:127.0.0.1]:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://0.0.0.0:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://llm.localhost:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://localhost.:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://host.docker.internal:8000", {"ALL_PROXY": "http://p:1"}, None),
        ("http://gpu.lan:8000", {}, None),
    ],
)
def test_a_backend_elsewhere_is_reached_through_the_proxy_of_the_environment(
    url: str, environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


@pytest.mark.parametrize("value", [",", " , ,", '[""]', '["a", " "]'])
def test_an_empty_key_is_refused_and_opens_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_API_KEYS", value)
    assert "SPILLWAY_API_KEYS" in refusal()


def test_names_and_origins_are_taken_as_people_type_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_ALLOWED_HOSTS", "Spillway, *.Example.com., *")
    monkeypatch.setenv("SPILLWAY_CORS", "https://Chat.example.com/, http://localhost:*, app://x.y, null, *")
    settings = load_settings()
    assert settings.allowed_hosts == ("spillway", "*.example.com", "*")
    assert settings.cors == ("https://chat.example.com", "http://localhost:*", "app://x.y", "null", "*")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ALLOWED_HOSTS", "http://a"), ("ALLOWED_HOSTS", "a:8484"), ("ALLOWED_HOSTS", "a/b")),
        *(("CORS", "chat.example.com"), ("CORS", "https://a/b"), ("CORS", "https://me@a")),
    ],
)
def test_what_is_no_name_or_origin_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SPILLWAY_{name}", value)
    message = refusal()
    assert f"SPILLWAY_{name}" in message
    assert "such as" in message


def test_a_backends_password_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SPILLWAY_BACKENDS", '[{"url": "http://me:s3cr%3At@host:1/v1"}]')
    (backend,) = load_settings().backends
    assert backend.authorization == "Basic bWU6czNjcjp0"
    assert "s3cr" not in repr(backend) + backend.model_dump_json()
    for wrong in ("ftp://me:s3cret@host", "http://me:s3cret@", "http://me:s3cret@host:0", "me:s3cret@host"):
        monkeypatch.setenv("SPILLWAY_BACKENDS__0__URL", wrong)
        monkeypatch.delenv("SPILLWAY_BACKENDS", raising=False)
        assert "s3cret" not in refusal()
        monkeypatch.delenv("SPILLWAY_BACKENDS__0__URL")
        assert main(["check", "--backend", wrong]) == 2
        assert "s3cret" not in capsys.readouterr().err
    monkeypatch.setenv("SPILLWAY_BACKENDS", '[{"url": "http://me:s3cret@host", "api_key": "k"}]')
    assert "only one of them can be sent" in (told := refusal())
    assert "s3cret" not in told


@pytest.mark.parametrize(("host", "near"), [(host, True) for host in NEAR] + [(host, False) for host in FAR])
def test_what_is_on_this_machine_or_in_its_network_is_near(host: str, near: bool) -> None:
    assert is_nearby(host) is near


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    models = {"a": {"tokenizer": str(tmp_path)}, "b": {"tokenizer": "Qwen/Qwen3-8B"}}
    check_tokenizers(load_settings(models=models))
    with pytest.raises(SettingError, match="MODELS__C__TOKENIZER"):
        check_tokenizers(load_settings(models={**models, "c": {"tokenizer": "/no/tokenizer.json"}}))


def test_hybrid_is_another_name_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_STRATEGY", "hybrid")
    assert load_settings().strategy == "auto"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("SSL_CERTFILE", "nowhere.pem", "there is no such file"), ("SSL_KEYFILE", __file__, "without UVICORN_SSL_CERTFILE"),
        ("ROOT_PATH", "llm", "must be a path"), ("ROOT_PATH", "/a b", "must be a path"),
    ],
)  # fmt: skip
def test_what_uvicorn_could_not_use_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str) -> None:
    monkeypatch.setenv(f"UVICORN_{name}", value)
    with pytest.raises(SettingError, match=f"UVICORN_{name}.*{why}"):
        server_options()
