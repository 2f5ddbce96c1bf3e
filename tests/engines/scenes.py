"""What is tried with every engine behind Spillway. A scene returns the figure for the table, and raises if it went wrong."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.test_real_engine_tools import DONE, Client
from tests.engine.client import Answer
from tests.engine.spillway import Spillway, spillway_server
from tests.engine.walking import after, conversation, spoken, user
from tests.engines.programs import WINDOW, Place
from tests.fakes import wait_until
from tests.proxying import UNREDUCED

ROUNDS = 5
ENDLESS = 50_000
"""Tokens that take an engine much longer than the time in which it has to notice that nobody listens."""
QUIET = 10.0
"""Seconds within which an engine has to be at rest after its client has left."""
SLOW = 600.0
"""Seconds that an answer may take, with the summary before it."""
_PROSE = "The ferry to the island leaves at nine in the morning, and at noon as well when the weather is fine. "
_CODE = "def area(width: float, height: float) -> float:\n    return width * height\n\n\n"
_RECORD = '{"id": 4711, "path": "src/main.py", "ok": true, "size": 12.5}\n'
TEXTS = (_PROSE, _CODE, _RECORD, "人工智能正在改变我们的生活方式。", "Привет, как твои дела? ")


@dataclass(frozen=True)
class Stage:
    place: Place
    proxy: Spillway
    folder: Path


def probe(stage: Stage) -> str:
    """Kind and window are found without anybody having said them."""
    place = stage.place
    told = _get(stage.proxy, "/spillway/models")["backends"]
    assert [backend["kind"] for backend in told] == [place.kind] * len(place.urls), told
    # A proxy of its own, which was told nothing.
    with spillway_server(place.urls, log=stage.folder / "probe.log") as fresh:
        answer = fresh.chat([after(place.words[0])], model=place.walk, max_tokens=5)
        assert (answer.status, answer.text) == (200, spoken(place.words, place.words[0], 5)), answer.raw
        window = answer.headers.get("x-spillway-window")
    assert window == (str(WINDOW) if place.window_told else None), window
    return f"{place.kind}, {window or 'window not told'}"


def counting(stage: Stage) -> str:
    """Estimates against what the engine reports: of the first request of a conversation, and of later ones."""
    fresh: list[float] = []
    later: list[float] = []
    for text in TEXTS:
        history: list[dict[str, Any]] = []
        for turn in range(4):
            history.append(user(f"{turn}. {text * 3}"))
            answer = stage.proxy.chat(history, model=stage.place.walk, max_tokens=8)
            assert answer.status == 200, answer.raw
            history.append({"role": "assistant", "content": answer.text})
            (later if turn else fresh).append(_off(answer))
    # One that does not count has a vocabulary that nobody knows, and is asked in five languages.
    assert _mean(later) <= 0.05, later
    return f"{_mean(fresh):.1%} fresh, {_mean(later):.1%} later, worst {max(fresh + later):.1%}"


def overflow(stage: Stage) -> str:
    """A conversation of several windows: every answer is the right one, and the engine refuses nothing."""
    place = stage.place
    actions: list[str] = []
    history: list[dict[str, Any]] = []
    refused = _metric(stage.proxy, "spillway_overflows_total")
    for turn in conversation(place.words, place.turns):
        history, answer = _turn(stage.proxy, place, history, turn)
        assert answer.status == 200, answer.raw
        assert answer.text == turn.expected, (len(actions), answer.text, turn.expected)
        assert answer.reasons == ["length"]
        actions.append(answer.action)
    refused = _metric(stage.proxy, "spillway_overflows_total") - refused
    assert refused == 0
    compacted = sum(action not in UNREDUCED for action in actions)
    assert 2 <= compacted <= place.turns // 2, actions
    return f"{place.turns} turns, {compacted} compacted, {refused:.0f} refused"


def pause(stage: Stage) -> str:
    """One answer that is longer than the window: every word once, one id, one end."""
    place, seen = stage.place, list[str]()
    words = spoken(place.words, place.words[0], place.length).split()
    before = _metric(stage.proxy, "spillway_pauses_total")
    for stream in (True, False):
        asked = {"model": place.walk, "stream": stream, "max_tokens": place.length}
        answer = stage.proxy.chat([after(place.words[0])], timeout=SLOW, **asked)
        assert answer.status == 200, answer.raw
        seen = answer.text.split()
        told = words if place.continues else words[: WINDOW // 2]
        wrong = next((n for n, (word, want) in enumerate(zip(seen, told, strict=False)) if word != want), None)
        assert wrong is None, f"word {wrong}: {seen[wrong - 5 : wrong + 5]} not {words[wrong : wrong + 5]}"
        assert len(seen) == len(words), len(seen)
        assert (answer.reasons, len(answer.ids), answer.roles) == (["length"], 1, ["assistant"])
        assert answer.done == int(stream)
    return f"{len(seen)} of {len(words)} words, {_metric(stage.proxy, 'spillway_pauses_total') - before:.0f} pauses"


def native(stage: Stage) -> str:
    """A loop of calls with the engine's own tools."""
    client = Client(stage.proxy.v1, "k", stage.place.echo, rounds=ROUNDS)
    if not stage.place.native_calls:
        return "none here"
    assert client.loop([False, True]) == DONE
    assert set(client.tools) == {"native"}, client.tools
    return f"{ROUNDS} calls"


