"""What became of a request message by message, and requests that are stopped."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from proxy.addons.prompt_diff import apart, diff_rows
from proxy.core.history.marks import CLOSE, OPEN, RECALLED, RECALLED_END
from proxy.core.history.turns import in_front
from proxy.core.request import Message
from tests.addons.watching import code, viewing
from tests.fakes import GenericFake, LlamaCppFake, Question, Reply, scripted, walk, words
from tests.fakes.waiting import HEADERS, Gate, wait_until
from tests.pipeline.test_verifying import GOOD, history
from tests.proxying import Proxy, read_stream, running_proxy

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


def newest(proxy: Proxy) -> dict[str, Any]:
    told: dict[str, Any] = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]
    return told


def diff(proxy: Proxy, query: str = "") -> dict[str, Any]:
    answer = proxy.client.get(f"/spillway/requests/{newest(proxy)['id']}/diff{query}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    for name, number in told["counts"].items():
        assert number == sum(row["what"] == name for row in told["rows"])
    places = [row["forwarded"] for row in told["rows"] if row["forwarded"] is not None]
    assert places == sorted(places)
    return told


def kinds(told: dict[str, Any]) -> dict[str, int]:
    return {name: number for name, number in told["counts"].items() if number}


# What became of it


def test_what_was_forwarded_as_it_came_is_kept_whole() -> None:
    with LlamaCppFake(brain=scripted(["hi"])) as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        told = diff(proxy)
        assert told["same"] is True
        assert kinds(told) == {"kept": 1}
        assert told["rows"][0]["before"] == told["rows"][0]["after"] == "hello"


@pytest.mark.parametrize("parts", [False, True])
def test_a_summary_in_front_of_a_result_is_told_apart_from_it(parts: bool) -> None:
    result: Message = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}] if parts else "r"}
    called: Message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    sent: list[Message] = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "long ago"}, called, result]
    block = f"{RECALLED}\n- long\n{RECALLED_END}"
    forwarded = [sent[0], called, in_front(in_front(result, block), f"{OPEN}\nIt went well.\n{CLOSE}")]
    messages = [*apart(forwarded)]
    rows = diff_rows(sent, messages, [1.0] * len(messages), False)
    assert [(row["what"], row["sent"]) for row in rows] == [
        ("kept", [0]),
        ("kept", [2]),
        ("summarised", [1]),
        ("recalled", [3]),
    ]


def answer_or_summary(question: Question) -> Reply:
    return Reply(text=GOOD if "Summarise the conversation" in question.last_user else "Well then.")


def test_a_summary_and_what_was_recalled_are_told_apart_from_what_was_kept() -> None:
    with LlamaCppFake(brain=answer_or_summary, window=2048) as fake, running_proxy(fake) as proxy:
        asked = [*history()[:-1], {"role": "user", "content": "Where does uncle Tobias keep his notes, on which server?"}]
        proxy.chat({"model": "m", "messages": asked, "max_tokens": 40})
        told = diff(proxy)
        assert told["same"] is False
        (summary,) = [row for row in told["rows"] if row["what"] == "summarised"]
        assert len(summary["sent"]) > 4
        assert GOOD in summary["after"]
        assert summary["before"] is None
        (recalled,) = [row for row in told["rows"] if row["what"] == "recalled"]
        assert recalled["before"] == asked[-1]["content"]
        assert recalled["after"].endswith(asked[-1]["content"])
        assert "/srv/notes/garden.md" in recalled["after"]
        assert told["counts"]["kept"] >= 1
        assert told["tokens"]["sent"] > told["tokens"]["forwarded"] > 0
        full = diff(proxy, "?full=true")
        covered = next(row["covered"] for row in full["rows"] if row["what"] == "summarised")
        assert [each["index"] for each in covered] == summary["sent"]
        assert any("Valparaiso" in each["text"] for each in covered)
        # Every message that was sent is told of once.
        assert sorted(at for row in told["rows"] for at in row["sent"]) == list(range(len(asked)))
        (row,) = proxy.client.get("/spillway/conversations").json()["conversations"]
        assert row["bar"]["summary"] > 40
        assert row["bar"]["recalled"] > 5
        assert sum(row["bar"].values()) == 2048


def test_tool_results_that_were_masked_or_shortened_say_so() -> None:
    lines = "\n".join(f"line {number} of the file with some words in it" for number in range(400))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read them."}]
    for number in range(4):
        call = {**CALL, "id": f"c{number}", "function": {"name": "read", "arguments": f'{{"path": "{number}"}}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number}\n{lines}"},
        ]
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}]
    with LlamaCppFake(brain=scripted(["ok"] * 9), window=8192) as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": "m", "messages": messages, "tools": TOOLS})
        told = diff(proxy)
        assert (
            set(kinds(told)) == {"kept", "masked"}
            or set(kinds(told)) == {"kept", "shortened"}
            or set(kinds(told)) == {"kept", "masked", "shortened"}
        )
        changed = [row for row in told["rows"] if row["what"] != "kept"]
        assert all(row["role"] == "tool" and len(row["after"]) < len(row["before"]) for row in changed)
        assert told["tools"] == {"sent": 1, "forwarded": 1, "changed": False}
        assert newest(proxy)["rungs"]


def test_what_was_mended_and_added_is_told() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "user", "content": "What is in it?"},
    ]
    with LlamaCppFake(brain=scripted(["ok"])) as fake, running_proxy(fake) as proxy:
        proxy.chat({"model": "m", "messages": messages, "tools": TOOLS})
        told = diff(proxy)
        (added,) = [row for row in told["rows"] if row["what"] == "added"]
        assert (added["role"], added["sent"], added["before"]) == ("tool", [], None)
        assert kinds(told) == {"kept": 3, "added": 1}
        assert "→ read(" in told["rows"][1]["before"]


def test_what_was_said_is_shown_to_no_admin_who_may_not() -> None:
    anne, boss = {"x-api-key": "anne-key-12345"}, {"x-api-key": "boss-key-12345"}
    keys = {"api_keys": ("anne-key-12345",), "admin_keys": ("boss-key-12345",)}
    with LlamaCppFake(brain=scripted(["ok"])) as fake, running_proxy(fake, **keys) as proxy:
        proxy.chat({"messages": [{"role": "user", "content": "hello"}]}, **anne)
        (row,) = proxy.client.get("/spillway/conversations", headers=boss).json()["conversations"]
        path = f"/spillway/requests/{row['request']}"
        assert code(proxy.client.get(f"{path}/diff", headers=boss)) == (403, "content_not_shown")
        assert proxy.client.get(f"{path}/diff", headers=anne).json()["rows"][0]["after"] == "hello"
        assert proxy.client.get(path, headers=boss).json()["messages"] == 1


# Stopping


@contextmanager
def asking(
    proxy: Proxy, headers: dict[str, str] | None = None, *, path: str = "/v1/chat/completions", **fields: Any
) -> Iterator[list[Any]]:
    """A client that asks while something else is done; in the end the list holds its answer."""
    got: list[Any] = []
    named = "input" if path == "/v1/responses" else "messages"
    bound: dict[str, Any] = {"store": False} if named == "input" else {"max_tokens": 900}
    body = {"model": "m", named: [{"role": "user", "content": "Count."}], "stream": True, **bound, **fields}

    def ask() -> None:
        with httpx.Client(base_url=proxy.url, timeout=30, trust_env=False) as client:
            got.append(client.post(path, json=body, headers=headers))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield got
    thread.join(30)
    assert got


def stop(proxy: Proxy, **headers: str) -> httpx.Response:
    (row,) = proxy.client.get("/spillway/conversations", headers=headers).json()["conversations"]
    return proxy.client.post(f"/spillway/requests/{row['request']}/stop", headers=headers)


def test_a_stopped_stream_ends_in_good_order_with_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "spillway")
    gate = Gate(at=20)
    with LlamaCppFake(brain=walk(), gate=gate) as fake, running_proxy(fake) as proxy, viewing(proxy) as seen:
        with asking(proxy) as got:
            gate.wait_reached(20)
            wait_until(lambda: newest(proxy)["running"])
            seen.until("conversation", lambda row: row["state"] == "answering" and row["stoppable"])
            assert stop(proxy).json() == {"stopped": True}
        said = read_stream(got[0].content)
        assert said.text == words(1, 10)  # of two tokens each
        assert (said.finishes, said.done, said.errors) == (["stop"], 1, [])
        wait_until(lambda: fake.cancelled == 1)
        done = newest(proxy)
        assert (done["status"], done["error"], done["stopped"], done["unfinished"]) == (200, None, True, False)
        assert code(stop(proxy)) == (409, "not_running")
        assert any(" ended=viewer " in line for line in caplog.messages)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat"])
def test_a_stopped_stream_of_another_dialect_ends_as_that_has_it(path: str) -> None:
    gate = Gate(at=20)
    with LlamaCppFake(brain=walk(), gate=gate) as fake, running_proxy(fake) as proxy:
        with asking(proxy, path=path) as got:
            gate.wait_reached(20)
            wait_until(lambda: proxy.client.get("/spillway/conversations").json()["conversations"][0]["answer"] > 0)
            assert stop(proxy).status_code == 200
        ends = {"/v1/messages": "event: message_stop", "/v1/responses": "event: response.completed", "/api/chat": '"done":true'}
        assert ends[path] in got[0].text
        assert "w9 w10" in "".join(re.findall(r'"(?:text|delta|content)":"([^"]*)"', got[0].text))


def test_what_nothing_was_said_for_yet_ends_with_an_error_that_says_why(stream: bool) -> None:
    gate = Gate(at=HEADERS)
    with LlamaCppFake(brain=walk(), gate=gate) as fake, running_proxy(fake) as proxy:
        with asking(proxy, stream=stream) as got:
            gate.wait_reached(20)
            assert stop(proxy).status_code == 200
        assert code(got[0]) == (403, "stopped")
        assert newest(proxy)["error"] == "stopped"
        wait_until(lambda: fake.active == 0)


def test_an_answer_is_stopped_while_its_window_is_made_room_in() -> None:
    held = Gate(at=0)

    def brain(question: Question) -> Reply:
        if "Summarise" in question.last_user:
            return Reply(text=GOOD, gate=held)
        return walk()(question)

    with LlamaCppFake(brain=brain, window=1024) as fake, running_proxy(fake) as proxy:
        asked = [{"role": "user", "content": f"{number} " + "word " * 60} for number in range(6)]
        told = [{"role": "assistant", "content": "Noted, and what else is there to be said about it?"}] * 6
        messages = [each for pair in zip(asked, told, strict=True) for each in pair][:-1]
        with asking(proxy, messages=messages) as got:
            held.wait_reached(20)
            (row,) = proxy.client.get("/spillway/conversations").json()["conversations"]
            assert row["state"] in ("paused", "compacting")
            assert stop(proxy).status_code == 200
        said = read_stream(got[0].content)
        assert said.text.startswith("w1 w2 w3")
        assert (said.finishes, said.done, said.errors) == (["stop"], 1, [])
        held.open()


def test_others_requests_are_stopped_by_nobody_but_an_admin() -> None:
    anne, bert, boss = ({"x-api-key": f"{name}-key-12345"} for name in ("anne", "bert", "boss"))
    keys = {"api_keys": ("anne-key-12345", "bert-key-12345"), "admin_keys": ("boss-key-12345",)}
    gate = Gate(at=5)
    with LlamaCppFake(brain=walk(), gate=gate) as fake, running_proxy(fake, **keys) as proxy:
        with asking(proxy, anne) as got:
            gate.wait_reached(20)
            running = proxy.client.get("/spillway/outcomes", headers=boss).json()["outcomes"][0]
            path = f"/spillway/requests/{running['id']}/stop"
            assert code(proxy.client.post(path, headers=bert)) == (404, "not_found")
            assert proxy.client.post(path, headers=boss).json() == {"stopped": True}
        assert read_stream(got[0].content).finishes == ["stop"]


# Lessons


def test_a_lesson_is_forgotten_where_one_may() -> None:
    question = {"model": "fake-model", "messages": [{"role": "user", "content": "word " * 900}]}
    with GenericFake(brain=scripted(["ok"] * 9), window=700) as fake, running_proxy(fake) as proxy:
        proxy.chat(question)

        def known() -> Any:
            return proxy.client.get("/spillway/models").json()["backends"][0]["models"]["fake-model"].get("window")

        assert known()["value"] == 700
        path = "/spillway/lessons?backend=generic&model=fake-model"
        assert proxy.client.delete(f"{path}&lesson=tools").json() == {"forgotten": False}
        assert proxy.client.delete(f"{path}&lesson=window").json() == {"forgotten": True}
        assert known() is None
        assert proxy.client.delete(f"{path}&lesson=all").json() == {"forgotten": False}
        assert code(proxy.client.delete(f"{path}&lesson=none"))[0] == 400
        assert code(proxy.client.delete("/spillway/lessons?backend=none&model=m&lesson=all"))[0] == 400


def test_a_lesson_is_everybodys_so_that_no_single_key_makes_it_forgotten() -> None:
    keys = {"api_keys": ("anne-key-12345",), "admin_keys": ("boss-key-12345",)}
    path = "/spillway/lessons?backend=generic&model=m&lesson=all"
    with GenericFake() as fake, running_proxy(fake, **keys) as proxy:
        for method, each in (("DELETE", path), ("PUT", "/spillway/summary_model")):
            refused = proxy.client.request(method, each, headers={"x-api-key": "anne-key-12345"})
            assert code(refused) == (403, "admin_only")
        assert proxy.client.delete(path, headers={"x-api-key": "boss-key-12345"}).status_code == 200
