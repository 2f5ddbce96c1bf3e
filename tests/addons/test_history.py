"""Conversations, outcomes and sums, as they are told over HTTP."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.addons import history
from tests.addons.watching import viewing
from tests.fakes import LlamaCppFake, Reply, scripted
from tests.fakes.waiting import Gate, wait_until
from tests.proxying import Proxy, running_proxy

ANSWER = "An answer of some words about the port 8080 and what listens there."
LONG = "word " * 60


def turns(number: int, first: str = "Which port is it?") -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(number):
        history.append({"role": "user", "content": f"{first} {turn} {LONG}"})
        history.append({"role": "assistant", "content": ANSWER})
    return history[:-1]


def gauge(proxy: Proxy, name: str) -> float:
    lines = proxy.client.get("/metrics").text.split("\n")
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def rows(proxy: Proxy, query: str = "") -> list[dict[str, Any]]:
    answer = proxy.client.get(f"/spillway/conversations{query}")
    assert answer.status_code == 200
    told: list[dict[str, Any]] = answer.json()["conversations"]
    return told


def timeline(proxy: Proxy, name: str) -> list[dict[str, Any]]:
    answer = proxy.client.get(f"/spillway/conversations/{name}")
    assert answer.status_code == 200
    told: list[dict[str, Any]] = answer.json()["timeline"]
    return told


def outcomes(proxy: Proxy, query: str = "") -> dict[str, Any]:
    answer = proxy.client.get(f"/spillway/outcomes{query}")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def fake() -> Iterator[LlamaCppFake]:
    with LlamaCppFake(brain=scripted([ANSWER] * 500), window=700) as fake:
        yield fake


@pytest.fixture
def proxy(fake: LlamaCppFake) -> Iterator[Proxy]:
    with running_proxy(fake) as proxy:
        yield proxy


def test_a_conversation_is_one_row_whose_bar_fills_its_window(proxy: Proxy) -> None:
    for number in (1, 2, 3):
        proxy.chat({"messages": turns(number), "stream": number == 2})
    (row,) = rows(proxy)
    assert (row["turns"], row["messages"]) == (3, 6)
    assert row["title"].startswith("Which port is it? 0 word")
    assert (row["state"], row["stoppable"], row["client"]) == ("idle", False, "python-httpx")
    assert (row["trigger"], row["pause"]) == (560, 630)
    assert sum(row["bar"].values()) == row["window"] == 700
    assert row["bar"]["system"] > 0
    assert row["bar"]["tail"] > 3 * 60
    assert row["bar"]["answer"] == row["answer"] > 5


def test_others_are_conversations_of_their_own_and_an_edit_is_none(proxy: Proxy) -> None:
    proxy.chat({"messages": turns(1)})
    proxy.chat({"messages": turns(1, "Who is there?")})
    proxy.chat({"messages": turns(2)})
    edited = [*turns(2)[:-1], {"role": "user", "content": "No, which host?"}]
    proxy.chat({"messages": edited})
    assert sorted(row["turns"] for row in rows(proxy)) == [1, 3]
    # Many conversations begin with the same word: what was answered in between tells them apart.
    proxy.chat({"messages": turns(1)})
    assert sorted(row["turns"] for row in rows(proxy)) == [1, 1, 3]


def test_a_timeline_tells_what_was_done_to_each_turn_and_why(proxy: Proxy) -> None:
    for number in range(1, 8):
        proxy.chat({"messages": turns(number)})
    (row,) = rows(proxy)
    told = timeline(proxy, row["id"])
    assert [turn["messages"] for turn in told] == [2, 4, 6, 8, 10, 12, 14]
    first, shortened = told[0], next(turn for turn in told if turn["compactions"])
    assert (first["repeated"], first["unlike"]) == (0, "first")
    assert shortened["tokens_before"] > 0.7 * shortened["window"]
    assert shortened["tokens_after"] < 0.75 * shortened["window"]  # what was recalled counts too
    assert shortened["rungs"]
    assert shortened["unlike"] == "shortened"
    assert shortened["checkpoint"]["covered"] > 2
    assert shortened["compaction_seconds"] > 0
    assert shortened["first_byte"] >= shortened["compaction_seconds"]
    names = [event["event"] for event in shortened["events"]]
    order = ["routed", "measured", "compacting", "compacted", "sent", "first_byte", "finished"]
    assert [name for name in dict.fromkeys(names) if name in order] == order
    assert row["compactions"] == sum(turn["compactions"] for turn in told) > 0
    assert row["checkpoint"]["summary"] in ("written", "extract")
    assert rows(proxy)[0]["bar"]["summary"] > 0


def test_the_log_has_every_request_and_can_be_asked_for_some(proxy: Proxy) -> None:
    proxy.chat({"messages": turns(1), "model": "a"})
    proxy.chat({"messages": turns(1, "Else?"), "model": "b"}, **{"x-request-id": "mine/1"})
    proxy.chat({"messages": "junk"})
    proxy.client.post("/v1/embeddings", json={"input": "x"})
    told = outcomes(proxy)["outcomes"]
    assert len(told) == 4
    assert [each["at"] for each in told] == sorted((each["at"] for each in told), reverse=True)
    assert [each["id"] for each in outcomes(proxy, "?model=b")["outcomes"]] == ["mine/1"]
    (failed,) = outcomes(proxy, "?status=400")["outcomes"]
    assert (failed["error"], failed["conversation"]) == ("invalid_request_error", None)
    assert [failed] == outcomes(proxy, "?error=true&status=4xx")["outcomes"]
    assert len(outcomes(proxy, "?action=passed")["outcomes"]) >= 1
    page = outcomes(proxy, "?limit=3")
    rest = outcomes(proxy, f"?limit=3&before={page['next']}")
    assert [*page["outcomes"], *rest["outcomes"]] == told
    assert rest["next"] is None
    one = proxy.client.get("/spillway/requests/mine/1").json()
    assert one["conversation"] == rows(proxy)[0]["id"]


def test_a_viewer_is_told_what_happens_from_a_snapshot_on(proxy: Proxy) -> None:
    proxy.chat({"messages": turns(1)})
    with viewing(proxy) as seen:
        snapshot = seen.until("snapshot")
        assert [row["turns"] for row in snapshot["conversations"]] == [1]
        assert (len(snapshot["outcomes"]), snapshot["session"]["role"]) == (1, "open")
        proxy.chat({"messages": turns(2), "stream": True})
        row = seen.until("conversation", lambda row: row["turns"] == 2 and row["state"] == "idle")
        seen.until("outcome")
        with viewing(proxy, f"?conversation={row['id']}") as one:
            assert [each["id"] for each in one.until("snapshot")["conversations"]] == [row["id"]]
            proxy.chat({"messages": turns(1, "Else?")})
            proxy.chat({"messages": turns(3)})
            one.until("outcome")
            assert {told["conversation"] for name, told in one.events if name == "outcome"} == {row["id"]}


def test_a_running_answer_is_sampled_while_it_streams() -> None:
    gate = Gate(at=100)
    reply = Reply(text=[f" w{n}" for n in range(200)], exact=True, gate=gate)
    with LlamaCppFake(brain=scripted([reply]), window=4000) as fake, running_proxy(fake) as proxy, viewing(proxy) as seen:
        seen.until("snapshot")
        asking = threading.Thread(target=proxy.chat, args=({"messages": turns(1), "stream": True},), daemon=True)
        asking.start()
        told = seen.until("conversation", lambda told: told["answer"] >= 90)
        assert told["state"] == "answering"
        assert told["tokens_per_second"] > 0
        (running,) = outcomes(proxy, "?running=true")["outcomes"]
        assert running["id"] == told["request"]
        assert rows(proxy)[0]["streamed"] is True
        gate.open()
        done = seen.until("conversation", lambda row: row["state"] == "idle")
        assert done["answer"] >= 190
        asking.join(20)


def test_savings_never_count_more_than_the_window_and_say_what_they_cost(proxy: Proxy) -> None:
    for number in range(1, 9):
        proxy.chat({"messages": turns(number)})
    told = proxy.client.get("/spillway/savings").json()
    assert told["requests"] == 8
    assert 0 < told["tokens"]["without"] <= 8 * 700
    assert told["tokens"]["spent"] > 0  # summaries that were asked for
    tokens = told["tokens"]
    assert tokens["not_sent"] == tokens["without"] - tokens["sent"] - tokens["spent"]
    assert told["seconds"]["waited"] > 0
    assert told["rescued"]["prompts"] >= 1
    assert proxy.client.get("/spillway/savings?model=none").json()["requests"] == 0
    # What no backend read saves nothing: neither a prompt that can't fit nor a compaction on demand, which costs its summary.
    assert proxy.chat({"messages": [{"role": "user", "content": LONG * 900}]}).status_code == 400
    unsent = proxy.client.get("/spillway/savings").json()
    assert (unsent["requests"], unsent["rescued"]) == (8, told["rescued"])
    proxy.chat({"messages": [*turns(4, "And the host?"), {"role": "user", "content": "/compact"}]})
    unsent = proxy.client.get("/spillway/savings").json()["tokens"]
    assert (unsent["without"], unsent["sent"]) == (tokens["without"], tokens["sent"])
    assert tokens["spent"] - unsent["spent"] == unsent["not_sent"] - tokens["not_sent"] < 0


def test_memory_is_bounded_in_bytes_and_bodies_go_first(fake: LlamaCppFake) -> None:
    with running_proxy(fake, cache_bytes=2**20) as proxy:
        for number in range(30):
            proxy.chat({"model": "m", "messages": turns(1, f"{number}?"), "metadata": {"pad": "x" * 90_000}})
            assert gauge(proxy, "spillway_live_bytes") <= gauge(proxy, "spillway_cache_bytes") <= 2**20
        assert gauge(proxy, "spillway_live_bytes") > 2**19
        told = rows(proxy)
        assert len(told) == 30
        assert told[0]["bar"] is not None
        assert told[-1]["bar"] is None
        assert len(outcomes(proxy)["outcomes"]) == len(told)


def test_requests_are_bounded_in_number_and_forgotten_ones_told(fake: LlamaCppFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_REQUESTS", 3)
    with running_proxy(fake) as proxy:
        proxy.chat({"messages": turns(1, "First?")})
        (first,) = rows(proxy)
        with viewing(proxy) as seen:
            for number in range(4):
                proxy.chat({"messages": turns(1, f"Else {number}?")})
            assert seen.until("gone") == {"id": first["id"]}
        assert len(outcomes(proxy)["outcomes"]) == 3
        assert len(rows(proxy)) == 3


def test_refused_requests_and_those_of_others_take_no_place(fake: LlamaCppFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_REQUESTS", 4)
    monkeypatch.setattr(history, "MOST_OTHERS", 2)
    with running_proxy(fake, api_keys=("anne-key-12345", "bert-key-12345")) as proxy:
        anne, bert = ({"authorization": f"Bearer {name}-key-12345"} for name in ("anne", "bert"))
        proxy.chat({"messages": turns(1)}, **anne)
        for number in range(6):
            proxy.client.post("/v1/chat/completions", content=b"{", headers=bert)
            proxy.client.post("/v1/embeddings", json={"model": f"made up {number}"}, headers=bert)
            proxy.chat({"messages": turns(1, f"Else {number}?")}, **bert)
        told = [proxy.client.get("/spillway/conversations", headers=who).json()["conversations"] for who in (anne, bert)]
        assert [len(each) for each in told] == [1, 3]


def test_nothing_is_kept_where_nothing_may_be(fake: LlamaCppFake) -> None:
    with running_proxy(fake, cache_bytes=0) as proxy:
        assert proxy.chat({"messages": turns(2)}).status_code == 200
        assert rows(proxy) == []
        assert outcomes(proxy)["outcomes"] == []


def test_viewers_are_bounded_in_number_and_leave_nothing_behind(proxy: Proxy) -> None:
    with viewing(proxy) as seen:
        seen.until("snapshot")
        assert gauge(proxy, "spillway_live_viewers") == 1
    wait_until(lambda: gauge(proxy, "spillway_live_viewers") == 0)


def test_a_viewer_does_not_hold_up_the_end_of_the_server(fake: LlamaCppFake) -> None:
    with running_proxy(fake, graceful_timeout=60.0) as proxy:
        with viewing(proxy) as seen:
            seen.until("snapshot")
            begun = time.monotonic()
            proxy.server.should_exit = True
            wait_until(lambda: not seen.reading)
        assert time.monotonic() - begun < 30