def emulated(stage: Stage) -> str:
    """The same where Spillway was told that the model has no tools."""
    place = stage.place
    models = {place.echo: {"tools": False, "window": WINDOW}}
    with spillway_server(place.urls, log=stage.folder / "emulated.log", models=models) as proxy:
        client = Client(proxy.v1, "k", place.echo, rounds=ROUNDS)
        assert DONE in client.loop([False, True])
        assert set(client.tools) == {"emulated"}, client.tools
    return f"{ROUNDS} calls"


def cancel(stage: Stage) -> str:
    """The client hangs up in the middle of a stream: the engine is at rest soon after."""
    place = stage.place
    body = {"model": place.walk, "messages": [after(place.words[0])], "max_tokens": ENDLESS, "stream": True}
    url = stage.proxy.v1 + "/chat/completions"
    with httpx.Client(trust_env=False, timeout=60.0) as client, client.stream("POST", url, json=body) as response:
        chunks = response.iter_raw()
        for _ in range(10):
            next(chunks)
        working = _load(place)
        assert working > 0.1, working
    began = time.monotonic()
    wait_until(lambda: _load(place) < working / 4, QUIET)
    return f"{time.monotonic() - began:.1f} s"


SCENES: tuple[Callable[[Stage], str], ...] = (probe, counting, overflow, pause, native, emulated, cancel)


def _turn(proxy: Spillway, place: Place, history: list[dict[str, Any]], turn: Any) -> tuple[list[dict[str, Any]], Answer]:
    history = [*history, user(turn.content)]
    asked = {"model": place.walk, "max_tokens": turn.max_tokens, "stream": turn.stream}
    answer = proxy.chat(history, timeout=SLOW, **asked)
    return [*history, {"role": "assistant", "content": answer.text}], answer


def _off(answer: Answer) -> float:
    """How far the estimate was from the report, as a fraction of that."""
    usage = answer.usage
    assert usage is not None
    # The header has four decimals of the window's fraction.
    error = abs(float(answer.headers["x-spillway-fill"]) * WINDOW - usage["prompt_tokens"])
    return float(max(0.0, error - WINDOW * 0.00005) / usage["prompt_tokens"])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _load(place: Place) -> float:
    """CPU that the engine uses, in cores, over half a second."""
    before = sum(server.busy_seconds() for server in place.servers)
    time.sleep(0.5)  # what is measured is what happens in this time
    return 2 * (sum(server.busy_seconds() for server in place.servers) - before)


def _get(proxy: Spillway, path: str) -> Any:
    return httpx.get(proxy.url + path, timeout=30.0, trust_env=False).raise_for_status().json()


def _metric(proxy: Spillway, name: str) -> float:
    text = httpx.get(f"{proxy.url}/metrics", timeout=30.0, trust_env=False).text
    return sum(float(line.split()[-1]) for line in text.split("\n") if line.partition("{")[0] == name)
