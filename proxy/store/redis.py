"""Checkpoints in Redis, for several replicas.

Keys, all under `spillway:` (`<s>` is a hash of the scope, `<d>` a digest in hex):

    cp:<s>:<d>   hash: body, created              expires `ttl` after the last use
    ix:<s>       sorted set: digest by last use   tells the longest prefix, or that there is none
    st:<key>     learned value                    expires `ttl` after it was last written or read
    cl:<key>     claim: the token of its owner    expires when the claim does
    sk:<name>    secret                           never expires

All times are the server's: replicas whose clocks differ, or jump, agree on what has expired. Size is bounded by the
TTL and by the server's `maxmemory`; any eviction policy will do. Needs Redis 6.2 or a server that speaks the same; no
cluster, because the script that looks up a checkpoint reads the keys that it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from redis.exceptions import RedisError

from proxy.history.chain import DIGEST_BYTES
from proxy.history.checkpoint import Checkpoint, CheckpointStore, StoreStats
from proxy.store.breaker import StoreGuard
from proxy.store.claims import POLL, LocalClaims
from proxy.store.codec import decode, encode_or_drop
from proxy.store.memory import Encoded, Shelf
from proxy.store.opening import BULK_TIMEOUT, CLOSE_TIMEOUT, StoreLimits, refusal
from proxy.store.redis_bulk import export_all, purge_all, stats_all
from proxy.store.redis_wire import PREFIX, RecordRefused, Wire, describe, index_name, judge, value_name

T = TypeVar("T")

_MOST_MS = 2**53
# Scripts, because one round trip then does, and the server's own clock counts. A use is noted where the server takes
# the note: a full one, or a replica that may not write, answers all the same.
_NOW = "local time = redis.call('TIME') local now = time[1] + time[2] / 1000000\n"
_FIND = f"""{_NOW}
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
for at = 0, #ARGV[1] / {DIGEST_BYTES} - 1 do
  local digest = string.sub(ARGV[1], at * {DIGEST_BYTES} + 1, (at + 1) * {DIGEST_BYTES})
  if redis.call('ZSCORE', KEYS[1], digest) then
    local name = ARGV[2] .. string.gsub(digest, '.', function (c) return string.format('%02x', string.byte(c)) end)
    local body = redis.pcall('HGET', name, 'body')
    if type(body) == 'string' then
      redis.pcall('PEXPIRE', name, ARGV[3])
      redis.pcall('ZADD', KEYS[1], 'XX', now, digest)
      redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
      return {{at, body}}
    elseif not body then
      redis.pcall('ZREM', KEYS[1], digest)
    end
  end
