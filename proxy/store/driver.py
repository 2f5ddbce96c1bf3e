"""Interface of a database that checkpoints are stored in, and their form there: one JSON object each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from proxy.core.errors import SettingError
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.jsontext import dumps, loads

Found: TypeAlias = tuple[int, bytes] | None
"""Index of the digest that was found, and the body that is stored under it."""

DOCUMENT = "document|"
"""Begins the scope of documents, before the credential's digest; that of checkpoints begins with the digest."""
VERSION = 1
MAX_VALUES = 4096
"""Learned values stored; their keys hold names of models, which come from clients. One more, and an eighth are learned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of a store.

    `clock` gives seconds since the epoch; `ttl` is how many seconds a checkpoint is stored after its last use;
    `max_bytes` caps the encoded checkpoints: the longest unused of the credential that holds most goes first, so that none
    displaces what another one stored within its share (Redis limits itself, by `maxmemory`);
    `timeout` is the most seconds an operation of a dead or slow store may cost a request.
    """

    clock: Callable[[], float]
    ttl: float
    max_bytes: int
    timeout: float


class Driver(Protocol):
    """Database behind a `Store`, which bounds its time and catches what it raises."""

    name: str

    async def find(self, scope: str, digests: Sequence[bytes]) -> Found:
        """Look up the first of `digests` that is stored, and note the use."""

    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        """Store it, encoded as `body`, in place of one with its scope and digest."""

    async def drop(self, scope: str, digest: bytes) -> None:
        """Delete a checkpoint, if it is there."""

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, after writing `new`; see `Store.value`."""

    async def lease(self, key: str, seconds: float) -> bool:
        """Hold `key` for so many seconds, 0 to release it; False: another process holds it."""

    async def export(self) -> list[bytes]:
        """Return the bodies of all checkpoints, in any order."""

    async def purge(self, older_than: float | None) -> int:
        """Delete checkpoints made before that (seconds since the epoch), or all; return how many."""

    async def close(self) -> None:
        """Release files and connections."""


def encode(checkpoint: Checkpoint) -> bytes:
    """Return one line of JSON, UTF-8, the same in every database and in an export.

    Raises:
        TypeError, ValueError, RecursionError: the replacement is not JSON.
    """
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    return dumps({"v": VERSION, **fields, "digest": checkpoint.digest.hex()})


def decode(body: bytes, scope: str | None = None, digest: bytes | None = None) -> Checkpoint | None:
    """Read what `encode` wrote; None for anything else, or when it belongs to another scope or digest.

    That check is the last line of defence against showing one credential what another one sent.
    """
    try:
        fields = loads(body)
        version, digest_written = fields.pop("v"), bytes.fromhex(fields.pop("digest"))
        checkpoint = Checkpoint(**{**fields, "digest": digest_written, "replacement": tuple(fields["replacement"])})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    is_right = version == VERSION and scope in (None, checkpoint.scope) and digest in (None, checkpoint.digest)
    return checkpoint if is_right else None


def credential_of(scope: str) -> str:
    """Return the digest of the credential that a scope belongs to."""
    return scope.removeprefix(DOCUMENT).partition("|")[0]


def refusal(url: str, reason: object) -> SettingError:
    """Return the error for a store address that can't be used."""
    return SettingError(f"SPILLWAY_STORE={public_url(url)!r}: {reason}")


def public_url(url: str) -> str:
    """Return an address without its secrets: user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.split(":", 1)[0] + "://…"
    if not parts.scheme.startswith("redis"):
        return url
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}"
