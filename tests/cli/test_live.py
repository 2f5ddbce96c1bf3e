"""`spillway top`, `tail`, `show`, `export` and `explain`, against a Spillway that runs."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.fakes import FakeModel, LlamaCppFake, scripted
from tests.pipeline.test_recalling import WINDOW, brain, long_chat
from tests.proxying import Proxy, running_proxy

ROOT = Path(__file__).parents[2]
SHORT = {"model": "m", "messages": [{"role": "user", "content": "Say \x1b[31mred\x1b[0m, [bold]please[/bold]."}]}


@pytest.fixture(scope="module")
def busy() -> Iterator[tuple[Proxy, str, str]]:
    """A Spillway that has compacted a conversation, and the ids of the request and of the conversation."""
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40})
        conversation = proxy.client.get("/spillway/conversations").json()["conversations"][0]["id"]
        proxy.chat(SHORT, **{"x-request-id": "the-short-one"})
        yield proxy, answer.headers["x-request-id"], conversation


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(proxy: Proxy, *arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--url", proxy.url]) == status
        out, err = capsys.readouterr()
        return err if status else out

    return run


@contextmanager
def command(proxy: Proxy, *arguments: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    run = [sys.executable, "-m", "proxy", *arguments, "--url", proxy.url]
    with subprocess.Popen(run, cwd=ROOT, text=True, **{"stdout": subprocess.PIPE, **more}) as process:
        try:
            yield process
        finally:
            process.kill()


# top


def test_conversations_are_rows_with_the_window_as_a_bar(busy: Any, said: Any) -> None:
    proxy, _, conversation = busy
    head, _, older, *rest = said(proxy, "top").split("\n")
    assert head.split() == ["STATE", "MODEL", "WINDOW", "TOKENS", "TOK/S", "TURNS", "COMPACTED", "CONVERSATION"]
    assert conversation in older
    assert "idle" in older
    assert "m@llamacpp" in older
    row = proxy.client.get(f"/spillway/conversations/{conversation}").json()
    drawn = older.split()[2]
    assert len(drawn) == 30
    assert drawn.strip("=~#>.") == ""
    for part, letter in (("summary", "="), ("recalled", "~"), ("tail", "#"), ("answer", ">"), ("room", ".")):
        assert abs(drawn.count(letter) - 30 * row["bar"][part] / row["window"]) <= 1.5, part
    assert f"{row['fill']:.0%}" in older
    assert rest == [""]


def test_what_users_wrote_can_not_drive_the_terminal(busy: Any, said: Any) -> None:
    proxy, *_ = busy
    out = said(proxy, "top")
    assert "\x1b" not in out
    assert "Say \\x1b[31mred\\x1b[0m, [bold]please[/bold]." in out


# tail


def test_the_last_requests_are_a_line_each(busy: Any, said: Any) -> None:
    proxy, request, _ = busy
    lines = said(proxy, "tail", "--no-follow").splitlines()
    first, second = (line for line in lines if line.endswith((request, "the-short-one")))
    assert first.endswith(request)
    assert " 200 compacted llamacpp/m " in first
    assert " of 2,048 (" in first
    assert "1 passage recalled" in first
    assert " → " in first
    assert " 200 forwarded llamacpp/m " in second
    assert " → " not in second
    assert said(proxy, "tail", "--no-follow", "-n", "1") == f"{lines[-1]}\n"
    assert said(proxy, "tail", "--no-follow", "-n", "0") == ""


def test_requests_that_end_later_follow() -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], scripted(["hi", "hi", "hi"]))
    with fake, running_proxy(fake) as proxy:
        proxy.chat(SHORT, **{"x-request-id": "the-first"})
        with command(proxy, "tail", "--json") as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["id"] == "the-first"
            proxy.chat(SHORT, **{"x-request-id": "the-second"})
            told = json.loads(tail.stdout.readline())
            assert (told["id"], told["status"], told["action"]) == ("the-second", 200, "forwarded")
            tail.send_signal(signal.SIGINT)
            assert tail.wait(20) == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.rows(1)
def test_who_reads_no_further_is_not_told_off(form: list[str]) -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], scripted(["hi"] * 3))
    with fake, running_proxy(fake) as proxy:
        proxy.chat(SHORT)
        with command(proxy, "tail", *form, stderr=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            tail.stdout.readline()
            tail.stdout.close()
            proxy.chat(SHORT)
            proxy.chat(SHORT)
            assert tail.wait(20) == 0
            assert tail.stderr.read() == ""


# show


def test_one_request_has_its_timeline(busy: Any, said: Any) -> None:
    proxy, request, _ = busy
    out = said(proxy, "show", request)
    assert out.split("\n")[0].endswith(request)
    happened = out.partition("\n")[2]
    order = [
        happened.index(f" {event} ") for event in ("compacting", "summarised", "compacted", "recalled", "sent", "finished")
    ]
    assert order == sorted(order)
    assert json.loads(said(proxy, "show", request, "--json"))["request"]["id"] == request


def test_one_conversation_has_its_requests(busy: Any, said: Any) -> None:
    proxy, request, conversation = busy
    out = said(proxy, "show", conversation)
    assert conversation in out
    assert request in out
    told = json.loads(said(proxy, "show", conversation, "--json"))
    assert told["conversation"]["id"] == conversation
    (block,) = told["summary"]["blocks"]
    assert f"\nsummary, {block['by']}, {block['tokens']} tokens:\n{block['text'].strip()}\n" in out


def test_one_conversation_is_exported(busy: Any, said: Any) -> None:
    proxy, _, conversation = busy
    assert said(proxy, "export", conversation) == proxy.client.get(f"/spillway/conversations/{conversation}/export").text
    assert "There is no conversation" in said(proxy, "export", "c_gone", status=1)


def test_what_was_done_to_a_request_is_shown_but_for_what_was_kept(busy: Any, said: Any) -> None:
    proxy, request, _ = busy
    out = said(proxy, "show", request).partition(" tokens were sent, ")[2]
    assert re.search(r" forwarded; of the messages (\d+ \w+, )*1 summarised, 1 recalled\.\n$", out) is not None
    told = json.loads(said(proxy, "show", request, "--json"))
    assert told["diff"] == proxy.client.get(f"/spillway/requests/{request}/diff").json()


# explain


def test_a_saved_request_is_explained(busy: Any, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, *_ = busy
    saved = json.dumps({"model": "m", "messages": long_chat()})
    (tmp_path / "saved.json").write_text(saved)
    out = said(proxy, "explain", str(tmp_path / "saved.json"))
    told = json.loads(out)
    assert (told["window"], len(told["recalled"]["passages"])) == (WINDOW, 1)
    assert 40 < told["checkpoint"]["covered_messages"] < 80
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(saved.encode())))
    assert said(proxy, "explain", "-") == out


# Who may look


def test_a_key_looks_at_its_own(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = LlamaCppFake([FakeModel("m", WINDOW)], scripted(["hi", "hi"]))
    with fake, running_proxy(fake, api_keys=("one", "two"), admin_keys=("boss",)) as proxy:
        for key in ("one", "two"):
            proxy.chat(SHORT, authorization=f"Bearer {key}", **{"x-request-id": f"of-{key}"})
        refused = said(proxy, "tail", "--no-follow", status=1)
        assert "SPILLWAY_API_KEYS" in refused
        monkeypatch.setenv("SPILLWAY_API_KEYS", "one")
        out = said(proxy, "tail", "--no-follow")
        assert "of-one" in out
        assert "of-two" not in out
        monkeypatch.setenv("SPILLWAY_ADMIN_KEYS", "boss")
        out = said(proxy, "tail", "--no-follow")
        assert "of-one" in out
        assert "of-two" in out


def test_where_no_spillway_is_it_says_how_to_get_one(said: Any) -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)]) as fake:
        assert "is no Spillway" in said(fake, "top", status=1)
    assert "`spillway serve`" in said(fake, "top", status=1)
