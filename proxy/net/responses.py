"""Responses of backends: which of them stream, and reading the others whole."""

from __future__ import annotations

import httpx

from proxy.errors import UpstreamTimeout, UpstreamUnavailable

ERROR_BYTES = 256 * 1024
"""An error that is announced as larger is passed on unread."""


def is_event_stream(response: httpx.Response) -> bool:
    """Whether the backend streams an answer, rather than telling an error."""
    kind = str(response.headers.get("content-type", ""))
    return response.status_code == 200 and kind.startswith("text/event-stream")


async def buffered(response: httpx.Response) -> tuple[httpx.Response, bytes]:
    """The same response with its body read, and that body; a very long error stays unread.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: the body broke off.
    """
    length = int(response.headers.get("content-length") or 0)
    if response.status_code >= 400 and length > ERROR_BYTES:
        return response, b""
    body = await body_of(response)
    copy = httpx.Response(response.status_code, headers=response.headers.raw, stream=httpx.ByteStream(body))
    return copy, body


async def body_of(response: httpx.Response) -> bytes:
    """The body as it came, not decoded; the response is closed.

    Raises:
        UpstreamUnavailable, UpstreamTimeout: it broke off.
    """
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        return b"".join([part async for part in response.stream])
    except httpx.TimeoutException:
        raise UpstreamTimeout("The backend fell silent in the middle of the answer.") from None
    except httpx.TransportError as error:
        raise UpstreamUnavailable(f"The backend broke off the answer ({type(error).__name__}).") from None
    finally:
        await response.aclose()
