"""What a command imports: only what it needs, so that it starts quickly and stays small."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.process import Running, running
from proxy.cli.launch import LISTENING
from proxy.cli.serve import discovered
from proxy.core.settings import Settings
from tests.fakes import FakeModel, LlamaCppFake, LmStudioFake, OllamaFake, VllmFake, scripted
from tests.fakes.waiting import wait_until

LATER = {
    *("json_repair", "opentelemetry.sdk", "proxy.cli.check", "proxy.cli.live", "proxy.demo"),
    *("pygments", "redis", "rich", "snowballstemmer", "tokenizers"),
}
"""What takes long to import, or much memory, and only some requests or commands need."""
SERVE = [sys.executable, "-X", "importtime", "-m", "proxy", "serve", "--port", "0", "--backend"]
VOCABULARIES = "proxy.tokens.data"
"""The folder in which they lie is a package, imported when one is read."""
_IMPORTED = re.compile(r"^import time:.*\|\s*(\S+)$", re.MULTILINE)


def imported(server: Running) -> set[str]:
    return set(_IMPORTED.findall(server.log.read_text(encoding="utf-8")))


def test_what_not_every_request_needs_is_imported_when_one_does(tmp_path: Path) -> None:
    told = {"SPILLWAY_STORE": "memory://", "SPILLWAY_HOST": "0.0.0.0", "SPILLWAY_ALLOW": "open"}
    told["SPILLWAY_SUMMARY_MODEL"] = "mm"
    fake = LlamaCppFake([FakeModel("m", 4096, trained_window=40960)])
    with fake, running([*SERVE, fake.url], tmp_path / "log", told) as server:
        url = server.wait_for("#key=").partition("browser: ")[2].partition("/#key=")[0]
        server.wait_for(f"Found llama-server at {fake.url}: m (4,096 tokens).")
        server.wait_for("  m was made for 40,960 tokens: start llama-server with `-c 16384`")
        server.wait_for("SPILLWAY_SUMMARY_MODEL=mm: no backend lists such a model; the nearest are m.")
        at_ready = imported(server)
        asked = json.loads(server.wait_for("Count to").split("'")[-2]) | {"max_tokens": 9}
        assert "model" not in asked  # where there is one, nobody has to look up its id
        assert httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60).status_code == 200
    assert at_ready & (LATER | {VOCABULARIES, "proxy.relay"}) == {"proxy.relay"}
    assert imported(server) & (LATER | {VOCABULARIES}) == {VOCABULARIES}


@pytest.mark.heavy
def test_it_listens_with_tls_at_a_socket_and_below_a_path(tmp_path: Path) -> None:
    """By uvicorn's own variables; whether whatever is in front takes the path off or not."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*made, "-keyout", tmp_path / "key", "-out", tmp_path / "cert"], check=True, capture_output=True)
    told = {"SPILLWAY_STORE": "memory://", "UVICORN_ROOT_PATH": "/llm/"}
    tls = {"UVICORN_SSL_CERTFILE": str(tmp_path / "cert"), "UVICORN_SSL_KEYFILE": str(tmp_path / "key")}
    serve = [sys.executable, "-m", "proxy", "serve", "--port", "0", "--backend"]
    with LlamaCppFake([FakeModel("m", 4096)]) as fake:
        for more, place in ((tls, None), ({"UVICORN_UDS": str(tmp_path / "socket")}, str(tmp_path / "socket"))):
            with running([*serve, fake.url], tmp_path / "log", told | more) as server:
                said = server.wait_for(LISTENING).rpartition(LISTENING)[2].strip()
                transport = httpx.HTTPTransport(uds=place, verify=False)
                with httpx.Client(transport=transport, timeout=60) as client:
                    root = "http://localhost/llm" if place else said.removesuffix("/v1")
                    assert said == place if place else said.startswith("https://")
                    for url in (root, root.removesuffix("/llm")):
                        hello = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
                        assert client.post(f"{url}/v1/chat/completions", json=hello).status_code == 200
                        assert "m" in client.get(f"{url}/v1/models").text
                        assert 'src="ui/app.js"' in client.get(f"{url}/", headers={"accept": "text/html"}).text
                        assert client.get(f"{url}/ui/app.js").status_code == 200


