"""`spillway check` against every kind of backend."""

from __future__ import annotations

import pytest

from proxy.cli import main
from tests.fakes import FAKES, FakeModel


@pytest.mark.parametrize("kind", FAKES)
def test_it_prints_what_it_found(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FAKES[kind]([FakeModel("m", 6144)]) as fake:
        assert main(["check", "--backend", fake.url + "/v1"]) == 0
    head, row, *_ = capsys.readouterr().out.split("\n")
    assert head.split() == ["BACKEND", "KIND", "MODEL", "WINDOW", "FROM", "TOOLS", "VISION"]
    assert f" {kind} " in row
    assert ("unknown" if kind == "generic" else "6144") in row


def test_it_warns_of_a_summary_model_that_nobody_lists(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FAKES["ollama"]([FakeModel("qwen3"), FakeModel("llama")]) as fake:
        for named, warned in (("qwen3", False), ("qwen3:latest", False), ("Qwen-3", True)):
            monkeypatch.setenv("SPILLWAY_SUMMARY_MODEL", named)
            assert main(["check", "--backend", fake.url]) == 0
            out = capsys.readouterr().out
            warning = (
                f"SPILLWAY_SUMMARY_MODEL={named}: no backend lists this model; the nearest are qwen3:latest"
            )
            assert (warning in out) is warned


def test_it_advises_when_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FAKES["llamacpp"]()
    url = fake.url
    fake.stop()
    assert main(["check", "--backend", url]) == 1
    out = capsys.readouterr().out
    assert "No backend answers" in out
    assert "spillway check --backend" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "70000"], ["SPILLWAY_PORT", "70000"]),
        (["serve", "--backend", "localhost:8080"], ["localhost:8080", "http://"]),
        (
            ["serve", "--host", "0.0.0.0", "--backend", "http://x"],
            ["SPILLWAY_API_KEYS", "SPILLWAY_ALLOW_OPEN"],
        ),
        (["check", "--config", "/nowhere.toml"], ["/nowhere.toml"]),
        (["store", "stats"], ["no such file"]),
    ],
)
def test_a_wrong_setting_is_one_line(
    arguments: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:
    monkeypatch.setenv("SPILLWAY_STORE", f"sqlite:///{tmp_path}/absent.sqlite3")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
