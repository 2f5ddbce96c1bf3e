"""Checkpoints in Redis, which several replicas can share.

Keys, all with the prefix `spillway:`:

cp:<scope hash>:<digest>  checkpoint, a hash of body and created; expires `ttl` after its last use
st:<key>                  learned value; expires `ttl` after it was last written
cl:<key>                  claim; expires with its lease
sk:<name>                 secret; never expires

All times are the server's, so replicas with different clocks agree on what has expired. Size is bounded by the TTL and by the server's
`maxmemory`; any eviction policy will do. Needs Redis 6.2 or a compatible server, but not a cluster: the script that looks up a
checkpoint builds the names of the keys that it reads.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from proxy.core.history.checkpoint import Checkpoint
from proxy.store.driver import Found, StoreLimits

PREFIX = "spillway:"
MAX_CONNECTIONS = 32
_CHUNK = 500
"""Most keys read or deleted in one round trip."""
_MAX_MS = 2**53

# Scripts need one round trip only. `pcall`, because a full server, or a read-only replica, refuses to record the use of a
# checkpoint, and the lookup should succeed anyway.
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


class RedisDriver:
    """See `Driver`; connects when first used, and again if needed."""

    name, shared = "redis", True

    def __init__(self, url: str, limits: StoreLimits) -> None:
        """Parse the address; the server may start later, since nothing is connected yet.

        Raises:
            ValueError: the address is malformed.
        """
        try:
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
        except (ValueError, TypeError):  # its text may quote the password
            raise ValueError("malformed; write redis://[[user]:password@]host[:port][/database]") from None
        self._client = aioredis.Redis.from_pool(pool)
        self._ttl = _milliseconds(limits.ttl)

    async def find(self, scope: str, digests: Sequence[bytes]) -> Found:
        """See `Driver.find`."""
        joined = "".join(digest.hex() for digest in digests)
        found = await self._call("EVAL", _FIND, 1, _name(scope, b""), joined, self._ttl, 2 * len(digests[0]))
        return None if found is None else (found[0], found[1])

    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        """See `Driver.put`."""
        name = _name(checkpoint.scope, checkpoint.digest)
        await self._call("EVAL", _PUT, 1, name, body, repr(checkpoint.created), self._ttl)

    async def drop(self, scope: str, digest: bytes) -> None:
        """See `Driver.drop`."""
        await self._call("UNLINK", _name(scope, digest))

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """See `Driver.value`."""
        name = f"{PREFIX}{'sk' if once else 'st'}:{key}"
        if new is not None:
            await self._call("SET", name, new, *(["NX"] if once else ["PX", self._ttl]))
        found: bytes | None = await self._call("GET", name)
        return found

    async def lease(self, key: str, seconds: float) -> bool:
        """See `Driver.lease`."""
        # A lease is released by a write too, one that expires at once: a full server accepts DEL, and then seems to accept
        # writes again.
        only_new = ["NX"] if seconds else []
        return bool(await self._call("SET", f"{PREFIX}cl:{key}", b"", *only_new, "PX", _milliseconds(seconds)))

    async def export(self) -> list[bytes]:
        """See `Driver.export`."""
        bodies = await self._fields("body")
        return [body for body in bodies.values() if isinstance(body, bytes)]

    async def purge(self, older_than: float | None) -> int:
        """See `Driver.purge`."""
        old = [
            name
            for name, created in (await self._fields("created")).items()
            if older_than is None or (isinstance(created, bytes) and float(created) < older_than)
        ]
        portions = [old[at : at + _CHUNK] for at in range(0, len(old), _CHUNK)]
        return sum([await self._call("UNLINK", *portion) for portion in portions])

    async def close(self) -> None:
        """See `Driver.close`."""
        await self._client.aclose()

    async def _call(self, *command: str | bytes | float) -> Any:
        return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's

    async def _fields(self, field: str) -> dict[bytes, Any]:
        """Return one field of each checkpoint by its key; an error in place of a field that cannot be read."""
        found: dict[bytes, Any] = {}
        cursor: Any = None
        while cursor != 0:
            cursor, names = await self._call("SCAN", cursor or 0, "MATCH", f"{PREFIX}cp:*", "COUNT", _CHUNK)
            async with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hget(name, field)
                found |= zip(names, await pipe.execute(raise_on_error=False), strict=True)
        return found


def _name(scope: str, digest: bytes) -> str:
    """Return the key of a checkpoint, with the scope hashed, since a scope may have any length and any characters."""
    return f"{PREFIX}cp:{blake2b(scope.encode(), digest_size=16).hexdigest()}:{digest.hex()}"


def _milliseconds(seconds: float) -> int:
    return max(1, int(min(seconds * 1000, _MAX_MS)))
