"""A summariser that hangs, drips, never ends or asks for a rest: the history is shortened without it, soon."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.history.marks import is_summary
from tests.pipeline.test_bombs import EVENT, WHOLE, flood
from tests.proxying import Proxy, running_proxy
from tests.rawbackend import DEADLINE, SSE, Call, RawBackend, answering, raw_backend

pytestmark = pytest.mark.slow

MODELS = {"m": {"window": 2048}, "s": {"window": 32768}}
LISTED = {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]}


def history(turns: int = 12) -> list[dict[str, Any]]:
    said = [
        {"role": "assistant" if n % 2 else "user", "content": f"Turn {n}. " + "many words of it " * 40} for n in range(turns)
    ]
    return [*said, {"role": "user", "content": "and now?"}]


def chat(proxy: Proxy, turns: int = 12) -> dict[str, Any]:
    answer = proxy.chat({"model": "m", "messages": history(turns)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    return dict(answer.headers)


class Summariser:
    """A backend that answers at once, but for summaries, which are left to a script."""

    def __init__(self, script: Callable[[RawBackend, Call], None]) -> None:
        self.script = script
        self.asked: list[float] = []
        """When a summary was asked for, on the clock."""
        self.forwarded: list[Any] = []

    def __call__(self, backend: RawBackend, call: Call) -> None:
        if call.path.endswith("/models"):
            call.send(answering(LISTED))
        elif not call.path.endswith("/chat/completions"):
            call.send(answering({}, "404 Not Found"))
        elif call.json["model"] == "s":
            self.asked.append(time.monotonic())
            self.script(backend, call)
        else:
            self.forwarded.append(call.json["messages"])
            call.send(answering(WHOLE))


def hangs(backend: RawBackend, call: Call) -> None:
    if call.left():
        backend.gone.set()


def hangs_in_the_middle(backend: RawBackend, call: Call) -> None:
    call.send(SSE + EVENT)
    hangs(backend, call)


def drips(backend: RawBackend, call: Call) -> None:
    call.send(SSE)
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        if not call.send(EVENT) or call.left(0.01):
            backend.gone.set()
            return


def never_ends(backend: RawBackend, call: Call) -> None:
    flood(backend, call, SSE, EVENT * 200)


def one_event_without_end(backend: RawBackend, call: Call) -> None:
    flood(backend, call, SSE + b"data: ", b"x" * 65536)


@pytest.mark.parametrize("script", [hangs, hangs_in_the_middle, drips, never_ends, one_event_without_end])
def test_it_is_given_up_once_for_the_whole_request(script: Callable[[RawBackend, Call], None]) -> None:
    summariser = Summariser(script)
    timeout = DEADLINE if script in (never_ends, one_event_without_end) else 0.3
    with (
        raw_backend(summariser, lists=False) as backend,
        running_proxy(backend.setting, models=MODELS, summary_model="s", read_timeout=timeout) as proxy,
    ):
        assert chat(proxy)["x-spillway-action"] == "compacted"
        if summariser.asked:  # on a busy machine the time may be over before
            assert backend.gone.wait(DEADLINE)
    # One that says the same over and over is left for that, and asked once more.
    assert len(summariser.asked) <= (2 if script is never_ends else 1)
    (messages,) = summariser.forwarded
    assert len(messages) < len(history())
    assert any(map(is_summary, messages))  # the extract


def refuses(status: str, *headers: str) -> Callable[[RawBackend, Call], None]:
    def script(backend: RawBackend, call: Call) -> None:
        call.send(answering({"error": {"message": "no"}}, status, headers))

    return script


@pytest.mark.parametrize(
    ("status", "headers", "asked"),
    [
        ("429 Too Many Requests", ["retry-after: 1"], 2),
        ("503 Service Unavailable", ["retry-after: 1"], 2),
        ("429 Too Many Requests", ["retry-after: 3600"], 1),
        ("429 Too Many Requests", ["retry-after: Wed, 21 Oct 2065 07:28:00 GMT"], 1),
        ("429 Too Many Requests", [], 1),
    ],
)
def test_a_rest_that_it_asks_for_is_kept(status: str, headers: list[str], asked: int) -> None:
    summariser = Summariser(refuses(status, *headers))
    with (
        raw_backend(summariser, lists=False) as backend,
        running_proxy(backend.setting, models=MODELS, summary_model="s") as proxy,
    ):
        assert chat(proxy)["x-spillway-action"] == "compacted"
    assert len(summariser.asked) == asked
    if headers and asked == 2:
        assert summariser.asked[1] - summariser.asked[0] >= 1.0
