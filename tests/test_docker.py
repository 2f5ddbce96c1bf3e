"""What can be known of the container files without a Docker engine: their steps are run, their structure is checked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement

from proxy.core.settings import Settings
from proxy.demo import serve_on_loopback
from tests.fakes.waiting import await_until, wait_until

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
USER = 10001
NO_INDEX = re.compile(r"NewConnectionError|name resolution|dns error|Network is unreachable|timed out", re.IGNORECASE)


def instructions(name: str, text: str = DOCKERFILE) -> list[str]:
    """The arguments of all instructions of this name, continuation lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.split(None, 1)[1] for line in joined.split("\n") if line.startswith(f"{name} ")]


def environment() -> dict[str, str]:
    return dict(item.split("=", 1) for line in instructions("ENV") for item in shlex.split(line))


def copied() -> list[str]:
    return [name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


# The image


def test_the_image_runs_as_an_unprivileged_user_with_its_store_on_a_volume() -> None:
    assert instructions("USER") == [str(USER)]
    assert instructions("VOLUME") == ["/data"]
    assert environment()["SPILLWAY_STORE"] == "sqlite:////data/spillway.sqlite3"
    assert environment()["SPILLWAY_HOST"] == "0.0.0.0"
    assert "SPILLWAY_ALLOW" not in environment()


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line for line in lines if line.startswith("!")} == {f"!{name}" for name in copied()}
    assert all((ROOT / name).exists() for name in copied())


def locked() -> dict[str, str]:
    """The versions that the image gets, by package."""
    text = (ROOT / "config/requirements.lock").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def test_what_is_locked_satisfies_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, [*project["dependencies"], *chain(*project["optional-dependencies"].values())])
    unfit = [str(each) for each in wanted if not each.specifier.contains(locked().get(each.name, "0"))]
    assert unfit == [], "run `make lock`"


def test_everything_locked_has_a_digest() -> None:
    text = (ROOT / "config/requirements.lock").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) == len(locked()) > 20
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


@dataclass(frozen=True)
class Account:
    """Runs commands in a folder of its own, as a user without rights where the tests run as root."""

    place: Path
    python: str
    ids: Mapping[str, Any]

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        argv = self._argv(command, variables)
        return subprocess.run(
            argv, cwd=self.place / "src", capture_output=True, text=True, check=False, timeout=200, **self.ids
        )

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        out = subprocess.PIPE
        argv = self._argv(command, variables)
        return subprocess.Popen(
            argv, cwd=self.place / "data", stdout=out, stderr=subprocess.STDOUT, text=True, **self.ids
        )

    def local(self, text: str) -> str:
        """A text of the Dockerfile with the image's folders moved below `place`."""
        return re.sub(r"(?<![\w.])/(opt|data)\b", lambda found: f"{self.place}/{found[1]}", text)

    def _argv(self, command: tuple[str, ...], variables: Mapping[str, str]) -> list[str]:
        variables = {"HOME": str(self.place / "home"), "PYTHONPATH": "", **variables}
        return ["env", *(f"{name}={value}" for name, value in variables.items()), *command]


