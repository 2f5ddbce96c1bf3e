"""What can be known of the container files without a Docker engine, and of the make targets that look after them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from packaging.requirements import Requirement

from benchmarks.process import free_port, running
from proxy.core.settings import Settings
from tests.fakes import Gate, LlamaCppFake, wait_until

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCKED = (ROOT / "config/requirements.lock").read_text()
PINNED = ("Dockerfile", "docker-compose.yml")
DIGEST = "sha256:[0-9a-f]{64}"
NEW = "sha256:" + "ab" * 32
SIZES = {"m": 2**20, "mb": 2**20, "g": 2**30}


def instructions(name: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    return [line.split(None, 1)[1] for line in joined.split("\n") if line.startswith(f"{name} ")]


def environment() -> dict[str, str]:
    return dict(item.split("=", 1) for line in instructions("ENV") for item in shlex.split(line))


# The image


def test_the_image_runs_as_an_unprivileged_user_with_its_store_on_a_volume() -> None:
    assert (instructions("USER"), instructions("VOLUME")) == (["10001"], ["/data"])
    assert environment()["SPILLWAY_STORE"] == "sqlite:////data/spillway.sqlite3"
    assert environment()["SPILLWAY_HOST"] == "0.0.0.0"
    assert "SPILLWAY_ALLOW" not in environment()


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    copied = [name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]]
    lines = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line for line in lines if line.startswith("!")} == {f"!{name}" for name in copied}
    assert all((ROOT / name).exists() for name in copied)


def test_what_is_locked_satisfies_the_project_and_has_a_digest() -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCKED, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, [*project["dependencies"], *chain(*project["optional-dependencies"].values())])
    unfit = [str(each) for each in wanted if not each.specifier.contains(locked.get(each.name, "0"))]
    assert unfit == [], "run `make lock`"
    entries = re.split(r"\n(?=\S)", LOCKED.strip())
    assert len(entries) == len(locked) > 20
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_image_is_built_on_digests_of_nothing_but_what_is_locked() -> None:
    names = dict(re.findall(r"^ARG (\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
    bases = [re.sub(r"\$\{(\w+)\}", lambda found: names[found[1]], line.split()[0]) for line in instructions("FROM")]
    assert len(bases) == 2
    assert [base for base in bases if not re.fullmatch(rf"python:[\w.-]+@{DIGEST}", base)] == []
    installs = re.findall(r"pip (?:install|wheel) (.*)", DOCKERFILE)
    assert len(installs) == 4
    assert all("--require-hashes" in install or "--no-deps" in install for install in installs)
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"][0]
    assert f"{backend} \\\n    --hash=sha256:" in (ROOT / "config/build.lock").read_text(), "run `make lock`"


def test_what_the_workflows_use_is_pinned_and_they_run_what_people_run() -> None:
    for path in sorted((ROOT / ".github/workflows").iterdir()):
        steps = [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
        used = [step["uses"] for step in steps if "uses" in step]
        assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []
        assert ".ci/run" in [step.get("run") for step in steps]


@pytest.mark.heavy
def test_it_starts_healthy_once_it_has_a_key(tmp_path: Path) -> None:
    """With the environment of the image and its own commands, but for the folders: what is installed here is run."""
    programs = Path(sys.executable).parent
    variables = {name: value.replace("/data", str(tmp_path)) for name, value in environment().items()}
    variables |= {"PATH": f"{programs}:/usr/bin:/bin", "SPILLWAY_PORT": str(free_port())}
    variables["SPILLWAY_BACKENDS"] = '[{"url": "http://127.0.0.1:9"}]'
    program, command = json.loads(instructions("ENTRYPOINT")[0])[0], json.loads(instructions("CMD")[0])
    start = [str(programs / program), *command]
    check = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])

    refused = subprocess.run(start, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "SPILLWAY_API_KEYS" in refused.stdout + refused.stderr

    def healthy() -> bool:
        return subprocess.run([sys.executable, *check[1:]], env=variables, check=False, stderr=-3).returncode == 0

    assert not healthy()
    variables["SPILLWAY_API_KEYS"] = '["a-key"]'
    with subprocess.Popen(start, env=variables, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: healthy() or server.poll() is not None, timeout=40)
            assert server.poll() is None
        finally:
            server.terminate()
    assert (tmp_path / "spillway.sqlite3").exists()


# The composition


@pytest.fixture(scope="module")
def composition() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture
def services(composition: dict[str, Any]) -> dict[str, Any]:
    services: dict[str, Any] = composition["services"]
    return services


def test_nothing_is_published_but_on_loopback(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == len({port.split(":")[1] for port in ports}) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_plain_up_starts_spillway_alone(services: dict[str, Any]) -> None:
    assert {name: service.get("profiles", []) for name, service in services.items()} == {
        "spillway": [], "openwebui": ["openwebui"], "replica": ["scale"], "redis": ["scale"], "gateway": ["scale"],
        "prometheus": ["monitoring"], "grafana": ["monitoring"],
    }  # fmt: skip


def test_services_find_one_another(services: dict[str, Any]) -> None:
    spillway, replica = services["spillway"], services["replica"]
    (port,) = instructions("EXPOSE")
    assert spillway["ports"] == [f"127.0.0.1:8484:{port}"]
    assert spillway["extra_hosts"] == ["host.docker.internal:host-gateway"]
    assert spillway["volumes"] == ["checkpoints:/data", "./config:/config:ro"]
    assert services["openwebui"]["environment"]["OPENAI_API_BASE_URL"] == "http://spillway:8484/v1"
    assert replica["deploy"]["replicas"] == 2
    assert replica["environment"]["SPILLWAY_STORE"].startswith("redis://redis:")
    (mount,) = services["gateway"]["volumes"]
    assert (ROOT / mount.split(":")[0]).is_file()


@pytest.mark.parametrize("service", ["spillway", "replica"])
def test_every_setting_reaches_the_container(services: dict[str, Any], service: str) -> None:
    given: dict[str, str | None] = services[service]["environment"]
    settings = {f"SPILLWAY_{name.upper()}" for name in (*Settings.model_fields, "config")}
    assert set(given) == {*settings, "OTEL_EXPORTER_OTLP_ENDPOINT"}
    assert given["SPILLWAY_ALLOW"] == "${SPILLWAY_ALLOW:-open}"
    for name in settings - {"SPILLWAY_HOST", "SPILLWAY_PORT", "SPILLWAY_STORE"}:
        value = given[name]
        assert value is None or value.startswith(f"${{{name}:-"), name
    # Compose takes a variable without a value away where nobody sets it, the image's own too.
    own = {name: value for name, value in environment().items() if name.startswith("SPILLWAY_")}
    assert all(given[name] is not None for name in own)
    if service == "spillway":
        assert all(given[name] in (value, f"${{{name}:-{value}}}") for name, value in own.items())


def test_named_volumes_and_dependencies_exist(composition: dict[str, Any], services: dict[str, Any]) -> None:
    for service in services.values():
        named = [mount.split(":")[0] for mount in service.get("volumes", []) if not mount.startswith(".")]
        assert set(named) <= set(composition["volumes"])
        for name in service.get("depends_on", {}):
            profiles = services[name].get("profiles", [])
            assert not profiles or set(profiles) >= set(service.get("profiles", []))


def test_containers_are_named_by_digest_or_release_and_bounded(services: dict[str, Any]) -> None:
    images = {name: service["image"] for name, service in services.items() if "build" not in service}
    assert set(images) == {"openwebui", "redis", "gateway", "prometheus", "grafana"}
    for name in ("openwebui", "prometheus", "grafana"):  # whose releases stay what they are
        assert re.fullmatch(r"\S+:v?\d+\.\d+\.\d+(@\S+)?", images.pop(name))
    assert [image for image in images.values() if not re.fullmatch(rf"\S+:\S+@{DIGEST}", image)] == []
    redis = services["redis"]["command"]
    assert size(services["redis"]["mem_limit"]) >= 2 * size(redis[redis.index("--maxmemory") + 1])
    assert all(size(service["mem_limit"]) for service in services.values())


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * SIZES[unit]


# nginx in front


@contextmanager
def gateway(folder: Path, upstream: str) -> Iterator[str]:
    """nginx with the shipped configuration, but for its port, its upstream and where it writes."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    port, config = free_port(), (ROOT / "config/nginx.conf").read_text()
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
    files = f"daemon off; pid {folder}/nginx.pid;"
    command = [nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr", "-g", files]
    with running(command, folder / "nginx.log") as process:
        process.wait_until_listening(port)
        yield f"http://127.0.0.1:{port}"
    assert "[warn]" not in (folder / "nginx.log").read_text()


def test_nginx_passes_every_event_on_at_once_and_tells_when_the_client_leaves(tmp_path: Path) -> None:
    gate = Gate()
    body = {"model": "fake-model", "stream": True, "messages": [{"role": "user", "content": "w1 "}]}
    body["padding"] = "x" * 3_000_000  # more than nginx takes by default
    with LlamaCppFake(gate=gate) as fake, gateway(tmp_path, fake.url) as url:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False) as answer:
            chunks, seen = answer.iter_bytes(), b""
            while b'"4"' not in seen:
                gate.release(1)
                seen += next(chunks)
        wait_until(lambda: fake.cancelled == 1)
        assert len(fake.requests[0].body) > 3_000_000


