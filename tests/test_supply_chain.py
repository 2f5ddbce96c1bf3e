"""What the image is made of: named by digests, looked up anew, audited and listed by make targets that do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PINNED = ("Dockerfile", "docker-compose.yml")
DIGEST = "sha256:[0-9a-f]{64}"
NEW = "sha256:" + "ab" * 32
SIZES = {"m": 2**20, "mb": 2**20, "g": 2**30}


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * SIZES[unit]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    composition = pytest.importorskip("yaml").safe_load((ROOT / "docker-compose.yml").read_text())
    services: dict[str, Any] = composition["services"]
    return services


def test_the_image_is_built_on_bases_named_by_their_digest() -> None:
    text = (ROOT / "Dockerfile").read_text()
    names = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    bases = [
        re.sub(r"\$\{(\w+)\}", lambda found: names[found[1]], base)
        for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    ]
    assert len(bases) == 2
    assert [base for base in bases if not re.fullmatch(rf"python:[\w.-]+@{DIGEST}", base)] == []


def test_the_image_installs_nothing_but_what_is_locked() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"pip install (.*)", text)
    assert len(installs) == 2
    assert all("--require-hashes" in install or "--no-deps ." in install for install in installs)


def test_the_containers_beside_it_are_named_by_digest_or_release(services: dict[str, Any]) -> None:
    images = {name: service["image"] for name, service in services.items() if "build" not in service}
    assert set(images) == {"openwebui", "redis", "gateway", "prometheus", "grafana"}
    for name in ("openwebui", "prometheus", "grafana"):  # whose releases stay what they are
        assert re.fullmatch(r"\S+:v?\d+\.\d+\.\d+(@\S+)?", images.pop(name))
    assert [image for image in images.values() if not re.fullmatch(rf"\S+:\S+@{DIGEST}", image)] == []


def test_every_container_has_a_limit_on_its_memory(services: dict[str, Any]) -> None:
    limits = {name: size(service["mem_limit"]) for name, service in services.items()}
    assert set(limits) == set(services)
    redis = services["redis"]["command"]
    assert limits["redis"] >= 2 * size(redis[redis.index("--maxmemory") + 1])


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


def program(place: Path, script: str) -> None:
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


def make(project: Path, target: str) -> subprocess.CompletedProcess[str]:
    path = f"{project}/programs{os.pathsep}{os.environ['PATH']}"  # noqa: TID251 - of the test
    return subprocess.run(
        ["make", "-s", "-o", ".venv/bin/python", target],
        cwd=project,
        env={"PATH": path, "HOME": str(project)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def images(project: Path) -> list[str]:
    text = "".join((project / name).read_text() for name in PINNED)
    return re.findall(r"^[^#\n]*(?:image: |=)([a-z0-9./-]+:[\w.-]+@?\S*)$", text, re.MULTILINE)


def test_pinning_names_every_image_by_what_the_registry_says(project: Path) -> None:
    before = images(project)
    program(project / "programs/docker", f'[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo {NEW}')
    done = make(project, "pin")
    assert done.returncode == 0, done.stderr
    after = images(project)
    assert [image.split("@")[0] for image in after] == [image.split("@")[0] for image in before]
    assert [image for image in after if not image.endswith(f"@{NEW}")] == []
    assert len(after) == 6
    assert list(project.glob("*.bak")) == []


def test_a_registry_out_of_reach_changes_no_pin(project: Path) -> None:
    before = images(project)
    program(project / "programs/docker", "echo no route to host >&2; exit 1")
    assert make(project, "pin").returncode != 0
    assert images(project) == before


def test_an_audit_that_could_not_ask_has_not_passed(project: Path) -> None:
    program(project / ".venv-audit/bin/pip-audit", "echo ERROR: cannot reach pypi.org >&2; exit 1")
    done = make(project, "audit")
    assert done.returncode != 0
    assert "cannot reach pypi.org" in done.stderr
    assert "nothing was audited" in done.stderr


def test_the_audit_is_strict_and_looks_at_what_is_locked(project: Path) -> None:
    program(project / ".venv-audit/bin/pip-audit", 'echo "$@"')
    done = make(project, "audit")
    assert done.returncode == 0, done.stderr
    asked = done.stdout.split()
    assert {"--strict", "--require-hashes", "config/requirements.lock"} <= set(asked)


def test_the_bill_of_materials_lists_what_is_locked(project: Path) -> None:
    program(project / ".venv-audit/bin/python", 'echo "$@"')
    done = make(project, "sbom")
    assert done.returncode == 0, done.stderr
    asked, told = done.stdout.strip().split("\n")
    assert "cyclonedx_py requirements" in asked
    assert asked.endswith("config/requirements.lock")
    assert told in asked
