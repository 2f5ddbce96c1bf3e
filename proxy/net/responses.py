"""Responses of backends: which of them stream, and reading the others whole."""

from __future__ import annotations

import httpx

from proxy.errors import UpstreamTimeout, UpstreamUnavailable

ERROR_BYTES = 256 * 1024
"""An error is looked at up to here."""


def is_event_stream(response: httpx.Response) -> bool:
    """Whether the backend streams an answer, rather than telling an error."""
    kind = str(response.headers.get("content-type", ""))
    return response.status_code == 200 and kind.startswith("text/event-stream")


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
