"""Sending chats to backends: in chat completions, or in the form that the backend's kind takes them in.

Everything else knows chat completions only: what another form is spoken in begins and ends here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
from typing_extensions import override

from proxy.core.jsontext import HEAVY, dumps, loads
from proxy.core.sse import FrameTooLong
from proxy.dialects.bodies import dict_in
from proxy.dialects.chat import UPSTREAM_PATH
from proxy.dialects.ollama_upstream import UPSTREAM_PATH as OLLAMA_PATH
from proxy.dialects.ollama_upstream import LineReader, error_body, ollama_body
from proxy.exchange import unique
from proxy.net.bodies import body_of
from proxy.net.headers import AS_JSON, OF_ENCODING, Headers, response_headers
from proxy.net.tasks import offload_if
from proxy.routing import OLLAMA, Route
from proxy.shaping.repair import without_system

_OF_FORM = (b"content-length", b"content-type")
_LARGEST = 64 * 2**20
"""Bytes of an answer that is not streamed."""


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A body of chat completions, and other forms of the same where the client sent one."""

    content: bytes
    wire: bytes | None = None
    """With the client's content-encoding."""
    native: bytes | None = None
    """As a request of Ollama's `/api/chat`."""


async def send_chat(
    route: Route, headers: Headers, body: ChatBody, *, query: bytes = b"", ahead: bool = False
) -> httpx.Response:
    """Send a request for a chat, and return a response of chat completions with its body unread: close it when done.

    For what is sent `ahead` of time nobody waits.

    Raises:
        BadRequest: the backend has no form for what is asked.
        UpstreamUnavailable, UpstreamInvalid, UpstreamTimeout: see `Upstream.send`.
    """
    backend, rules = route.prober.known_backend, route.known.current().template_rules
    if rules is not None and "no_system" in rules.value:
        body = ChatBody(await offload_if(len(body.content) > 8 * HEAVY, _without_system, body.content))
    if backend is None or backend.chat_dialect != OLLAMA:
        drop: frozenset[bytes] = OF_ENCODING if body.wire is None else frozenset()
        target, content = UPSTREAM_PATH + (b"?" + query if query else b""), body.wire or body.content
        return await route.upstream.send("POST", target, headers, content, drop=drop, plain=True, ahead=ahead)
    window = route.known.window_request.granted
    content, usage = await offload_if(len(body.content) > 8 * HEAVY, _translate, body.content, window)
    response = await route.upstream.send(
        "POST", OLLAMA_PATH, headers, (not window and body.native) or content, drop=OF_ENCODING, plain=True, ahead=ahead
    )
    lines, kind, stream = LineReader(f"chatcmpl-{unique()}", usage=usage), AS_JSON, response.stream
    if response.status_code != 200:
        stream = httpx.ByteStream(error_body(response.status_code, await body_of(response, _LARGEST)))
    elif response.headers.get("content-type", "").startswith("application/x-ndjson"):
        assert isinstance(stream, httpx.AsyncByteStream)
        kind, stream = (b"content-type", b"text/event-stream"), _Frames(stream, lines)
    else:
        stream = httpx.ByteStream(lines.completion(await body_of(response, _LARGEST)))
    return httpx.Response(
        response.status_code, headers=[*response_headers(response.headers.raw, drop=_OF_FORM), kind], stream=stream
    )


class _Frames(httpx.AsyncByteStream):
    """The lines of a response as frames."""

    def __init__(self, stream: httpx.AsyncByteStream, lines: LineReader) -> None:
        self._stream, self._lines = stream, lines

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                yield self._lines.feed(data)
            yield self._lines.feed(b"\n")  # the last line may lack its end
        except FrameTooLong as error:
            raise httpx.ReadError(f"it holds {error}") from None

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


def _without_system(body: bytes) -> bytes:
    parsed = loads(body)
    return dumps(parsed | {"messages": without_system(parsed["messages"])})


def _translate(body: bytes, window: int | None) -> tuple[bytes, bool]:
    """The body as a request of Ollama's, for a model that is loaded with this window; whether a stream is to end with usage.

    Another `num_ctx` than that of the last request would have it loaded again.
    """
    parsed = loads(body)
    if window is not None:
        parsed["options"] = {**dict_in(parsed, "options"), "num_ctx": window}
    options = parsed.get("stream_options")
    return dumps(ollama_body(parsed)), isinstance(options, dict) and options.get("include_usage") is True