# What make does


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the targets work on, with an environment that is ready."""
    for name in (*PINNED, "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for folder in (".venv/bin", ".venv-audit/bin", "programs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv-audit/.ready").touch()
    return tmp_path


def make(project: Path, target: str, program: str, script: str) -> subprocess.CompletedProcess[str]:
    """Make a target with this script in a program's place."""
    place = project / program
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)
    path = f"{project}/programs{os.pathsep}{os.environ['PATH']}"  # noqa: TID251 - of the test
    command = ["make", "-s", "-o", ".venv/bin/python", target]
    env = {"PATH": path, "HOME": str(project)}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=60)


def images(project: Path) -> list[str]:
    text = "".join((project / name).read_text() for name in PINNED)
    return re.findall(r"^[^#\n]*(?:image: |=)([a-z0-9./-]+:[\w.-]+@?\S*)$", text, re.MULTILINE)


def test_pinning_names_every_image_by_what_the_registry_says(project: Path) -> None:
    before = images(project)
    assert make(project, "pin", "programs/docker", "echo no route to host >&2; exit 1").returncode != 0
    assert images(project) == before
    script = f'[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo {NEW}'
    done = make(project, "pin", "programs/docker", script)
    assert done.returncode == 0, done.stderr
    after = images(project)
    assert [image.split("@")[0] for image in after] == [image.split("@")[0] for image in before]
    assert [image for image in after if not image.endswith(f"@{NEW}")] == []
    assert len(after) == 6


def test_an_audit_is_strict_and_has_not_passed_where_it_could_not_ask(project: Path) -> None:
    audit = ".venv-audit/bin/pip-audit"
    failed = make(project, "audit", audit, "echo ERROR: cannot reach pypi.org >&2; exit 1")
    assert failed.returncode != 0
    assert "cannot reach pypi.org" in failed.stderr
    done = make(project, "audit", audit, 'echo "$@"')
    assert done.returncode == 0, done.stderr
    assert {"--strict", "--require-hashes", "config/requirements.lock"} <= set(done.stdout.split())


def test_the_bill_of_materials_lists_what_is_locked(project: Path) -> None:
    done = make(project, "sbom", ".venv-audit/bin/python", 'echo "$@"')
    assert done.returncode == 0, done.stderr
    command, written = done.stdout.strip().split("\n")
    assert "cyclonedx_py requirements" in command
    assert command.endswith("config/requirements.lock")
    assert written in command
