"""Checkpoints in Redis, for several replicas.

Keys, all under `spillway:` (`<s>` is a hash of the scope, `<d>` a digest in hex):

    cp:<s>:<d>   hash: body, created              expires `ttl` after the last use
    ix:<s>       sorted set: digest by last use   one look-up finds the longest prefix, or that there is none
    st:<key>     learned value                    expires `ttl` after it was last written or read
    cl:<key>     claim: the token of its owner    expires when the claim does

Size is bounded by the TTL and by the server's `maxmemory`; any eviction policy will do. Needs Redis 6.2
(`GETEX`, `ZADD GT`) or a server that speaks the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from proxy.history.chain import DIGEST_BYTES
from proxy.history.checkpoint import Checkpoint, CheckpointStore, StoreStats
from proxy.store.breaker import Guard
from proxy.store.claims import POLL, LocalClaims
from proxy.store.codec import decode, encode_or_drop
from proxy.store.opening import BULK_TIMEOUT, CLOSE_TIMEOUT, StoreLimits, refusal
from proxy.store.redis_bulk import export_all, purge_all, stats_all
from proxy.store.redis_wire import PREFIX, Wire, describe, index_name, refuses, value_name

T = TypeVar("T")

_MOST_MS = 2**53
# A script, because redis-py would need milliseconds to send hundreds of digests and read as many scores.
_FIRST = f"""
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
for at = 0, #ARGV[1] / {DIGEST_BYTES} - 1 do
  local used = redis.call('ZSCORE', KEYS[1], string.sub(ARGV[1], at * {DIGEST_BYTES} + 1, (at + 1) * {DIGEST_BYTES}))
  if used and tonumber(used) > tonumber(ARGV[2]) then return at end
end
return -1
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def open_redis(url: str, limits: StoreLimits) -> CheckpointStore:
    """Open `redis://` or `rediss://`. Nothing is connected yet: the server may start later.

    Raises:
        SettingError: the address is malformed.
    """
    try:
        wire = Wire(url, connect_timeout=limits.timeout)
    except (ValueError, TypeError):  # redis-py's text may quote the password
        raise refusal(url, "malformed; write redis://[[user]:password@]host[:port][/database]") from None
    return RedisStore(wire, limits)


