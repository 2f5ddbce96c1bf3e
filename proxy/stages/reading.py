"""From the bytes of a body to a request, within the bounds on what is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from proxy.errors import BadRequest
from proxy.exchange import Exchange
from proxy.net.apart import apart
from proxy.neutral.request import Message, Request
from proxy.settings import Settings
from proxy.wire.jsontext import holds_more, may_hold_more

LARGE = 512 * 1024
"""Bytes from which a body is not read on the loop."""
_SMALL = 32 * 1024
"""Bytes up to which it is, whatever is in it."""
_MANY = 5_000
"""The same for JSON values: most dialects make each of them anew, which takes one or two microseconds."""
MOST_VALUES = 250_000
"""JSON values in a body, lists and objects counted twice: they are read at once, five million in a second."""
_LEAST_PART = 3
"""Bytes that a message or a part takes at least."""


async def read(
    exchange: Exchange, wire: bytes, reads: Callable[[bytes, bytes], Request], settings: Settings
) -> Request:
    """The request in the body of an exchange. `reads`: out of the body decoded, and as it came.

    Raises:
        BadRequest: it is malformed, or holds more values than are taken.
        BodyTooLarge: it is larger than is taken when it is decoded.
        Overloaded: too much is held already.
    """
    body = await exchange.decoded(wire, settings.max_body)
    return await apart(True, _read, body, wire, reads) if _is_much(body) else reads(body, wire)


def _is_much(body: bytes) -> bool:
    return len(body) > _SMALL and (len(body) > LARGE or may_hold_more(body, _MANY))


def _read(body: bytes, wire: bytes, reads: Callable[[bytes, bytes], Request]) -> Request:
    if len(body) > LARGE and holds_more(body, MOST_VALUES):
        raise BadRequest(
            f"The request body holds more than {MOST_VALUES} JSON values. Send a shorter history, or fewer tools."
        )
    return reads(body, wire)


def check_bounds(request: Request, settings: Settings) -> None:
    """See that a request has no more messages and parts than are taken.

    Raises:
        BadRequest: it has.
    """
    size = len(request.raw) if request.raw is not None else None
    if size is not None and size < _LEAST_PART * min(settings.max_messages, settings.max_parts):
        return
    messages = request.messages
    if len(messages) > settings.max_messages:
        raise BadRequest(
            f"The request has {len(messages)} messages; at most {settings.max_messages} are taken "
            "(SPILLWAY_MAX_MESSAGES). Leave out the oldest ones.",
            param="messages",
            code="array_above_max_length",
        )
    parts = _parts(messages) + sum(_length(request.body.get(form)) for form in ("tools", "functions"))
    if parts > settings.max_parts:
        raise BadRequest(
            f"The request has {parts} parts, counting parts of contents, tool calls and tools; at most "
            f"{settings.max_parts} are taken (SPILLWAY_MAX_PARTS). Join texts, or leave out the oldest messages.",
            param="messages",
            code="array_above_max_length",
        )


def _parts(messages: Sequence[Message]) -> int:
    contents = sum(len(message["content"]) for message in messages if type(message.get("content")) is list)
    return contents + sum(_length(message["tool_calls"]) for message in messages if "tool_calls" in message)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0
