"""A text that goes on (`/v1/completions`) is told alike however its stream is cut, and a frame that is not parsed like one that is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from proxy.settings import BackendSetting, ModelSetting
from tests.proxying import Proxy, running_proxy

WINDOW = 2048


class Pieces(httpx.AsyncByteStream):
    """Bytes that come in several reads."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class Backend(httpx.AsyncBaseTransport):
    """Says what it is told to, cut as it is told to."""

    def __init__(self) -> None:
        self.attempts: list[Sequence[bytes]] = []

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            listed = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
            return httpx.Response(200, headers={"content-type": "application/json"}, stream=Pieces(listed))
        kind = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=kind, stream=Pieces(*self.attempts.pop(0)))


@dataclass(frozen=True, slots=True)
class Stage:
    proxy: Proxy
    backend: Backend

    def told(self, *attempts: Sequence[bytes]) -> bytes:
        """What the client gets where the backend says this."""
        self.backend.attempts = list(attempts)
        asked = {"model": "m", "prompt": "Once", "stream": True, "stream_options": {"include_usage": True}}
        answer = self.proxy.client.post("/v1/completions", json=asked)
        assert answer.status_code == 200
        assert self.backend.attempts == []
        return answer.content


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    backend = Backend()
    setting = BackendSetting(name="b", url="http://127.0.0.1:9")
    with running_proxy(setting, transport=backend, models={"m": ModelSetting(window=WINDOW)}) as proxy:
        yield Stage(proxy, backend)


def frame(text: str, finish: str | None = None, *, name: str = "one", **more: Any) -> bytes:
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
    told = {"choices": [choice], "created": 1, "model": "m", "object": "text_completion", "id": name, **more}
    return b"data: %b\n\n" % json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def attempt(words: Sequence[str], finish: str, *, name: str, used: int) -> bytes:
    usage = {"prompt_tokens": used, "completion_tokens": 50, "total_tokens": used + 50}
    last = frame("", finish, name=name, usage=usage)
    return b"".join(frame(word, name=name) for word in words) + last + b"data: [DONE]\n\n"


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    found, at = [], 0
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return [*found, data[at:]]


def read(data: bytes) -> tuple[str, set[str], list[str], int]:
    """The text, the ids, the reasons for its end, and the completion tokens of an answer."""
    *frames, mark, rest = data.split(b"\n\n")
    assert (mark, rest) == (b"data: [DONE]", b"")
    chunks = [json.loads(each.removeprefix(b"data: ")) for each in frames]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    (usage,) = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    return (
        "".join(choice["text"] for choice in choices),
        {chunk["id"] for chunk in chunks},
        reasons,
        usage["completion_tokens"],
    )


word = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4) | st.sampled_from(
    [" and", " so", '"', "\\", "\u2028"]
)
words = st.lists(word, min_size=1, max_size=12)
sizes = st.lists(st.integers(1, 120), max_size=12)


@given(said=words, sizes=sizes)
def test_however_it_is_cut_it_is_told_alike(stage: Stage, said: list[str], sizes: list[int]) -> None:
    data = attempt(said, "stop", name="one", used=9)
    told = stage.told(cut(data, sizes))
    assert read(told) == ("".join(said), {"one"}, ["stop"], 50)
    assert told.startswith(b"".join(frame(each) for each in said)), "byte for byte, up to its end"


@given(said=words, more=words, sizes=sizes)
def test_so_it_is_where_the_window_ends_it_on_the_way(
    stage: Stage, said: list[str], more: list[str], sizes: list[int]
) -> None:
    first = attempt(said, "length", name="one", used=WINDOW - 40)
    second = attempt(more, "stop", name="two", used=60)
    told = stage.told(cut(first, sizes), cut(second, sizes))
    assert read(told) == ("".join([*said, *more]), {"one"}, ["stop"], 100)


def test_every_place_at_which_a_frame_can_be_cut(stage: Stage) -> None:
    data = attempt(["It ", 'was "so"', " — é"], "stop", name="one", used=9)
    whole = stage.told([data])
    for at in range(0, len(data), 3):
        assert stage.told([data[:at], data[at:]]) == whole
