"""`window = N` or `auto`: Ollama and LM Studio are asked to load the model so, once; what they give is what holds."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.fakes import FAKES, FakeModel, OllamaFake, qa, summariser
from tests.pipeline.test_counting import history, told
from tests.proxying import Proxy, metric, running_proxy

GIB = 2**30
HI = [{"role": "user", "content": "hi"}]
LOAD, UNLOAD = "/api/v1/models/load", "/api/v1/models/unload"
REFUSED, GRANTED, CHOOSES = "it does not fit into memory", "as requested", "the backend chooses"


def model(**fields: Any) -> FakeModel:
    return FakeModel("m", **{"window": 4096, "trained_window": 131_072, **fields})


def ask(proxy: Proxy, number: int, **fields: Any) -> str:
    messages = [{"role": "user", "content": f"{number} " + "word " * 800}]
    answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 5, **fields})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-spillway-window"]


def gpu(folder: Path, monkeypatch: pytest.MonkeyPatch, *, free: int, total: int) -> None:
    """A machine with a GPU of so many GiB, by NVIDIA's tool."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n/bin/echo '{free * 1024}, {total * 1024}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


OLLAMA: dict[str, tuple[dict[str, Any], dict[str, Any], Any, int, str]] = {
    "not loaded": ({"loaded": False}, {}, 16_384, 16_384, GRANTED),
    "loaded with less": ({}, {}, 16_384, 16_384, GRANTED),
    "loaded with more": ({"window": 65_536}, {}, 16_384, 16_384, GRANTED),
    "made for less": ({"trained_window": 8192}, {}, 16_384, 8192, REFUSED),
    "too little memory": ({"loaded": False}, {"memory": (0, 2 * GIB)}, 32_768, 4096, REFUSED),
    # 0.9 of 8 GiB, less the file, a twentieth of it and 1 GiB, at 128 KiB a token
    "auto": ({"size": 4 * GIB}, {}, "auto", 16_384, GRANTED),
    "auto, and the GPU takes less": ({"size": 4 * GIB}, {"memory": (5 * GIB, 8 * GIB)}, "auto", 8192, GRANTED),
    "auto, and nothing fits": ({"size": 9 * GIB}, {}, "auto", 4096, CHOOSES),
}


