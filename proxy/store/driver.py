"""Interface of a database for checkpoints, and the form in which they are stored: one JSON object each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from proxy.core.errors import SettingError
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.jsontext import dumps, loads

Found: TypeAlias = tuple[int, bytes] | None
"""Index of the digest that was found, and the body stored under it."""

DOCUMENT = "document|"
"""Prefix of documents' scopes, before the credential's digest; scopes of checkpoints begin with the digest."""
VERSION = 1
MAX_VALUES = 4096
"""Most learned values, bounded because their keys have names of models, which clients choose. Beyond that, an eighth is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of a store.

    `clock` gives seconds since the epoch. `ttl` is the seconds that a checkpoint is stored after its last use. `max_bytes` bounds the
    encoded checkpoints: the least recently used of the credential with the most bytes goes first, so that no credential displaces
    what another stored within its share (Redis limits itself, by `maxmemory`). `timeout` is the most seconds that an operation of a
    dead or slow store may cost a request.
    """

    clock: Callable[[], float]
    ttl: float
    max_bytes: int
    timeout: float


class Driver(Protocol):
    """Database of a `Store`. It may be slow and may raise anything: the store bounds its time and catches its errors."""

    name: str
    shared: bool
    """Whether several instances can use one database."""

    async def find(self, scope: str, digests: Sequence[bytes]) -> Found:
        """Look up the first of `digests` that is stored, and record the use."""

    async def put(self, checkpoint: Checkpoint, body: bytes) -> None:
        """Store a checkpoint, encoded as `body`, replacing any with its scope and digest."""

    async def drop(self, scope: str, digest: bytes) -> None:
        """Delete a checkpoint, if it is stored."""

    async def value(self, key: str, new: bytes | None = None, *, once: bool = False) -> bytes | None:
        """Return a small value, after writing `new`; see `Store.value`."""

    async def lease(self, key: str, seconds: float) -> bool:
        """Hold `key` for `seconds`, or release it if 0; returns False if another process holds it."""

    async def export(self) -> list[bytes]:
        """Return the bodies of all checkpoints, in any order."""

    async def purge(self, older_than: float | None) -> int:
        """Delete checkpoints made before `older_than` (seconds since the epoch), or all; return their number."""

    async def close(self) -> None:
        """Release files and connections."""


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as one line of JSON in UTF-8, the same in every database and in an export.

    Raises:
        TypeError, ValueError, RecursionError: the replacement is not JSON.
    """
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    return dumps({"v": VERSION, **fields, "digest": checkpoint.digest.hex()})


def decode(body: bytes, scope: str | None = None, digest: bytes | None = None) -> Checkpoint | None:
    """Decode a checkpoint that `encode` wrote; None for anything else, or if it has another scope or digest.

    This check is the last line of defence against showing one credential another's messages.
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
    """Return the error for a store address that cannot be used."""
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
