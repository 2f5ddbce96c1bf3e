"""The documents say what the code does: settings, commands, examples and links."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import cast

import pytest

from proxy.backends import KINDS
from proxy.backends.overflow import recognise
from proxy.backends.refusals import refused_feature
from proxy.cli import main
from proxy.config import load_settings
from proxy.core.settings import Settings
from tests.reference import ARCHITECTURE, PLACES, written

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
CONFIGS = sorted((ROOT / "config").glob("*.toml"))
MENTIONING = [*DOCUMENTS, *CONFIGS, ROOT / "Dockerfile", ROOT / "docker-compose.yml", ROOT / "config/nginx.conf"]

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config", *Settings.model_fields):
        monkeypatch.delenv(f"SPILLWAY_{name.upper()}", raising=False)


# Settings


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_settings_and_states_are_written_as_the_code_has_them(path: Path) -> None:
    assert len(PLACES[path].findall(path.read_text())) == 1
    assert written(path) == path.read_text(), "run `make docs`"


@pytest.mark.parametrize("path", MENTIONING, ids=lambda path: path.name)
def test_only_settings_that_exist_are_mentioned(path: Path) -> None:
    mentioned = {name.split("__")[0].rstrip("_").lower() for name in re.findall(r"SPILLWAY_([A-Z_]+)", path.read_text())}
    assert mentioned - set(Settings.model_fields) <= {"config"}


# Commands


@cache
def help_of(*command: str) -> str | None:
    told = StringIO()
    try:
        with redirect_stdout(told), redirect_stderr(StringIO()):
            main([*command, "--help"])
    except SystemExit as end:
        return told.getvalue() if end.code == 0 else None
    return None


def commands(text: str) -> Iterator[list[str]]:
    """Command lines of Spillway in code blocks and in code spans, without the program's name."""
    blocks = [body for _, language, body in BLOCK.findall(text) if language in {"", "bash", "sh", "shell", "console"}]
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    for line in (line for code in (*blocks, *spans) for line in code.split("\n")):
        found = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:(?:\S*/)?spillway|\S*python3? -m proxy) +(.*)", line)
        if found:
            # What stands behind `--` is another program's.
            yield found[1].split(" #")[0].split(" -- ")[0].split()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(path: Path) -> None:
    for words in commands(path.read_text()):
        command = () if words[0].startswith("-") else (words[0],)
        text = help_of(*command)
        assert text is not None, f"no such command: spillway {' '.join(words)}"
        for option in (word.split("=")[0] for word in words if word.startswith("--")):
            assert option in text, f"no such option: spillway {' '.join(words)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^|\s{2,})make ([a-z0-9-]+)", path.read_text(), re.MULTILINE))
    assert named <= targets


def test_those_who_contribute_are_told_of_every_target() -> None:
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {name for name in targets if f"`make {name}`" not in text} <= {"help", "run", "clean"}


# Examples and links


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_examples_can_be_read(path: Path) -> None:
    for _, language, body in BLOCK.findall(path.read_text()):
        if language == "python":
            compile(body, path.name, "exec")
        elif language == "json":
            json.loads(body)
        elif language == "toml":
            tomllib.loads(body)
        elif language in {"yaml", "yml"}:
            pytest.importorskip("yaml").safe_load(body)


def test_the_settings_name_every_kind_of_backend() -> None:
    (named,) = re.findall(r"Kinds are ([^.]*)", (ROOT / "docs/settings.md").read_text())
    assert sorted(re.findall(r"`(\w+)`", named)) == sorted(KINDS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|mailto:|#)([^)#\s]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def prose(text: str) -> str:
    """What is read as sentences: no code, tables, headings, pictures and targets of links."""
    lines = [line for line in BLOCK.sub("", text).split("\n") if not line.startswith(("|", "#", "!"))]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))


def test_the_documents_are_short_and_so_are_their_sentences() -> None:
    """What is written by `make docs` is not counted, and a word has a letter or a digit: the bars of tables have none."""
    read = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [
        re.sub(r"<!-- \w+: written by make docs -->.*?<!-- end -->", "", each.read_text(), flags=re.DOTALL) for each in read
    ]
    assert sum(any(map(str.isalnum, word)) for text in texts for word in text.split()) <= 14_600
    for path, text in zip(read, texts, strict=True):
        parts = re.split(r"(?<=[.!?:])\s+|\n\s*\n|\n[-\d]", prose(text))
        sentences = [len(part.split()) for part in parts if re.search(r"[a-z]", part)]
        assert sum(sentences) / len(sentences) < 20, path.name
        assert max(sentences) <= 30, path.name


def test_errors_that_the_page_of_symptoms_says_are_taken_care_of_are_recognised() -> None:
    text = (ROOT / "docs/symptoms.md").read_text()
    errors = re.findall(r"^\| `([^`]+)` \|", text.split("\n## ")[1], re.MULTILINE)
    assert len(errors) > 15
    for error in errors:
        body = json.dumps({"error": {"message": error}}).encode()
        assert recognise(400, body) or refused_feature(400, body, ["tools", "streams", "thoughts"]), error


# The site


def pages(nav: object) -> Iterator[str]:
    """The files that a navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else cast("list[object]", nav):
            yield from pages(each)


@pytest.mark.heavy
def test_the_site_is_built_without_a_warning_and_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    run = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build/site"
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / page.stem / "index.html" if page.stem != "index" else site / "index.html").read_text()
        assert re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", html) == []
    pictures = {path.name for path in (ROOT / "docs/images").iterdir()}
    assert {path.name for path in (site / "images").iterdir()} == pictures


def test_the_navigation_names_every_page_once() -> None:
    named = list(pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("index", ["README.md", "docs/llms.txt"])
def test_an_index_leads_to_every_page(index: str) -> None:
    links = set(re.findall(r"\((?:docs/)?([\w-]+\.md)\)", (ROOT / index).read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - links <= {"api-live.md"}, "what only programs read"


# The architecture


def test_the_map_shows_every_folder() -> None:
    shown = set(re.findall(r"`(proxy/[a-z]+/)`", ARCHITECTURE.read_text().split("\n## ")[1]))
    assert {f"proxy/{path.parent.name}/" for path in (ROOT / "proxy").glob("*/__init__.py")} - shown == set()


def test_what_is_added_is_registered_where_the_table_says() -> None:
    rows = re.findall(r"^\| .* \| `([A-Z]+)` in `(\S+)`.* \| (.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    assert len(rows) > 5
    for registry, path, tests in rows:
        assert re.search(rf"^{registry}\b", (ROOT / path).read_text(), re.MULTILINE), path
        assert [name for name in re.findall(r"`(\S+)`", tests) if not (ROOT / name).exists()] == []


# Example configurations


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_example_configurations_load(path: Path) -> None:
    load_settings(path)


def test_the_example_configuration_changes_nothing() -> None:
    assert load_settings(ROOT / "config/spillway.example.toml").model_dump() == load_settings().model_dump()


def test_the_example_configuration_shows_every_setting(tmp_path: Path) -> None:
    text = (ROOT / "config/spillway.example.toml").read_text()
    shown = tmp_path / "all.toml"
    shown.write_text(re.sub(r"^#: ", "", text, flags=re.MULTILINE))
    load_settings(shown)
    assert set(tomllib.loads(shown.read_text())) == set(Settings.model_fields)


def test_the_model_examples_show_every_override() -> None:
    models = load_settings(ROOT / "config/models.example.toml").models
    used = {name for model in models.values() for name in model.model_fields_set}
    assert used == set(type(next(iter(models.values()))).model_fields)
