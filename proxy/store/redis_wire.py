"""The few things the Redis store asks of redis-py, with its settings in one place."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, DataError, ResponseError  # noqa: A004 - redis-py's own

from proxy.store.breaker import Fault

Command: TypeAlias = tuple[str | bytes | int | float, ...]

PREFIX = "spillway:"
MAX_CONNECTIONS = 32
_SCAN_COUNT = 1000
_CODE = re.compile(r"(?:.* caused error: )?([A-Z]{3,})\b")


def index_name(scope: str) -> str:
    """Key of a scope's sorted set; a hash, because a scope may be of any length and holds what it likes."""
    return f"{PREFIX}ix:{blake2b(scope.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def value_name(index: str, digest: bytes) -> str:
    """Key of a checkpoint."""
    return f"{PREFIX}cp:{index.removeprefix(f'{PREFIX}ix:')}:{digest.hex()}"


def index_of(value: bytes) -> tuple[str, bytes] | None:
    """The sorted set that names a checkpoint's key, and the member of it that does; None for what is no such key."""
    try:
        _, _, scope, digest = value.decode().split(":")
        return f"{PREFIX}ix:{scope}", bytes.fromhex(digest)
    except ValueError:
        return None


class RecordRefused(Exception):
    """The server takes writes, and not this one."""


class Wire:
    """Sends commands and raises what redis-py raises; connects when first used, and again when it has to."""

    def __init__(self, url: str, *, connect_timeout: float) -> None:
        """Read the address; nothing is connected yet.

        Raises:
            ValueError, TypeError: the address is wrong; the text may quote it.
        """
        if not re.fullmatch(r"/?\d*", urlsplit(url).path):
            msg = "the path is the number of a database"
            raise ValueError(msg)
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            socket_connect_timeout=connect_timeout,
            socket_timeout=None,  # the caller's own time limit ends a command
            retry=Retry(NoBackoff(), 1),  # once: the server was restarted and this connection did not know
            protocol=2,
        )
        pool.connection_kwargs["decode_responses"] = False
        pool.make_connection()  # type: ignore[no-untyped-call]  # connects nothing, but refuses options that do not exist
        self._client = aioredis.Redis.from_pool(pool)

    async def call(self, *command: str | bytes | float) -> Any:
        """Send one command."""
        return await self._client.execute_command(*_encoded(command))  # type: ignore[no-untyped-call]  # redis-py's

    async def batch(self, commands: Sequence[Command], *, atomic: bool = False) -> list[Any]:
        """Send several in one round trip; a reply that is an error is returned, not raised, unless `atomic`."""
        async with self._client.pipeline(transaction=atomic) as pipe:
            for command in commands:
                pipe.execute_command(*_encoded(command))
            return list(await pipe.execute(raise_on_error=atomic))

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Keys that match, in portions; one may come twice."""
        cursor: Any = 0
        while True:
            cursor, keys = await self.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            if keys:
                yield keys
            if not int(cursor):
                return

    async def try_write(self) -> None:
        """Write next to nothing: raises what keeps the server from taking any write."""
        await self.call("SET", f"{PREFIX}checked", b"", "PX", 1000)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def describe(error: Exception) -> str:
    """A few words for the log. A reply's text may quote the command, or anything at all, so only its code is used."""
    if isinstance(error, ResponseError):
        code = _CODE.match(str(error))
        return f"{type(error).__name__} {code[1]}" if code else type(error).__name__
    if isinstance(error, ConnectionError) and str(error):
        return str(error).rstrip(".")
    return type(error).__name__


def judge(error: Exception) -> Fault:
    """What an error says of the server.

    One that it answers a write with says: out of memory, read-only, not permitted. The exception is a key that
    holds something else than Spillway put there.
    """
    if isinstance(error, (DataError, RecordRefused)) or (
        isinstance(error, ResponseError) and "WRONGTYPE" in str(error)
    ):
        return Fault.RECORD
    return Fault.WRITES if isinstance(error, ResponseError) else Fault.REACH


def _encoded(command: Command) -> Command:
    """The command with its texts as bytes; a lone surrogate, which UTF-8 does not have, is no reason to fail."""
    return tuple(each.encode("utf-8", "surrogatepass") if isinstance(each, str) else each for each in command)
