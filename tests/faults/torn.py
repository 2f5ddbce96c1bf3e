"""A response that goes wrong on its way: written to the socket as the bytes it is, up to where the fault strikes."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from typing_extensions import override

from tests.fakes.http import Exchange
from tests.fakes.server import reset
from tests.faults.table import RETRY_AFTER, STATUSES, Fault

DRIP = 0.0005
"""Seconds between two bytes."""
GARBAGE = b"\x16\x03\x01\x00garbage\xff\xfe\r\n\r\n"
NONSENSE = b'{"choices": [{"delta": \xff'
_MIDDLE = 12
"""Writes of a stream before its middle."""


def error_of(fault: Fault) -> dict[str, Any]:
    """What the fault says as an error."""
    status = STATUSES.get(fault, 500)
    text = "Model unloaded." if fault is Fault.UNLOADED else f"It went wrong: {fault.value}."
    return {"error": {"message": text, "type": "server_error", "code": status}}


class Torn(Exchange):
    """An exchange whose response may have a fault; without one it is the ordinary one."""

    fault: Fault | None = None
    middle: bool = False
    before: bool = False
    """The fault is in the head."""
    lasting: Callable[[Fault], None]
    """Does what lasts longer than this response."""
    _head: list[bytes]
    _written: int = 0
    _streamed: bool = False
    _over: bool = False

    async def strike_before(self) -> bool:
        """Do what there is to do before the first byte; False: the request is to be answered, wrongly or not."""
        fault = self.fault
        assert fault is not None
        self.before = True
        match fault:
            case Fault.OTHER:
                self.lasting(fault)
                self.fault = None
                return False
            case Fault.UNLOADED | Fault.BUSY_LATER | Fault.BUSY | Fault.BROKEN | Fault.UNAVAILABLE:
                if fault is Fault.UNLOADED:
                    self.lasting(fault)
                self.fault = None
                retry = [("retry-after", RETRY_AFTER[fault])] if fault in RETRY_AFTER else []
                await self.answer(STATUSES.get(fault, 503), error_of(fault), retry)
            case Fault.REFUSED | Fault.RESET | Fault.STALLED:
                await self._drop(fault)
            case Fault.GARBAGE | Fault.HALF:
                await self._close(GARBAGE if fault is Fault.GARBAGE else b"HTTP/1.1 200 OK\r\ncontent-ty")
            case _:
                return False
        return True

    # -- writing, wrongly

    @override
    async def _start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        if self.fault is None:
            await super()._start(status, headers)
            return
        self.request.status = status
        told = [(name, value) for name, value in headers if name.lower() != "content-length"]
        self._streamed = "event-stream" in dict(told).get("content-type", "")
        lines = [f"{name}: {value}\r\n" for name, value in told]
        self._head = [f"HTTP/1.1 {status} OK\r\n{''.join(lines)}connection: close\r\n".encode()]

    @override
    async def _write(self, data: bytes, *, more: bool) -> None:
        fault = self.fault
        if fault is None:
            await super()._write(data, more=more)
            return
        self.request.sent += data
        if not self._written:
            await self._send_head(fault, data)
        due = self._written == (_MIDDLE if self.middle and self._streamed else 0)
        self._written += 1
        if due and not self._over:
            await self._strike(fault, data)
        else:
            self._raw(self._framed(data))
        if not more:
            await self._close(b"0\r\n\r\n" if self._streamed else b"")

    async def _send_head(self, fault: Fault, data: bytes) -> None:
        size = len(data)
        if _says_error(fault):
            size = len(orjson.dumps(error_of(fault)))
        elif fault in {Fault.HALF, Fault.NONSENSE}:
            size = len(self._half(data)) if fault is Fault.HALF else len(NONSENSE)
        if fault is Fault.LENGTH and self.before:
            self._streamed, size = False, 10
        framing = b"transfer-encoding: chunked" if self._streamed else b"content-length: %d" % size
        head = self._head[0] + framing + b"\r\n\r\n"
        if fault is Fault.DRIPPING and self.before:
            await self._drip(head)
        else:
            self._raw(head)

    async def _strike(self, fault: Fault, data: bytes) -> None:
        self._over = True
        half = self._half(data)
        if fault is Fault.DRIPPING:
            await self._drip(self._framed(data))
        elif fault is Fault.NONSENSE:
            self._raw(self._framed(b"data: " + NONSENSE + b"\n\n" + data if self._streamed else NONSENSE))
        elif fault is Fault.HALF:
            await self._close(self._framed(half) + (b"0\r\n\r\n" if self._streamed else b""))
        elif fault is Fault.LENGTH:
            whole = data if self.before else half
            await self._close(b"%x\r\n%b" % (2 * len(data), half) if self._streamed else whole)
        elif fault is Fault.GARBAGE:
            rest = GARBAGE if self._streamed else (GARBAGE * len(data))[: len(data) - len(half)]
            await self._close(self._framed(half) + rest)
        elif _says_error(fault):
            if fault is Fault.UNLOADED:
                self.lasting(fault)
            told = orjson.dumps(error_of(fault))
            end = b"0\r\n\r\n" if self._streamed else b""
            await self._close(self._framed(b"data: " + told + b"\n\n" if self._streamed else told) + end)
        else:
            self._raw(self._framed(half))
            await self._drop(fault)

    async def _drop(self, fault: Fault) -> None:
        """Say nothing more; the connection is left open, or reset."""
        self.request.ended = "cut"
        if fault is not Fault.STALLED:
            if fault is not Fault.RESET:
                self.lasting(fault)
            reset(self._scope["transport"])
        await self._gone()

    async def _close(self, last: bytes) -> None:
        """Write this and close the connection in good order."""
        self._raw(last)
        self.request.ended = "cut"
        self._scope["transport"].close()
        await self._gone()

    async def _gone(self) -> None:
        await self.departure()
        raise asyncio.CancelledError

    def _half(self, data: bytes) -> bytes:
        return data[: max(1, len(data) // (2 if self.middle or self._streamed else 10))]

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._streamed and data else data

    def _raw(self, data: bytes) -> None:
        transport: asyncio.Transport = self._scope["transport"]
        if not transport.is_closing():  # the other side may have gone
            transport.write(data)

    async def _drip(self, data: bytes) -> None:
        for byte in data:
            self._raw(bytes([byte]))
            await asyncio.sleep(DRIP)


def _says_error(fault: Fault) -> bool:
    return fault in STATUSES or fault in {Fault.ERROR, Fault.UNLOADED}
