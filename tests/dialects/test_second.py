"""A second dialect, registered by one line, is managed like the first: no part between the two ends knows it.

It is a small one, and unlike chat completions: a question goes in as one text, the answer comes as a JSON object a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from proxy.api import app, paths
from proxy.core.dialect import Completion, Dialect, Writer
from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps, loads
from proxy.core.managing import Managed
from proxy.core.piece import Identity, Piece
from proxy.core.request import Request
from proxy.relay import Relay
from tests.fakes import LlamaCppFake, scripted, walk, words
from tests.proxying import Proxy, running_proxy

PATH = "/v1/lines"


class LinesWriter(Writer):
    media_type = "application/x-ndjson"

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        del identity, role_sent
        return self._line(piece) if piece.form is not None else self.end() * piece.done

    @override
    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        del identity, role_sent
        return self._line(replace(piece, finish=None, usage=None))

    @override
    def insert(self, piece: Piece, identity: Identity) -> bytes:
        del identity
        return self._line(piece)

    @override
    def error(self, body: Mapping[str, Any]) -> bytes:
        return dumps({"fault": body["error"]["message"]}) + b"\n"

    @override
    def end(self) -> bytes:
        return b'{"end":true}\n'

    @override
    def body(self, completion: Completion, choices: Sequence[Piece], usage: Mapping[str, Any] | None) -> bytes:
        return dumps({"said": choices[0].text, "tokens": (usage or {}).get("completion_tokens")})

    def _line(self, piece: Piece) -> bytes:
        says = {"said": piece.text, "thought": piece.thought, "why": piece.finish}
        if piece.usage is not None:
            says["tokens"] = piece.usage["completion_tokens"]
        told = {name: value for name, value in says.items() if value}
        return dumps(told) + b"\n" if told else b""


def read(body: bytes) -> Request:
    asked = loads(body)
    if "ask" not in asked:
        raise BadRequest("Say what you `ask`.", param="ask")
    turns = [{"role": "user", "content": asked["ask"]}]
    streamed = bool(asked.get("live"))
    neutral = {"model": "fake-model", "messages": turns, "stream": streamed}
    return Request(body=neutral, model="fake-model", stream=streamed, wants_usage=True)


def writer(request: Request, unique: str, managed: Managed) -> LinesWriter:
    del request, unique, managed
    return LinesWriter()


def fault(error: Any, status: int) -> dict[str, Any]:
    del status
    return {"fault": error["message"]}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one line in `proxy.dialects` would, which is read once when the process starts."""
    dialect = Dialect(name="lines", path=PATH, read=read, writer=writer, error=fault)
    route = app._route(PATH, partial(Relay.answer, dialect=dialect), ["POST"])
    monkeypatch.setattr(app, "ROUTES", (route, *app.ROUTES))
    monkeypatch.setitem(app._DIALECTS, PATH, dialect)
    monkeypatch.setitem(paths._MANAGED, "POST", paths._MANAGED["POST"] | {PATH})


def lines(proxy: Proxy, ask: str) -> Iterator[dict[str, Any]]:
    answer = proxy.client.post(PATH, json={"ask": ask, "live": True})
    assert answer.headers["content-type"] == "application/x-ndjson"
    return map(json.loads, answer.text.splitlines())


def test_a_stream_is_read_in_one_dialect_and_written_in_the_other() -> None:
    with LlamaCppFake(brain=scripted(["Good day to you."])) as fake, running_proxy(fake) as proxy:
        *said, finish, tokens, end = lines(proxy, "hello")
        assert "".join(each["said"] for each in said) == "Good day to you."
        assert finish == {"why": "stop"}
        assert tokens["tokens"] > 0
        assert end == {"end": True}
        (sent,) = fake.chats()
        assert sent.path == "/v1/chat/completions"
        assert sent.json["messages"] == [{"role": "user", "content": "hello"}]


def test_an_answer_of_several_windows_is_one_answer() -> None:
    with LlamaCppFake(brain=walk(last=1500), window=1024) as fake, running_proxy(fake) as proxy:
        found = list(lines(proxy, "go"))
        assert "".join(each.get("said", "") for each in found) == words(1, 1500)
        assert [each["why"] for each in found if "why" in each] == ["stop"]
        assert len(fake.chats()) > 2


def test_a_whole_answer_and_every_error_speak_it_too() -> None:
    with LlamaCppFake(brain=scripted(["Well."])) as fake, running_proxy(fake) as proxy:
        whole = proxy.client.post(PATH, json={"ask": "hello"}).json()
        assert whole["said"] == "Well."
        assert whole["tokens"] > 0
        malformed = proxy.client.post(PATH, json={})
        assert (malformed.status_code, malformed.json()) == (400, {"fault": "Say what you `ask`."})
        assert proxy.client.post("/lines", json={}).status_code == 400, "in every spelling of a base URL"
        fake.fail_next(418, {"error": {"message": "I am a teapot."}})
        refused = proxy.client.post(PATH, json={"ask": "hello"})
        assert (refused.status_code, refused.json()) == (418, {"fault": "I am a teapot."})
        fake.stop()
        assert "cannot be reached" in proxy.client.post(PATH, json={"ask": "hello"}).json()["fault"]
        assert 'status="502"' in proxy.client.get("/metrics").text
