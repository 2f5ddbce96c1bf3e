"""`spillway check` against every kind of backend."""

import json
import socket
import ssl
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from proxy.backends import KINDS, backend_of
from proxy.cli import main
from proxy.cli.check import MOST_MODELS, SeenBackend, findings_of
from proxy.config import load_settings
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, OllamaFake


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("proxy.cli.check.CONTAINERS", ())
    return tmp_path


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*backends: FakeBackend | str, answers: bool = True, works: bool = True) -> dict[str, dict[str, Any]]:
        urls = [each if isinstance(each, str) else each.url for each in backends]
        status = main(["check", "--json", *(part for url in urls for part in ("--backend", url))])
        assert status == (0 if answers and works else 1)
        told = json.loads(capsys.readouterr().out)
        assert told["answers"] is answers
        assert len({found["code"] for found in told["findings"]}) == len(told["findings"])
        return {found["code"]: found for found in told["findings"]}

    return ask


def gone() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("kind", FAKES)
def test_it_prints_what_it_found(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FAKES[kind]([FakeModel("m", 6144)]) as fake:
        assert main(["check", "--backend", fake.url + "/v1"]) == 0
    head, row, *_ = capsys.readouterr().out.split("\n")
    assert head.split() == ["BACKEND", "KIND", "MODEL", "WINDOW", "FROM", "TOOLS", "VISION"]
    assert f" {kind} " in row
    assert ("unknown" if kind == "generic" else "6144") in row


def test_names_of_models_can_not_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with FAKES["generic"]([FakeModel("m\x1b[2J\x9b\n!", 6144)]) as fake:
        assert main(["check", "--backend", fake.url]) == 0
    row, found, cure = (line for line in capsys.readouterr().out.split("\n") if "m\\x1b[2J\\x9b\\n!" in line)
    assert (row + found + cure).isprintable()


def test_what_is_wrong_with_https_is_found(checked: Any, home: Path) -> None:
    with FAKES["llamacpp"]() as fake:
        https = fake.url.replace("http:", "https:")
        assert fake.url in checked(https, answers=False)["wrong_url"]["cure"]
        assert fake.url in checked(f"{fake.url}/llm", works=False)["wrong_url"]["cure"]
    with FAKES["lmstudio"]([]) as empty:
        assert "http://" in checked(empty.url.replace("http:", "https:"), answers=False)["no_tls"]["cure"]
    making = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=other -keyout {home}/pem -out {home}/pem"
    subprocess.run(making.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "pem")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever).start()
        found = checked(f"https://127.0.0.1:{server.server_port}", answers=False)["untrusted_certificate"]
        server.shutdown()
    assert "self-signed certificate" in found["text"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "70000"], "SPILLWAY_PORT 70000"),
        (["serve", "--backend", "ftp://x"], "SPILLWAY_BACKENDS__0__URL='ftp://x' http://"),
        (["serve", "--host", "0.0.0.0", "--backend", "http://x"], "SPILLWAY_API_KEYS SPILLWAY_ALLOW=open"),
        (["serve", "--port", "18484", "--backend", "http://localhost:18484/v1"], "localhost:18484 is Spillway itself"),
        (["check", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["check", "--backend", "https://x"], "SSL_CERT_FILE No such file"),
        (["store", "stats"], "no such file"),
    ],
)
def test_a_wrong_setting_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("SPILLWAY_STORE", f"sqlite:///{home}/absent.sqlite3")
    monkeypatch.setenv("SSL_CERT_FILE", f"{home}/absent.pem")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words.split())


def test_a_port_that_is_taken_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port, "--backend", gone()]) == 2
    assert capsys.readouterr().err == (
        f"spillway: can't listen at 127.0.0.1:{port}: Address already in use. "
        "If another program, or another Spillway, is there, choose a free port: --port 0\n"
    )


# What is wrong


def test_where_nothing_is_wrong_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with FAKES["llamacpp"]([FakeModel("m", 32768)]) as fake:
        assert main(["check", "--backend", fake.url]) == 0
    assert capsys.readouterr().out.endswith("\nNo problems found.\n")


