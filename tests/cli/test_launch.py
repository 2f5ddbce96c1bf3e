"""`spillway launch`, with programs on the path that tell what they were started with, and talk to what they were told."""

import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from proxy.cli import PROGRAMS, launch, main
from proxy.cli.launch import choose_model
from proxy.config import environment
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, VllmFake
from tests.fakes.waiting import wait_until
from tests.proxying import running_proxy

ROOT = Path(__file__).parents[2]
WINDOW = 16384
PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, signal, sys, time, urllib.request
files = [arg.partition("=")[2].strip('"') if "=" in arg else arg for arg in sys.argv[1:]]
files += [os.environ.get("QWEN_SYSTEM_MD", "")]
told = {{
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "files": {{name: pathlib.Path(name).read_text() for name in files if os.path.isfile(name)}},
    "here": os.getcwd(),
}}
url = os.environ.get("ASK")
if url is None:
    known = json.dumps(told)
    at = known.index("http://127.0.0.1:")
    url = known[at:].split("/v1")[0].split('"')[0].rstrip(chr(92))
told["url"] = url
body = json.dumps({{"model": "m", "messages": [{{"role": "user", "content": "hi"}}]}}).encode()
headers = {{"content-type": "application/json", "authorization": "Bearer " + os.environ.get("KEY", "none")}}
asked = urllib.request.Request(url + "/v1/chat/completions", body, headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
with opener.open(asked) as answer:
    told["answer"] = json.load(answer)["choices"][0]["message"]["content"]
pathlib.Path(os.environ["OUT"]).write_text(json.dumps(told))
if os.environ.get("WAIT"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    pathlib.Path(os.environ["OUT"] + ".ready").touch()
    while not os.path.exists(os.environ["WAIT"]):
        time.sleep(0.02)
if os.environ.get("DIE"):
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


def fine(_: Question) -> Reply:
    return Reply(text="fine")


class Desk:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.project, self.bin = folder / "home", folder / "project", folder / "bin"
        self.out = folder / "out.json"
        for each in (self.home, self.project, self.bin, folder / "tmp"):
            each.mkdir()
        (self.project / "proxy").mkdir()
        (self.project / "proxy/__init__.py").write_text("raise SystemExit('the wrong one')")
        self.temporary = folder / "tmp"
        self.set = monkeypatch.setenv
        for name, value in {"HOME": self.home, "PATH": self.bin, "OUT": self.out, "TMPDIR": self.temporary}.items():
            self.set(name, str(value))
        for name in ("XDG_STATE_HOME", "SPILLWAY_CONFIG"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.chdir(self.project)

    def install(self, name: str) -> None:
        program = self.bin / name
        program.write_text(PROGRAM)
        program.chmod(0o755)

    def told(self) -> Any:
        return json.loads(self.out.read_text())

    def files(self) -> list[str]:
        folders = (self.home, self.project, self.temporary)
        return sorted(str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path, monkeypatch)
    for name in PROGRAMS:
        made.install(name)
    yield made
    monkeypatch.undo()


def port(url: str) -> str:
    return str(urlsplit(url).port)


def launched(desk: Desk, name: str, url: str, *arguments: str) -> Any:
    desk.set("SPILLWAY_PORT", port(url))
    assert main(["launch", name, *arguments]) == 0
    return desk.told()


def test_every_program_is_offered() -> None:
    assert tuple(launch.PROGRAMS) == PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_works_with_the_spillway_that_runs_and_changes_nothing_of_the_users(desk: Desk, name: str) -> None:
    before = desk.files()
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake, running_proxy(fake) as proxy:
        told = launched(desk, name, proxy.url, "--", "--flag", "do it", "--", "more")
        assert (told["url"], told["answer"]) == (proxy.url, "fine")
    assert told["arguments"][-4:] == ["--flag", "do it", "--", "more"]
    assert told["here"] == str(desk.project)
    assert desk.files() == before
    assert list(desk.temporary.iterdir()) == []


def test_claude_code_is_told_one_model_for_all_its_tiers_and_the_virtual_window(desk: Desk) -> None:
    desk.set("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "16384")
    desk.set("ANTHROPIC_API_KEY", "the user's own")
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake, running_proxy(fake) as proxy:
        told = launched(desk, "claude", proxy.url)["environment"]
    assert (told["ANTHROPIC_BASE_URL"], told["ANTHROPIC_AUTH_TOKEN"]) == (proxy.url, "none")
    tiers = {name: value for name, value in told.items() if name.endswith("_MODEL")}
    assert (len(tiers), set(tiers.values())) == (7, {"m"})
    assert (told["CLAUDE_CODE_ATTRIBUTION_HEADER"], told["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"]) == ("0", "off")
    assert told["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "200000", "else Claude Code warns that it assumes a window"
    assert "ANTHROPIC_API_KEY" not in told


def test_codex_gets_a_provider_and_a_catalog_of_the_models(desk: Desk) -> None:
    models = [FakeModel("m", WINDOW), FakeModel("big", 65536)]
    with VllmFake(models, fine) as fake, running_proxy(fake) as proxy:
        told = launched(desk, "codex", proxy.url, "--model", "m")
        large = launched(desk, "codex", proxy.url)
    assert told["arguments"][0] == "--no-daemon", "else Codex warns that `-c` keeps it from its background server"
    config = tomllib.loads("\n".join(each for each in told["arguments"] if "=" in each))
    (catalog,) = told["files"].values()
    assert config == {
        "model": "m",
        "model_provider": "spillway",
        "model_catalog_json": next(iter(told["files"])),
        "model_providers": {"spillway": {"name": "Spillway", "base_url": f"{proxy.url}/v1", "wire_api": "responses"}},
        "features": {"multi_agent": False},
    }
    assert [(model["slug"], model["context_window"]) for model in json.loads(catalog)["models"]] == [
        ("m", 200_000),
        ("big", 200_000),
    ]
    assert "features.multi_agent=false" not in large["arguments"]
    assert 'model="big"' in large["arguments"]


@pytest.mark.parametrize(("window", "short"), [(WINDOW, True), (65536, False)])
def test_qwen_code_gets_a_short_system_prompt_where_the_window_is_small(desk: Desk, window: int, short: bool) -> None:
    with LlamaCppFake([FakeModel("m", window)], fine) as fake, running_proxy(fake) as proxy:
        told = launched(desk, "qwen", proxy.url)
    assert told["arguments"] == ["--auth-type", "openai"]
    assert (told["environment"]["OPENAI_BASE_URL"], told["environment"]["OPENAI_MODEL"]) == (f"{proxy.url}/v1", "m")
    assert any(text.startswith("You are Qwen Code") for text in told["files"].values()) is short


def test_a_key_that_clients_need_is_given_to_the_program(desk: Desk) -> None:
    desk.set("KEY", "secret")
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake, running_proxy(fake, api_keys=("secret",)) as proxy:
        desk.set("SPILLWAY_API_KEYS", "secret")
        told = launched(desk, "claude", proxy.url)["environment"]
        assert told["ANTHROPIC_AUTH_TOKEN"] == "secret"
        told = launched(desk, "codex", proxy.url)
        assert (told["environment"]["CODEX_SPILLWAY_KEY"], "secret" in str(told["arguments"])) == ("secret", False)


def test_a_program_that_is_not_installed_is_told_how_to_be(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    for name in PROGRAMS:
        (desk.bin / name).unlink()
        assert main(["launch", name]) == 127
        (line,) = capsys.readouterr().err.strip().split("\n")
        assert line.startswith(f"spillway: {name} is not installed; this installs it: ")


def test_a_model_that_nobody_lists_is_told_with_the_nearest(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    with LlamaCppFake([FakeModel("qwen3-coder", WINDOW)]) as fake, running_proxy(fake) as proxy:
        desk.set("SPILLWAY_PORT", port(proxy.url))
        assert main(["launch", "codex", "--model", "qwen-coder"]) == 1
    assert capsys.readouterr().err == ("spillway: no backend lists the model 'qwen-coder'; there are qwen3-coder\n")


def test_names_of_models_can_not_drive_the_terminal(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    with LlamaCppFake([FakeModel("m\x1b[2J", WINDOW)], fine) as fake, running_proxy(fake) as proxy:
        launched(desk, "claude", proxy.url)
        assert main(["launch", "claude", "--model", "none"]) == 1
    used, refused = capsys.readouterr().err.splitlines()
    assert "claude works with m\\x1b[2J (" in used
    assert refused.endswith("there are m\\x1b[2J")


# Where none runs


def test_a_spillway_is_started_for_as_long_as_the_program_runs(desk: Desk) -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake:
        desk.set("SPILLWAY_PORT", "1")  # nothing ever listens there
        assert main(["launch", "claude", "--backend", fake.url]) == 0
        told = desk.told()
        assert told["answer"] == "fine"
        with pytest.raises(httpx.ConnectError):
            httpx.get(told["url"] + "/healthz", trust_env=False)
    # What it keeps is kept for the next time, and nowhere near the project.
    left = [name for name in desk.files() if not name.startswith("proxy/")]
    assert {".local/state/spillway/launch.log", ".local/state/spillway/spillway.sqlite3"} <= set(left)
    assert all(name.startswith(".local/state/spillway/") for name in left)
    assert {(desk.home / name).stat().st_mode & 0o777 for name in left} == {0o600}


@pytest.mark.heavy
def test_something_else_that_has_the_port_is_left_alone(desk: Desk) -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake:
        desk.set("SPILLWAY_PORT", port(fake.url))
        assert main(["launch", "claude", "--backend", fake.url]) == 0
        assert desk.told()["url"] != fake.url


@pytest.mark.heavy
def test_why_none_could_be_started_is_told(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.set("SPILLWAY_PORT", "1")
    desk.set("SPILLWAY_STORE", "nowhere://")
    assert main(["launch", "claude", "--backend", "http://127.0.0.1:1"]) == 1
    assert "SPILLWAY_STORE" in capsys.readouterr().err


# How it ends


def test_the_exit_status_is_the_programs(desk: Desk) -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake, running_proxy(fake) as proxy:
        desk.set("SPILLWAY_PORT", port(proxy.url))
        desk.set("STATUS", "3")
        assert main(["launch", "claude"]) == 3
        desk.set("DIE", "1")
        assert main(["launch", "claude"]) == 128 + signal.SIGKILL


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 7)])
@pytest.mark.rows(1)
def test_what_ends_it_is_the_programs_affair(desk: Desk, tmp_path: Path, number: signal.Signals, status: int) -> None:
    """The keyboard tells the program too, which may have its own idea of it; what stops Spillway is passed on."""
    go = tmp_path / "go"
    desk.set("WAIT", str(go))
    with LlamaCppFake([FakeModel("m", WINDOW)], fine) as fake, running_proxy(fake) as proxy:
        desk.set("SPILLWAY_PORT", port(proxy.url))
        command = [sys.executable, "-P", "-m", "proxy", "launch", "claude"]
        inherited = {**environment(), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=inherited, stderr=subprocess.DEVNULL) as process:
            wait_until(Path(f"{desk.out}.ready").exists, 60)
            process.send_signal(number)
            if number is signal.SIGINT:
                go.touch()
            assert process.wait(60) == status
    assert list(desk.temporary.iterdir()) == []


# Which model


def model(name: str, window: int | None = 8192, *, tools: bool | None = True, managed: bool = True) -> dict[str, Any]:
    return {"id": name, "supports_tools": tools, "spillway": {"managed": managed, "window": window}}


def test_the_model_that_suits_an_agent_is_chosen() -> None:
    models = [
        model("nomic-embed-text", 500_000), model("unmanaged", 500_000, managed=False),
        model("without-tools", 300_000, tools=False), model("small", 8192), model("large", 65536), model("large-too", 65536),
    ]  # fmt: skip
    order = []
    while models:
        found = choose_model(models, None)
        order.append(found["id"])
        models.remove(dict(found))
    assert order == ["large", "large-too", "small", "without-tools", "unmanaged", "nomic-embed-text"]