end
return false
"""
_PUT = f"""{_NOW}
redis.call('HSET', KEYS[2], 'body', ARGV[1], 'created', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('ZADD', KEYS[1], now, ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[4] / 1000)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# A server that was started anew has forgotten the claim: then it is claimed again.
_RENEW = """
local owner = redis.call('GET', KEYS[1])
if not owner or owner == ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
"""


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

    What the server does not take is kept in memory, and put again, one with each `find`, once it takes it.

    Claims are shared by all replicas while the server answers; when it does not, they hold within this
    process, which then may make what another replica makes too.
    """

    def __init__(self, wire: Wire, limits: StoreLimits) -> None:
        self._wire = wire
        self._ttl = limits.ttl
        self._max_bytes = limits.max_bytes
        self._timeout = limits.timeout
        self._guard = StoreGuard("store redis", describe=describe, judge=judge)
        self._kept = Shelf(limits.shelter())
        self._claims = LocalClaims(limits.steady)
        self._tokens: dict[str, str] = {}
        self._unread = 0

    @property
    def healthy(self) -> bool:
        """See `StoreAdmin.healthy`."""
        return self._guard.healthy

    @property
    def skipped(self) -> int:
        """See `StoreAdmin.skipped`."""
        return self._guard.skipped + self._unread

    async def check(self) -> str:
        """See `StoreAdmin.check`. Writes a value: only that shows whether the server takes any."""
        await self._ask(self._wire.try_write, None, write=True)
        return self._guard.state

    async def find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        """See `Checkpoints.find`. One round trip."""
        if not digests:
            return None
        kept = self._kept.find(scope, digests) if self._kept else None
        found = await self._ask(lambda: self._find(scope, digests), None)
        if self._kept and self._guard.ready_to_write:
            await self._store(next(iter(self._kept)))
        return kept if found is None or (kept is not None and kept.covered > found.covered) else found

    async def put(self, checkpoint: Checkpoint) -> bool:
        """See `Checkpoints.put`."""
        body = encode_or_drop(checkpoint, self._max_bytes)
        if body is not None:
            await self._store(Encoded((checkpoint.scope, checkpoint.digest), body, checkpoint.created))
        return body is not None

    async def drop(self, scope: str, digest: bytes) -> bool:
        """See `Checkpoints.drop`."""
        self._kept.drop((scope, digest))
        index = index_name(scope)
        commands = [("UNLINK", value_name(index, digest)), ("ZREM", index, digest)]
        dropped = await self._ask(lambda: self._wire.batch(commands, atomic=True), None, write=True)
        return dropped is not None

    async def secret(self, name: str, fresh: bytes) -> bytes | None:
        """See `Secrets.secret`. One that is there can be told though the server takes no writes."""
        key = f"{PREFIX}sk:{name}"
        known = await self._ask(lambda: self._wire.call("GET", key), None)
        if known is None:
            await self._ask(lambda: self._wire.call("SET", key, bytes(fresh), "NX"), None, write=True)
            known = await self._ask(lambda: self._wire.call("GET", key), None)
        return known if isinstance(known, bytes) else None

    async def get_state(self, key: str) -> bytes | None:
        """See `LearnedState.get_state`."""
        value = await self._ask(lambda: self._get_state(f"{PREFIX}st:{key}"), None)
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

    async def renew(self, key: str, seconds: float) -> None:
        """See `Claims.renew`."""
        await self._claims.renew(key, seconds)
        if (token := self._tokens.get(key)) is not None:
            command = ("EVAL", _RENEW, 1, f"{PREFIX}cl:{key}", token, _ms(seconds))
            await self._ask(lambda: self._wire.call(*command), None, write=True)

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
        return await self._ask(lambda: stats_all(self._wire), StoreStats(0, 0, None), seconds=BULK_TIMEOUT)

    async def purge(self, *, older_than: float | None = None) -> int:
        """See `StoreAdmin.purge`."""
        if older_than is None:
            self._kept.clear()
        return await self._ask(lambda: purge_all(self._wire, older_than), 0, seconds=BULK_TIMEOUT, write=True)

    async def export(self) -> list[Checkpoint]:
        """See `StoreAdmin.export`."""
        return await self._ask(lambda: export_all(self._wire), [], seconds=BULK_TIMEOUT)

    async def close(self) -> None:
        """See `StoreAdmin.close`. Whatever state the server is in, the connections are ours to close."""
        self._guard.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._wire.close()

    async def _get_state(self, name: str) -> object:
        # A use; as in the script, whether the server takes the note does not matter.
        value, _ = await self._wire.batch([("GET", name), ("PEXPIRE", name, _ms(self._ttl))])
        if isinstance(value, Exception):
            raise value
        return value

    async def _claimed(self, key: str) -> bool:
        return bool(await self._ask(lambda: self._wire.call("EXISTS", f"{PREFIX}cl:{key}"), 0))

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

    async def _find(self, scope: str, digests: Sequence[bytes]) -> Checkpoint | None:
        index, ttl = index_name(scope), _ms(self._ttl)
        while digests:
            found = await self._wire.call(
                "EVAL", _FIND, 1, index, b"".join(digests), value_name(index, b""), ttl
            )
            if found is None:
                return None
            at, body = found
            if (checkpoint := decode(body, scope, digests[at])) is not None:
                return checkpoint
            self._unread += 1
            digests = digests[at + 1 :]
        return None

    async def _store(self, item: Encoded) -> None:
        """Have the server keep it, or keep it here; what is itself at fault is kept nowhere."""
        scope, digest = item.key
        index = index_name(scope)
        name, ttl = value_name(index, digest), _ms(self._ttl)
        command = ("EVAL", _PUT, 2, index, name, item.body, repr(item.created), digest, ttl)

        async def put() -> bool:
            try:
                await self._wire.call(*command)
            except RedisError as error:
                await self._wire.try_write()
                raise RecordRefused from error  # a small one is taken: this one is too large, say
            return True

        skipped = self._guard.skipped
        if await self._ask(put, False, write=True) or self._guard.skipped > skipped:
            self._kept.drop(item.key)
        else:
            self._kept.put(item)


def _ms(seconds: float) -> int:
    return max(1, int(min(seconds * 1000, _MOST_MS)))