def test_spillway_does_not_find_itself() -> None:
    host = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.79"
    with LlamaCppFake([FakeModel("m", 4096)], place=(host, 8080)):
        for port, found in ((8081, ["llamacpp"]), (8080, [])):
            settings = Settings(host=host, port=port, discover=(host,), allow=("open",))
            assert [each.kind for each in asyncio.run(discovered(settings))] == found


def test_help_imports_nothing_but_the_parser() -> None:
    code = "import sys; from proxy.cli import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.strip().split("\n")[-1].split())
    assert "argparse" in modules
    assert not {"asyncio", "httpx", "pydantic", "starlette", "uvicorn", "proxy.app", "proxy.core.settings"} & modules


@pytest.mark.parametrize("command", ["config", "--help"])
def test_a_reader_that_leaves_ends_a_command_without_a_word(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = [sys.executable, "-m", "proxy", command]
    assert subprocess.run(run, stdout=writing, stderr=subprocess.PIPE, check=False).stderr == b""
    os.close(writing)


@pytest.mark.heavy
def test_a_backend_that_starts_later_takes_the_place_of_the_demo(tmp_path: Path) -> None:
    host = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.77"  # where nobody else listens
    options = {"SPILLWAY_DISCOVER": host, "SPILLWAY_STORE": "memory://"}
    hello = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
    with running(SERVE[:-1], tmp_path / "log", options) as server:
        root = server.wait_for(LISTENING).rpartition(LISTENING)[2].strip().removesuffix("/v1")
        with httpx.Client(base_url=root, timeout=60, trust_env=False) as client:

            def models() -> list[str]:
                return [model["id"] for model in client.get("/v1/models").json()["data"]]

            assert models() == ["spillway-demo"]
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"):
                body = {"model": "m", "input": "hello"} if path == "/v1/responses" else hello
                refused = client.post(path, json=body)
                assert (refused.status_code, "the demo serves spillway-demo only" in refused.text) == (404, True)
            assert client.post("/v1/chat/completions", json=hello).json()["error"]["code"] == "model_not_found"
            with LlamaCppFake([FakeModel("m", 4096)], scripted(["real"]), api_key="key", place=(host, 1234)):
                client.headers["authorization"] = "Bearer key"
                wait_until(lambda: models() == ["m"])
                assert "real" in client.post("/v1/chat/completions", json=hello).text
                with OllamaFake([FakeModel("another", 4096)], place=(host, 11434)):
                    wait_until(lambda: sorted(models()) == ["another:latest", "m"])
                    assert server.log.read_text(encoding="utf-8").count("Found Ollama") == 1


@pytest.mark.heavy
def test_it_can_be_ended_while_it_starts(tmp_path: Path) -> None:
    with socket.create_server((f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.78", 1234)) as silent:
        options = {"SPILLWAY_DISCOVER": silent.getsockname()[0], "SPILLWAY_STORE": "memory://"}
        with running(SERVE[:-1], tmp_path / "log", options) as server:
            with silent.accept()[0]:
                server.process.terminate()
                assert server.process.wait(20) == 130
            assert LISTENING not in server.log.read_text(encoding="utf-8")
        with running(SERVE[:-1], tmp_path / "log", options) as server:
            server.wait_for("annotated_types")
            server.process.terminate()
            assert server.process.wait(20) == 130
            assert "Traceback" not in server.log.read_text(encoding="utf-8")


def test_a_backend_without_models_is_told_at_the_start(tmp_path: Path) -> None:
    told = {"SPILLWAY_STORE": "memory://", "SPILLWAY_API_KEYS": "it's", "SPILLWAY_ADMIN_KEYS": "theirs"}
    with VllmFake([FakeModel("m", 4096)], api_key="key") as keyed, LmStudioFake([]) as empty:
        urls = ["http://127.0.0.1:1", "--backend", empty.url, "--backend", keyed.url]
        with running([*SERVE, *urls], tmp_path / "log", told) as server:
            server.wait_for("/v1/models -H 'authorization: Bearer KEY'")  # the key itself only in a terminal
            server.wait_for("Backend http://127.0.0.1:1 does not answer: connection refused. `spillway check` says")
            server.wait_for(f"Backend {empty.url} lists no models. `spillway check`")
            server.wait_for(f"The backend at {keyed.url} wants a key, which is not set: clients have to send it.")