@contextmanager
def account() -> Iterator[Account]:
    """An account with empty folders; outside of pytest's own, which are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="spillway-image-") as name:
        place = Path(name)
        python, ids = interpreter()
        for folder in (place, *(place / name for name in ("src", "opt", "data", "home"))):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
            if ids:
                os.chown(folder, USER, USER)
        yield Account(place, python, ids)


def interpreter() -> tuple[str, dict[str, Any]]:
    """A Python that can make environments, and the ids to run it with."""
    own = str(Path(sys.executable).resolve())
    ids: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []}
    fit = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
    for python in (own, "/usr/local/bin/python3", "/usr/bin/python3") if os.geteuid() == 0 else ():
        try:
            if subprocess.run([python, "-c", fit], check=False, cwd="/", **ids).returncode == 0:
                return python, ids
        except OSError:
            continue  # it lies where others may not look
    return own, {}


@pytest.mark.timeout(300)
def test_its_steps_install_and_start_a_healthy_server_as_an_unprivileged_user() -> None:
    with account() as user:
        install(user)
        port = free_port()
        variables = {name: user.local(value) for name, value in environment().items() if name != "PATH"}
        variables |= {"SPILLWAY_PORT": str(port), "SPILLWAY_BACKENDS": '[{"url": "http://127.0.0.1:9"}]'}
        programs = user.place / "opt/spillway/bin"
        command: list[str] = json.loads(instructions("ENTRYPOINT")[0]) + json.loads(instructions("CMD")[0])
        start = [str(programs / command[0]), *command[1:]]
        check = instructions("HEALTHCHECK")[0]

        refused = user.run(*start, **variables)
        assert refused.returncode != 0
        assert "SPILLWAY_API_KEYS" in refused.stdout + refused.stderr

        def healthy() -> bool:
            python, *script = json.loads(check[check.index("CMD ") + 4 :])
            return user.run(str(programs / python), *script, **variables).returncode == 0

        assert not healthy()
        variables["SPILLWAY_API_KEYS"] = '["a-key"]'
        with user.start(*start, **variables) as server:
            try:
                wait_until(lambda: healthy() or server.poll() is not None, timeout=40)
                assert server.poll() is None, server.communicate()[0]
            finally:
                server.terminate()
            server.communicate(timeout=20)
        assert (user.place / "data/spillway.sqlite3").exists()


def install(user: Account) -> None:
    """The Dockerfile's first stage: copy, make an environment, install."""
    for name in copied():
        target = user.place / "src" / name
        target.parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, target)
    first_stage = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1]
    for step in instructions("RUN", first_stage):
        program, *arguments = shlex.split(user.local(step))
        if "compileall" in arguments:
            continue  # it would take longer than the rest, and nothing here needs it
        done = user.run(user.python if program == "python" else program, *arguments)
        if done.returncode and NO_INDEX.search(done.stderr):
            pytest.skip(f"no package index within reach: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr[-2000:]


# The composition

PROFILES = ("default", "openwebui", "scale", "monitoring")


@pytest.fixture(scope="module")
def composition() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with tokenizers, but is not there")
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_nothing_is_published_but_on_loopback(composition: dict[str, Any]) -> None:
    ports = [port for service in composition["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == 4


def test_plain_up_starts_spillway_alone(composition: dict[str, Any]) -> None:
    services = composition["services"]
    assert [name for name, service in services.items() if "profiles" not in service] == ["spillway"]
    profiles = {name: service["profiles"] for name, service in services.items() if "profiles" in service}
    assert profiles == {
        "openwebui": ["openwebui"],
        "replica": ["scale"],
        "redis": ["scale"],
        "gateway": ["scale"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_spillway_reaches_the_host_and_keeps_its_store(composition: dict[str, Any]) -> None:
    spillway = composition["services"]["spillway"]
    assert spillway["extra_hosts"] == ["host.docker.internal:host-gateway"]
    assert spillway["volumes"] == ["checkpoints:/data", "./config:/config:ro"]
    assert spillway["environment"]["SPILLWAY_ALLOW"] == "${SPILLWAY_ALLOW:-open}"
    (port,) = instructions("EXPOSE")
    assert spillway["ports"] == [f"127.0.0.1:8484:{port}"]


@pytest.mark.parametrize("service", ["spillway", "replica"])
def test_every_setting_reaches_the_container(composition: dict[str, Any], service: str) -> None:
    described = composition["services"][service]
    given: dict[str, str | None] = described["environment"]
    settings = {f"SPILLWAY_{name.upper()}" for name in (*Settings.model_fields, "config")}
    assert set(given) == {*settings, "OTEL_EXPORTER_OTLP_ENDPOINT"}
    set_here = {"SPILLWAY_HOST", "SPILLWAY_PORT"}
    set_here |= {"SPILLWAY_STORE"} if service == "replica" else set()
    for name in settings - set_here:
        value = given[name]
        assert value is None or value.startswith(f"${{{name}:-"), name
    # Compose takes a variable without a value away where nobody sets it, the image's own too.
    assert all(given[name] is not None for name in environment() if name.startswith("SPILLWAY_"))
    assert described["env_file"] == [{"path": ".env", "required": False}]
    assert "./config:/config:ro" in described["volumes"]


def test_the_compositions_own_values_are_the_images(composition: dict[str, Any]) -> None:
    given = composition["services"]["spillway"]["environment"]
    for name, value in environment().items():
        if name.startswith("SPILLWAY_"):
            assert given[name] in (value, f"${{{name}:-{value}}}")


def test_open_webui_is_pointed_at_spillway(composition: dict[str, Any]) -> None:
    settings = composition["services"]["openwebui"]["environment"]
    assert settings["OPENAI_API_BASE_URL"] == "http://spillway:8484/v1"


def test_two_replicas_share_a_store(composition: dict[str, Any]) -> None:
    services = composition["services"]
    assert services["replica"]["deploy"]["replicas"] == 2
    assert services["replica"]["environment"]["SPILLWAY_STORE"].startswith("redis://redis:")
    assert services["replica"]["environment"]["SPILLWAY_ALLOW"] == "${SPILLWAY_ALLOW:-open}"
    (mount,) = services["gateway"]["volumes"]
    assert (ROOT / mount.split(":")[0]).is_file()


def test_named_volumes_and_dependencies_exist(composition: dict[str, Any]) -> None:
    services = composition["services"]
    for service in services.values():
        named = [mount.split(":")[0] for mount in service.get("volumes", []) if not mount.startswith(".")]
        assert set(named) <= set(composition["volumes"])
        for name in service.get("depends_on", {}):
            same = set(services[name].get("profiles", [])) >= set(service.get("profiles", []))
            assert same or "profiles" not in services[name]


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_accepts_it(profile: str) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("the compose plugin is not installed")
    command = [docker, "compose", "--profile", profile, "config", "--quiet"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0, checked.stderr


# nginx in front


@contextmanager
def gateway(folder: Path, upstream: str) -> Iterator[str]:
    """nginx with the shipped configuration, but for its port, its upstream and where it writes."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    config = (ROOT / "config/nginx.conf").read_text()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    for shipped, local in (
        ("listen 8080;", f"listen 127.0.0.1:{port};"),
        ("http://replica:8484;", f"{upstream};"),
        ("http {\n", f"http {{\n{paths}"),
    ):
        assert config.count(shipped) == 1
        config = config.replace(shipped, local)
    (folder / "nginx.conf").write_text(config)
    files = f"pid {folder}/nginx.pid;"
    command = [nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr", "-g"]
    checked = subprocess.run([*command, files, "-t"], capture_output=True, text=True, check=False, timeout=30)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    with subprocess.Popen([*command, f"daemon off; {files}"], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: accepts(port) or process.poll() is not None, timeout=20)
            assert process.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Stream:
    """A backend that sends one event after the other, each when it is told to."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[bytes] = asyncio.Queue()
        self.left = False
        self.received = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.received += len(message.get("body", b""))
            more = message.get("more_body", False)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            step = asyncio.ensure_future(self.steps.get())
            await asyncio.wait({step, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                await send({"type": "http.response.body", "body": step.result(), "more_body": True})
            step.cancel()
        self.left = True


@pytest.mark.anyio
async def test_nginx_passes_every_event_on_at_once_and_tells_when_the_client_leaves(tmp_path: Path) -> None:
    stream = Stream()
    body = b"x" * 3_000_000  # more than nginx takes by default
    async with serve_on_loopback(stream) as upstream, httpx.AsyncClient(timeout=20) as client:
        with gateway(tmp_path, upstream) as url:
            async with client.stream("POST", url, content=body) as answer:
                chunks = answer.aiter_bytes()
                for number in range(5):
                    event = b"data: %d\n\n" % number
                    stream.steps.put_nowait(event)
                    assert await anext(chunks) == event
            await await_until(lambda: stream.left)
    assert stream.received == len(body)
