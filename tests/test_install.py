"""What strangers install it with: services of the system, Kubernetes, completion. That they run is checked by `make wheel`."""

import configparser
import json
import plistlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from proxy.cli import main
from proxy.config import listed_settings, load_settings
from proxy.core.settings import Settings

CONFIG = Path(__file__).parent.parent / "config"
GRACE = float(Settings.model_fields["graceful_timeout"].default)


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CONFIG / "kubernetes/spillway.yaml").read_text()))


def deployed(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Deployment", name))
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod | {"replicas": found["spec"]["replicas"]}


def test_kubernetes_knows_every_field_of_the_example(objects: list[dict[str, Any]]) -> None:
    assert len(objects) == 7
    for each in objects:
        kubernetes_validate.validate(each, "1.34", strict=True)


@pytest.mark.parametrize("name", ["spillway", "spillway-redis"])
def test_pods_are_unprivileged_and_write_nowhere_but_in_volumes(objects: list[dict[str, Any]], name: str) -> None:
    pod = deployed(objects, name)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


def test_replicas_share_a_store_and_their_settings_are_right(
    objects: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = deployed(objects, "spillway")
    (container,) = pod["containers"]
    assert pod["replicas"] == 2
    given = {each["name"]: each.get("value", '["sk-a"]') for each in container["env"]}
    (toml,) = (each["data"]["spillway.toml"] for each in objects if each["kind"] == "ConfigMap")
    (tmp_path / "spillway.toml").write_text(toml)
    for variable, value in {**given, "SPILLWAY_CONFIG": str(tmp_path / "spillway.toml")}.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings(None)
    assert settings.store.startswith("redis://")
    assert (len(settings.backends), settings.api_keys) == (1, ("sk-a",))
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > GRACE + stop


def test_the_unit_of_systemd_leaves_answers_time_and_writes_in_its_own_folder() -> None:
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep capitals
    unit.read(CONFIG / "systemd/spillway.service")
    service = unit["Service"]
    assert service["ExecStart"].endswith("/spillway serve")
    assert service["Environment"] == "SPILLWAY_STORE=sqlite:///%S/spillway/spillway.sqlite3"
    assert (service["DynamicUser"], service["StateDirectory"]) == ("yes", "spillway")
    assert float(service["TimeoutStopSec"]) > GRACE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not there")
def test_systemd_finds_nothing_exposed_in_its_unit() -> None:
    unit = CONFIG / "systemd/spillway.service"
    command = ["systemd-analyze", "security", "--offline=true", "--json=short", "--no-pager", str(unit)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if not told.stdout:
        pytest.skip(f"this systemd can't say: {told.stderr[-200:]}")
    exposed = sum(float(each["exposure"] or 0) for each in json.loads(told.stdout))
    assert exposed < 3.0


def test_the_agent_of_launchd_starts_it_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """The shell's part is run, with a program that tells how it was started in Spillway's place."""
    agent = plistlib.loads((CONFIG / "launchd/spillway.plist").read_bytes())
    assert agent["ExitTimeOut"] > GRACE
    program, config = tmp_path / ".local/bin/spillway", tmp_path / ".config/spillway/spillway.toml"
    for made in (program, config, tmp_path / "Library/Logs/x"):
        made.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$1 in $PWD by $SPILLWAY_CONFIG and $SPILLWAY_STORE"\n')
    program.chmod(0o700)
    config.touch()
    variables = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **agent["EnvironmentVariables"]}
    told = subprocess.run(agent["ProgramArguments"], env=variables, capture_output=True, text=True, check=True)
    place = f"{tmp_path}/Library/Application Support/spillway"
    assert told.stdout == f"serve in {place} by {config} and sqlite:///spillway.sqlite3\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_learn_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("serve", "check", "store", "launch", "top", "tail", "show", "explain", "--port", "claude"):
        assert word.removeprefix("--") in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_help_has_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    listed = re.findall(r"^  --([a-z-]+) VALUE", told, re.MULTILINE)
    assert [name.replace("-", "_") for name in listed] == [name for name, _ in listed_settings() if name != "backends"]
    words = " ".join(told.split())
    for shown in ("0 picks a free one. [8484]", "at most 0.8 of it. [0.8]", "last use. [2592000]", "found. [True]"):
        assert shown in words
    assert max(map(len, told.splitlines())) < 200