@pytest.mark.parametrize("case", OLLAMA)
def test_ollama_loads_a_model_once_and_every_request_names_the_same_window(
    case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    gpu(tmp_path, monkeypatch, free=8, total=8)
    fields, options, setting, expected, words = OLLAMA[case]
    fake = OllamaFake([model(**fields)], summariser(qa()), **options)
    with fake, running_proxy(fake, models={"m": {"window": setting}}, profile_ttl=1e-9) as proxy:
        wishes = [{"options": {"num_ctx": 2048 * number + 4096}} for number in range(3)]
        seen = {ask(proxy, number, **(wish if words != CHOOSES else {})) for number, wish in enumerate(wishes)}
        assert seen == {str(expected)}
        reloads = fake.reloads
        seen |= {proxy.client.post("/api/chat", json={"model": "m", "messages": HI}).headers["x-spillway-window"]}
        assert (seen, fake.running["m"], fake.cuts) == ({str(expected)}, expected, 0)
        if words != CHOOSES:
            assert fake.reloads == reloads <= 2
            assert {chat.json["options"]["num_ctx"] for chat in fake.chats()} == {expected}
    assert [words in line for line in caplog.messages if "ollama/m" in line and "window" in line] == [True]


LM_STUDIO: dict[str, tuple[dict[str, Any], int | None, Any, int, list[tuple[str, int]], str]] = {
    "not loaded": ({"loaded": False}, None, 16_384, 16_384, [(LOAD, 16_384)], GRANTED),
    "loaded with less": ({}, 16_384, 16_384, 16_384, [(UNLOAD, 0), (LOAD, 16_384)], GRANTED),
    "loaded with more": ({"window": 65_536}, None, 16_384, 16_384, [], GRANTED),
    "refused": ({"window": 6000}, 8192, 16_384, 6000, [(UNLOAD, 0), (LOAD, 16_384), (LOAD, 6000)], REFUSED),
    "refused where none was loaded": ({"loaded": False}, 8192, 16_384, 4096, [(LOAD, 16_384)], REFUSED),
    "auto": ({}, 40_000, "auto", 32_768, [(UNLOAD, 0), *((LOAD, 131_072 >> step) for step in range(3))], GRANTED),
}


@pytest.mark.parametrize("case", LM_STUDIO)
def test_lm_studio_loads_a_model_once(case: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fields, fits, setting, expected, requests, words = LM_STUDIO[case]
    fake = FAKES["lmstudio"]([model(**fields)], summariser(qa()), fits=fits)
    with fake, running_proxy(fake, models={"m": {"window": setting}}, profile_ttl=1e-9) as proxy:
        assert {ask(proxy, number) for number in range(3)} == {str(expected)}
        assert fake.models[0].window == max(expected, fields.get("window", 0))
        origin = told(proxy)["window"]["origin"]
        became = "smaller" if words == REFUSED else "granted"
        assert sum(metric(proxy, "spillway_window_requests_total").values()) == 1
        assert f'became="{became}"' in next(iter(metric(proxy, "spillway_window_requests_total")))
        loads = [one for one in fake.requests if one.path in (LOAD, UNLOAD)]
    assert [(one.path, one.json.get("context_length", 0)) for one in loads] == requests
    assert origin == f"setting ({setting}), loaded so"
    assert [words in line for line in caplog.messages if "lmstudio/m" in line] == [True]


def test_requests_that_come_at_once_have_it_loaded_once() -> None:
    fake = FAKES["lmstudio"]([model(loaded=False)], summariser(qa()))
    with fake, running_proxy(fake, models={"m": {"window": 16_384}}) as proxy, ThreadPoolExecutor(4) as threads:
        assert {*threads.map(lambda number: ask(proxy, number), range(4))} == {"16384"}
        assert [one.path for one in fake.requests if one.path in (LOAD, UNLOAD)] == [LOAD]


def test_a_model_that_only_summarises_is_loaded_with_its_window_too() -> None:
    models = [model(window=2048), FakeModel("s", 4096, trained_window=131_072, loaded=False)]
    given = {"summary_model": "s", "strategy": "summarize", "models": {"s": {"window": 16_384}}}
    with OllamaFake(models, summariser(qa())) as fake, running_proxy(fake, **given) as proxy:
        answer = proxy.chat({"model": "m", "messages": history(41, 150), "max_tokens": 5})
        assert answer.headers["x-spillway-action"] == "compacted"
        asked = [chat.json["options"].get("num_ctx") for chat in fake.chats() if chat.json["model"] == "s"]
    assert set(asked) == {16_384}


def test_a_backend_that_can_not_be_asked_is_believed_to_have_the_window() -> None:
    with FAKES["generic"]([model()], qa()) as fake, running_proxy(fake, models={"m": {"window": 9000}}) as proxy:
        assert ask(proxy, 1) == "9000"
    with FAKES["vllm"]([model()], qa()) as fake, running_proxy(fake, models={"m": {"window": "auto"}}) as proxy:
        assert ask(proxy, 1) == "4096"


@pytest.mark.parametrize(("size", "fits"), [(4 * GIB, 16_384), (9 * GIB, None)])
def test_check_says_what_would_fit_and_what_was_got(
    size: int, fits: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu(tmp_path, monkeypatch, free=8, total=8)
    monkeypatch.setenv("SPILLWAY_MODELS", '{"m*": {"window": 32768}}')
    with FAKES["ollama"]([model(size=size)]) as fake:
        assert main(["check", "--backend", fake.url]) == 0
        row = next(line for line in capsys.readouterr().out.split("\n") if " ollama " in line)
        assert main(["check", "--json", "--backend", fake.url]) == 0
        report = json.loads(capsys.readouterr().out)
        assert not fake.chats(), "nothing is loaded"
    assert "setting; loaded with 4096" in row
    assert (f"about {fits} fit into memory" in row) is (fits is not None)
    assert report["backends"][0]["fits"] == ({} if fits is None else {"m:latest": fits})
    found = {each["code"]: each["text"] for each in report["findings"]}["smaller_window"]
    assert "m:latest is loaded with 4,096 tokens, though a window of 32,768 is set" in found


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("lmstudio", "the backend decides what fits into memory"),
        ("ollama", "it is not known here how much fits into its memory"),
    ],
)
def test_check_says_why_it_does_not_know_what_fits(
    kind: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.cli.check.is_here", lambda host: False)
    with FAKES[kind]([model(size=4 * GIB)]) as fake:
        assert main(["check", "--backend", fake.url]) == 0
    assert why in capsys.readouterr().out


def test_what_fits_is_told_where_a_window_is_only_a_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu(tmp_path, monkeypatch, free=8, total=8)
    with FAKES["ollama"]([model()]) as fake:
        assert main(["check", "--backend", fake.url]) == 0
    assert '"window": "auto"' in capsys.readouterr().out