class RedisStore:
    """See `CheckpointStore`. A put returns when the server has taken it, or when its time is up.

    Claims are shared by all replicas while the server answers; when it does not, they hold within this
    process, which then may make what another replica makes too.
    """

    def __init__(self, wire: Wire, limits: StoreLimits) -> None:
        self._wire = wire
        self._clock = limits.clock
        self._ttl = limits.ttl
        self._max_bytes = limits.max_bytes
        self._timeout = limits.timeout
        self._guard = Guard("store redis", describe=describe, refuses=refuses)
        self._claims = LocalClaims(limits.clock)
        self._tokens: dict[str, str] = {}

    @property
    def healthy(self) -> bool:
        """See `StoreAdmin.healthy`."""
        return self._guard.healthy

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`. A miss is one round trip, a hit two."""
        if not digests:
            return None
        return await self._ask(lambda: self._find(index_name(scope), scope, digests), None)

    async def put(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoints.put`."""
        body = encode_or_drop(checkpoint, self._max_bytes)
        if body is not None:
            await self._ask(lambda: self._put(checkpoint, body), None, write=True)

    async def get_state(self, key: str) -> bytes | None:
        """See `LearnedState.get_state`."""
        command = ("GETEX", f"{PREFIX}st:{key}", "PX", _ms(self._ttl))
        value = await self._ask(lambda: self._wire.call(*command), None)
        return value if isinstance(value, bytes) else None

    async def put_state(self, key: str, value: bytes) -> None:
        """See `LearnedState.put_state`."""
        command = ("SET", f"{PREFIX}st:{key}", bytes(value), "PX", _ms(self._ttl))
        await self._ask(lambda: self._wire.call(*command), None, write=True)

    async def claim(self, key: str, seconds: float) -> bool:
        """See `Claims.claim`."""
        if not await self._claims.claim(key, seconds):
            return False
        token = self._tokens[key] = secrets.token_hex(16)
        command = ("SET", f"{PREFIX}cl:{key}", token, "NX", "PX", _ms(seconds))
        mine = False
        try:
            mine = bool(await self._ask(lambda: self._wire.call(*command), True, write=True))
        finally:
            if not mine:  # another replica has it, or this request was cancelled
                self._tokens.pop(key, None)
                await self._claims.release(key)
        return mine

    async def release(self, key: str) -> None:
        """See `Claims.release`. Never frees what another replica has claimed since."""
        token = self._tokens.pop(key, None)
        try:
            if token is not None:
                command = ("EVAL", _RELEASE, 1, f"{PREFIX}cl:{key}", token)
                await self._ask(lambda: self._wire.call(*command), None, write=True)
        finally:
            await self._claims.release(key)

    async def wait(self, key: str, seconds: float) -> None:
        """See `Claims.wait`. Ends at once when the server does not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._claims.wait(key, seconds)
                while await self._claimed(key):  # noqa: ASYNC110 - the event happens in another process
                    await asyncio.sleep(POLL)

    async def stats(self) -> StoreStats:
        """See `StoreAdmin.stats`."""
        return await self._ask(
            lambda: stats_all(self._wire, self._used_after()), StoreStats(0, 0, None), seconds=BULK_TIMEOUT
        )

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `StoreAdmin.purge`."""
        return await self._ask(lambda: purge_all(self._wire, older_than), 0, seconds=BULK_TIMEOUT, write=True)

    async def export(self) -> list[Checkpoint]:
        """See `StoreAdmin.export`."""
        return await self._ask(lambda: export_all(self._wire, self._used_after()), [], seconds=BULK_TIMEOUT)

    async def close(self) -> None:
        """See `StoreAdmin.close`."""
        await self._ask(self._wire.close, None, seconds=CLOSE_TIMEOUT)
        self._guard.close()

    async def _claimed(self, key: str) -> bool:
        return bool(await self._ask(lambda: self._wire.call("EXISTS", f"{PREFIX}cl:{key}"), 0))

    def _used_after(self) -> float:
        return self._clock() - self._ttl

    async def _ask(
        self,
        operation: Callable[[], Awaitable[T]],
        otherwise: T,
        *,
        seconds: float = 0.0,
        write: bool = False,
    ) -> T:
        seconds = seconds or self._timeout

        async def limited() -> T:
            async with asyncio.timeout(seconds):
                return await operation()

        return await self._guard.run(limited, otherwise, seconds=seconds, write=write)

    async def _find(self, index: str, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        used_after = self._used_after()
        while digests:
            at = int(await self._wire.call("EVAL", _FIRST, 1, index, b"".join(digests), used_after))
            if at < 0:
                return None
            if (checkpoint := await self._read(index, scope, digests[at])) is not None:
                return checkpoint
            digests = digests[at + 1 :]
        return None

    async def _read(self, index: str, scope: str, digest: bytes) -> Checkpoint | None:
        name, ttl = value_name(index, digest), _ms(self._ttl)
        body, *_ = await self._wire.batch(
            [
                ("HGET", name, "body"),
                # A use; whether the server takes the note (it may be full) does not matter to the reader.
                ("PEXPIRE", name, ttl),
                ("ZADD", index, "XX", "GT", self._clock(), digest),
                ("PEXPIRE", index, ttl),
            ]
        )
        if isinstance(body, Exception):
            raise body
        if body is None:  # evicted
            await self._wire.batch([("ZREM", index, digest)])
            return None
        return decode(body, scope, digest)

    async def _put(self, checkpoint: Checkpoint, body: bytes) -> None:
        index, ttl, now = index_name(checkpoint.scope), _ms(self._ttl), self._clock()
        name = value_name(index, checkpoint.digest)
        await self._wire.batch(
            [
                ("HSET", name, "body", body, "created", repr(checkpoint.created)),
                ("PEXPIRE", name, ttl),
                ("ZADD", index, now, checkpoint.digest),
                ("ZREMRANGEBYSCORE", index, "-inf", now - self._ttl),
                ("PEXPIRE", index, ttl),
            ],
            atomic=True,
        )


def _ms(seconds: float) -> int:
    return max(1, int(min(seconds * 1000, _MOST_MS)))
