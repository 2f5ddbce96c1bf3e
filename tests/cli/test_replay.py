"""`spillway replay`: what would be done to saved conversations, told by a Spillway that only observes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.fakes import FakeModel, LlamaCppFake
from tests.fakes.brains import walk
from tests.proxying import Proxy, running_proxy

WINDOW = 2048


@pytest.fixture(scope="module")
def observing() -> Iterator[Proxy]:
    with LlamaCppFake([FakeModel("m", WINDOW)], walk()) as fake, running_proxy(fake, strategy="observe") as proxy:
        yield proxy
        assert fake.chats() == []  # no model is asked


def said(turns: int, words: int = 150) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"{n} " + "word " * words} for n in range(2 * turns - 1)]


def tree(messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    """A chat as Open WebUI 0.5 and later exports it, with a branch that was left."""
    known = {
        f"m{n}": {**message, "id": f"m{n}", "parentId": f"m{n - 1}" if n else None, "models": ["m"]}
        for n, message in enumerate(messages)
    }
    known["left"] = {"role": "user", "content": "never mind " * 5000, "id": "left", "parentId": "m0"}
    history = {"messages": known, "currentId": f"m{len(messages) - 1}"}
    return {"id": "x", "title": "A tree", "chat": {"models": ["gone"], "history": history, "messages": [], **more}}


def of_chatgpt(messages: list[dict[str, str]]) -> dict[str, Any]:
    """A chat as ChatGPT exports it: a root, a hidden message, a tool, an image, and a branch that was left."""

    def node(parent: str | None, role: str, *parts: Any, **content: Any) -> dict[str, Any]:
        message = {"author": {"role": role}, "content": {"content_type": "text", "parts": [*parts]} | content}
        return {"message": message, "parent": parent, "children": []}

    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    mapping = {"root": {"message": None, "parent": None, "children": ["hidden"]}, "hidden": node("root", "system", "")}
    mapping["asked"] = node("hidden", "user", image, "What is it?")
    mapping["code"] = {**node("asked", "assistant", text="print(1)")}
    mapping["tool"] = node("code", "tool", text="1 " * 700)
    del mapping["code"]["message"]["content"]["parts"]
    mapping["left"] = node("asked", "assistant", "never mind " * 5000)
    for n, message in enumerate(messages):
        mapping[f"m{n}"] = node(f"m{n - 1}" if n else "tool", message["role"], message["content"])
    return {"title": "Of ChatGPT", "mapping": mapping, "current_node": f"m{len(messages) - 1}"}


LIST = {"chat": {"title": "A list", "models": ["m"], "messages": said(3)}}
REQUESTS = "\n".join(json.dumps({"model": "m", "messages": said(15)[: 2 * n + 1]}) for n in range(15))


@pytest.mark.parametrize(
    ("file", "rows"),
    [
        (json.dumps([tree(said(15)), LIST]), [("A tree", 15, 5, 8), ("A list", 3, None, None)]),
        (json.dumps(LIST), [("A list", 3, None, None)]),
        (json.dumps([of_chatgpt(said(3)[1:])]), [("Of ChatGPT", 3, 2, 3)]),
        (REQUESTS, [("", 15, 5, 8)]),
        (json.dumps({"model": "m", "messages": said(6)}), [("", 1, 1, None)]),
        (json.dumps(tree([], system="Be brief.")), [("A tree", 0, None, None)]),
    ],
)
def test_it_says_from_which_turn_on_a_chat_is_shortened_and_would_not_fit(
    observing: Proxy, file: str, rows: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saved").write_text(file)
    assert main(["replay", str(tmp_path / "saved"), "--json", "--url", observing.url]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["title"], row["turns"], row["due"], row["full"]) for row in told] == rows
    assert main(["replay", str(tmp_path / "saved"), "--url", observing.url]) == 0
    out = capsys.readouterr().out
    assert "TOO LARGE FROM TURN" in out
    assert all(title in out for title, *_ in rows)


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ('{"messages": []}\n{"mess', "line 2 is not JSON"),
        ('[{"role": "user"}]', "neither chat requests"),
        ("3", "neither chat requests"),
    ],
)
def test_another_file_is_refused_with_the_reason(
    observing: Proxy, file: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saved").write_text(file)
    assert main(["replay", str(tmp_path / "saved"), "--url", observing.url]) == 1
    assert error in capsys.readouterr().err


def test_another_model_may_be_named(observing: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "saved").write_text(json.dumps({"model": "gone", "messages": said(2)}))
    assert main(["replay", str(tmp_path / "saved"), "--model", "m", "--json", "--url", observing.url]) == 0
    assert json.loads(capsys.readouterr().out)[0]["window"] == WINDOW
