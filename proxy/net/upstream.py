"""One configured backend: where it is, how to send to it, and what its prober knows."""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection, Iterable

import httpx

from proxy.errors import UpstreamTimeout, UpstreamUnavailable
from proxy.net.credentials import OwnKeys
from proxy.net.headers import Header, upstream_headers
from proxy.net.prober import Prober
from proxy.net.request import build_request


class Upstream:
    """A backend.

    `url` is its root, without user, `/v1` and a slash at its end; `authorization` is sent to it instead of the client's.
    """

    def __init__(
        self,
        *,
        name: str,
        url: str,
        authorization: bytes | None,
        own_keys: OwnKeys,
        transport: httpx.AsyncBaseTransport,
        prober: Prober,
        managed: bool = True,
    ) -> None:
        self.name = name
        self.url = url
        self.prober = prober
        self.managed = managed
        """Whether requests to it are managed, where nothing is said of the model."""
        self._authorization = authorization
        self._own_keys = own_keys
        self._transport = transport
        self._root = httpx.URL(url)
        self._prefix = self._root.raw_path.rstrip(b"/")

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Iterable[Header],
        body: bytes | AsyncIterable[bytes],
        *,
        drop: Collection[bytes] = (),
    ) -> httpx.Response:
        """Send a request and return the response with its body unread; close it when done.

        `target` is path and query as the client sent them; `drop` names headers to leave out.

        Raises:
            UpstreamUnavailable: no connection, or it broke before the response.
            UpstreamTimeout: it said nothing for the read timeout.
        """
        kept = upstream_headers(
            headers, authorization=self._authorization, own_keys=self._own_keys, drop=drop
        )
        target = self._prefix + self._own_keys.without(target)
        request = build_request(method, self._root, kept, body, target=target)
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TimeoutException:
            raise UpstreamTimeout(f"Backend {self.name} at {self.url} did not answer in time.") from None
        except httpx.TransportError as error:
            self.prober.forget()
            raise UpstreamUnavailable(
                f"Backend {self.name} at {self.url} cannot be reached ({type(error).__name__}). "
                "Is it running? `spillway check` shows what answers."
            ) from None
        if response.status_code == 200 and self._authorization is None:
            self._lend_key(kept)
        return response

    def _lend_key(self, headers: Iterable[Header]) -> None:
        given = next((value for name, value in headers if name == b"authorization"), None)
        if given is not None:
            self.prober.lend_key(given.decode("latin-1"))