@pytest.mark.parametrize("kind", ["ollama", "lmstudio", "llamacpp"])
def test_a_window_that_is_only_a_default_is_found(kind: str, checked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = FakeModel("m", 4096, trained_window=40960), FakeModel("m", 32768, trained_window=40960)
    cures = {"ollama": "OLLAMA_CONTEXT_LENGTH", "lmstudio": "Context Length", "llamacpp": "`-c 16384`"}
    with FAKES[kind]([large]) as fake:
        assert "small_window" not in checked(fake)
    with FAKES[kind]([small]) as fake:
        found = checked(fake)["small_window"]
        assert cures[kind] in found["cure"]
        assert "4,096 tokens or less" in found["text"]
        assert main(["check", "--backend", fake.url]) == 0
        assert f"\n! {found['text']}\n  {found['cure'][0].upper()}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "models", "key", "code", "cure"),
    [
        ("generic", "m", None, "unknown_window", 'SPILLWAY_MODELS=\'{"m": {"window": 32768}}\''),
        ("vllm", "m", "secret", "wants_a_key", "api_key"),
        ("lmstudio", "", None, "no_models", "lms get"),
    ],
)
def test_what_a_backend_lacks_is_found(kind: str, models: str, key: Any, code: str, cure: str, checked: Any) -> None:
    with FAKES[kind](list(map(FakeModel, models)), api_key=key) as fake:
        assert cure in checked(fake, works=code != "no_models")[code]["cure"]


def test_what_is_set_and_not_so_is_found(checked: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_MODELS", '{"qwn*": {"window": 300}, "qwen*": {"window": 9000}}')
    monkeypatch.setenv("SPILLWAY_STORE", f"sqlite:///{str(home)[1:]}/store")
    with LlamaCppFake([FakeModel("qwen", 8192)], api_key="key") as fake:
        refused = json.dumps([{"url": fake.url, "api_key": "wrong"}])
        assert "api_key" in checked(refused, works=False)["refused_key"]["cure"]
        found = checked(refused.replace("wrong", "key"))
        assert found.keys() == {"model_not_listed", "smaller_window", "relative_store"}
        assert "qwn*: no backend lists such a model; the nearest are qwen." in found["model_not_listed"]["text"]
        assert "set the window" in found["smaller_window"]["cure"]
        assert f"sqlite:///{home}/store" in found["relative_store"]["cure"]
        monkeypatch.setenv("SPILLWAY_STORE", "redis://127.0.0.1:1")
        assert "can't be reached" in checked(refused.replace("wrong", "key"), works=False)["store_fails"]["text"]


def test_a_model_far_down_in_the_list_is_looked_at_too(checked: Any) -> None:
    with FAKES["generic"](models := [FakeModel(f"m{number}", 8192) for number in range(MOST_MODELS + 1)]) as fake:
        assert f"and {len(models) - 3} more" in checked(fake)["unknown_window"]["text"]


def test_a_server_that_only_has_ollamas_paths_is_named(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"object": "model", "owned_by": "localai"}
    monkeypatch.setattr("tests.fakes.ollama_native._openai_entry", lambda model: {"id": model.id, **listed})
    with OllamaFake([FakeModel("m", 4096)]) as fake:
        assert {"imitates_ollama", "unknown_window"} <= checked(fake).keys()


def test_a_server_that_only_lacks_ollamas_chat_is_named_too(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with OllamaFake([FakeModel("m", 4096)]) as fake:
        assert "imitates_ollama" not in checked(fake)
        del fake.routes["POST /api/chat"]
        assert "imitates_ollama" in checked(fake)


def test_a_model_that_is_left_alone_is_named(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_MODELS", '{"m": {"managed": false}}')
    with LlamaCppFake([FakeModel("m", 8192)]) as fake:
        assert checked(fake).keys() == {"left_alone"}


def test_loopback_inside_of_a_container_is_found(checked: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = checked(gone(), answers=False)
    assert set(refused) == {"no_answer"}
    assert "connection refused" in refused["no_answer"]["text"]
    # A kind without an answer.
    monkeypatch.setenv("SPILLWAY_BACKENDS", json.dumps([{"url": gone(), "kind": "openrouter"}]))
    assert set(checked(answers=False)) == {"no_answer"}
    monkeypatch.delenv("SPILLWAY_BACKENDS")
    (home / "mark").touch()
    monkeypatch.setattr("proxy.cli.check.CONTAINERS", (home / "mark",))
    found = checked(gone(), answers=False)["loopback_in_container"]
    assert "host.docker.internal" in found["cure"]
    monkeypatch.setenv("SPILLWAY_DISCOVER", "127.0.0.1")
    assert set(checked(answers=False)) == {"host_out_of_reach"}


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_backend_that_listens_on_its_own_loopback_only_is_found(kind: str) -> None:
    """Its name is looked up nowhere here: no test leaves this machine."""
    (found,) = findings_of(load_settings(), [SeenBackend("b", "http://host.docker.internal:1", kind)])
    assert found.code == "host_out_of_reach"
    assert backend_of(kind).listen in found.cure
    assert "extra_hosts" in found.cure
