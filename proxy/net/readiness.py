"""Readiness of backends: they are asked when somebody wants to know, and believed for a few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from proxy.core.errors import ClientError
from proxy.net.tasks import spawn
from proxy.net.upstream import Upstream

_log = logging.getLogger("spillway")

BELIEVED = 3.0
"""Seconds for which an answer is believed: orchestrators ask every second, and there may be several."""
PATIENCE = 3.0
"""Seconds that a backend has to answer. Who asks here and gives up before that has got the same answer: not ready."""
_AWAY = frozenset({502, 503, 504})
"""Statuses of something in front of the server, or of a server that is still loading; any other is an answer."""


class ReadinessProbe:
    """Asks all backends. What changes is logged once.

    Args:
        upstreams: the backends.
        clock: seconds that never go back.
        patience: seconds that a backend has to answer.
    """

    def __init__(
        self, upstreams: Sequence[Upstream], *, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE
    ) -> None:
        self._upstreams = tuple(upstreams)
        self._clock = clock
        self._patience = patience
        self._kinds: dict[str, str | None] = {}
        self._expires = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def kinds(self) -> dict[str, str | None]:
        """Name of each backend to its kind, None where it does not answer."""
        if self._clock() >= self._expires:
            if self._asking is None:
                self._asking = spawn(self._ask(), name="readiness")
            await asyncio.shield(self._asking)
        return self._kinds

    async def _ask(self) -> None:
        try:
            answers = await asyncio.gather(*map(self._kind, self._upstreams))
            kinds = {upstream.name: kind for upstream, kind in zip(self._upstreams, answers, strict=True)}
            self._log_changes(kinds)
            self._kinds, self._expires = kinds, self._clock() + BELIEVED
        finally:
            self._asking = None

    async def _kind(self, upstream: Upstream) -> str | None:
        try:
            async with asyncio.timeout(self._patience):
                # No body comes back, and a server that knows no HEAD answers as well as one that does.
                response = await upstream.send("HEAD", b"/v1/models", [], b"")
                await response.aclose()
                backend = await upstream.prober.backend()
        except (ClientError, TimeoutError):
            return None
        return None if backend is None or response.status_code in _AWAY else backend.kind

    def _log_changes(self, kinds: dict[str, str | None]) -> None:
        for upstream in self._upstreams:
            before, now = self._kinds.get(upstream.name, "unasked"), kinds[upstream.name]
            if now is None and before is not None:
                _log.warning("backend %s does not answer", upstream.name)
            elif now is not None and before is None:
                _log.info("backend %s answers again", upstream.name)
