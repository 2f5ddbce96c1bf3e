"""Records in Redis, which several replicas share. Keys, all of them below `spillway:`.

cp:<scope hash>:<digest>  checkpoint, a hash of body and created; expires `ttl` after its last use
st:<key>                  learned value; expires `ttl` after it was last written
cl:<key>                  owner of a claim; expires when the claim does
sk:<name>                 secret; never expires

All times are the server's: replicas whose clocks differ agree on what has expired. Size is bounded by the TTL and by the
server's `maxmemory`; any eviction policy will do. Needs Redis 6.2 or a server that speaks the same; no cluster, because
the script that looks up a checkpoint makes the keys that it reads.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, DataError, ResponseError  # noqa: A004 - redis-py's own

from proxy.store.driver import Driver, Fault, StoredRecord, StoreLimits, refusal

PREFIX = "spillway:"
MAX_CONNECTIONS = 32
_CHUNK = 500
"""Keys that a scan looks at in one round trip."""
_MAX_MS = 2**53
_CODE = re.compile(r"(?:.* caused error: )?([A-Z]{3,})\b")

# Scripts, because one round trip then does. A server that is full, or a replica that may not write, does not take the
# note of a use, and answers all the same.
_FIND = """
local width = tonumber(ARGV[3])
for at = 1, #ARGV[1], width do
  local name = KEYS[1] .. string.sub(ARGV[1], at, at + width - 1)
  local body = redis.pcall('HGET', name, 'body')
  if type(body) == 'string' then
    redis.pcall('PEXPIRE', name, ARGV[2])
    return {(at - 1) / width, body}
  end
end
return false
"""
_PUT = """
redis.call('HSET', KEYS[1], 'body', ARGV[1], 'created', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
# A server that was started anew has forgotten the claim: a renewal claims it again.
_LEASE = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 1
"""


class RecordRefusedError(Exception):
    """The server takes writes, and not this one."""


def open_redis(url: str, limits: StoreLimits) -> Driver:
    """Open `redis://` or `rediss://`. Nothing is connected yet: the server may start later.

    Raises:
        SettingError: the address is malformed.
    """
    try:
        return RedisDriver(url, limits)
    except (ValueError, TypeError):  # redis-py's text may quote the password
        raise refusal(url, "malformed; write redis://[[user]:password@]host[:port][/database]") from None


class RedisDriver:
    """See `Driver`; connects when first used, and again when it has to."""

    name = "redis"

    def __init__(self, url: str, limits: StoreLimits) -> None:
        """Read the address.

        Raises:
            ValueError, TypeError: it is wrong; the text may quote it.
        """
        if not re.fullmatch(r"/?\d*", urlsplit(url).path):
            msg = "the path is the number of a database"
            raise ValueError(msg)
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            socket_connect_timeout=limits.timeout,
            socket_timeout=None,  # the caller's own time limit ends a command
            retry=Retry(NoBackoff(), 1),  # once: the server was restarted and this connection did not know
            protocol=2,
        )
        pool.connection_kwargs["decode_responses"] = False
        pool.make_connection()  # type: ignore[no-untyped-call]  # connects nothing, but refuses options that do not exist
        self._client = aioredis.Redis.from_pool(pool)
        self._ttl = _milliseconds(limits.ttl)

    async def find(self, scope: str, digests: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """See `Driver.find`."""
        joined = "".join(digest.hex() for digest in digests)
        found = await self._call("EVAL", _FIND, 1, record_name(scope, b""), joined, self._ttl, 2 * len(digests[0]))
        return None if found is None else (digests[found[0]], found[1])

    async def put(self, record: StoredRecord) -> None:
        """See `Driver.put`."""
        name = record_name(record.scope, record.digest)
        try:
            await self._call("EVAL", _PUT, 1, name, record.body, repr(record.created), self._ttl)
        except ResponseError as error:
            await self.value("checked", b"")
            raise RecordRefusedError from error  # a small one is taken: this one is too large, say

    async def drop(self, scope: str, digest: bytes) -> None:
        """See `Driver.drop`."""
        await self._call("UNLINK", record_name(scope, digest))

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Driver.value`."""
        name = f"{PREFIX}{'sk' if once else 'st'}:{key}"
        if new is not None:
            await self._call("SET", name, new, *(["NX"] if once else ["PX", self._ttl]))
        found = await self._call("GET", name)
        return bytes(found) if found is not None else None

    async def lease(self, key: str, owner: str, seconds: float) -> bool:
        """See `Driver.lease`."""
        milliseconds = _milliseconds(seconds) if seconds else 0
        return bool(await self._call("EVAL", _LEASE, 1, f"{PREFIX}cl:{key}", owner, milliseconds))

    async def export(self) -> list[bytes]:
        """See `Driver.export`."""
        found = dict[bytes, Any]()
        async for names in self._names():
            found |= zip(names, await self._fields(names, "body"), strict=True)
        return [body for body in found.values() if isinstance(body, bytes)]

    async def purge(self, older_than: float | None) -> int:
        """See `Driver.purge`."""
        count = 0
        async for names in self._names():
            times = await self._fields(names, "created")
            old = [
                name
                for name, created in zip(names, times, strict=True)
                if older_than is None or (isinstance(created, bytes) and float(created) < older_than)
            ]
            count += await self._call("UNLINK", *old) if old else 0
        return count

    async def close(self) -> None:
        """See `Driver.close`."""
        await self._client.aclose()

    def explain(self, error: Exception) -> tuple[Fault, str]:
        """See `Driver.explain`. A reply's text may quote the command, or anything at all, so only its code is used.

        An answer to a write says that the server is out of memory, or read-only, or that it is not permitted. The exception
        is a key that holds something else than Spillway put there.
        """
        kind = type(error).__name__
        if isinstance(error, (DataError, RecordRefusedError)):
            return Fault.RECORD, kind
        if isinstance(error, ResponseError):
            code = _CODE.match(str(error))
            fault = Fault.RECORD if "WRONGTYPE" in str(error) else Fault.WRITES
            return fault, f"{kind} {code[1]}" if code else kind
        return Fault.REACH, str(error).rstrip(".") if isinstance(error, ConnectionError) else kind

    async def _call(self, *command: str | bytes | float) -> Any:
        return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's

    async def _names(self) -> AsyncIterator[list[bytes]]:
        """Yield the names of records, in portions; a scan may give one twice."""
        cursor = 0
        while True:
            cursor, names = await self._call("SCAN", cursor, "MATCH", f"{PREFIX}cp:*", "COUNT", _CHUNK)
            if names:
                yield names
            if not int(cursor):
                return

    async def _fields(self, names: Sequence[bytes], field: str) -> list[Any]:
        """Return one field of each; an error in place of one that can't be read."""
        async with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(name, field)
            return list(await pipe.execute(raise_on_error=False))


def record_name(scope: str, digest: bytes) -> str:
    """Return the key of a record; a hash of the scope, which may be of any length and hold what it likes."""
    return f"{PREFIX}cp:{blake2b(scope.encode(), digest_size=16).hexdigest()}:{digest.hex()}"


def _milliseconds(seconds: float) -> int:
    return max(1, int(min(seconds * 1000, _MAX_MS)))
