"""Sealed values that clients store for Spillway and send back, so that nothing is believed that it did not write itself.

A seal is a MAC (HMAC-SHA-256), bound to the credential. It is not encryption: who holds one holds
the conversation that it was made of, so that there is nothing to hide, and the standard library has all that it takes.
The same value has the same seal, so that a prompt made of it is the same, too.
"""

import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from proxy.core.jsontext import are_objects, dumps, loads_or_none

KEY_BYTES = 32
LARGEST = 64 * 2**20
"""Bytes that a sealed value comes to at most."""
_MARK = "spw1."
_MAC_BYTES = 32


def seal(key: bytes, owner: str, value: Any) -> str:
    """A JSON value as ASCII text of URL-safe characters.

    Args:
        key: secret, of `KEY_BYTES`.
        owner: whose it is; nobody else can have it opened.
        value: is sealed.

    Raises:
        TypeError, ValueError: it is not JSON.
    """
    packed = zlib.compress(dumps(value))
    return _MARK + urlsafe_b64encode(_mac(key, owner, packed) + packed).decode()


def is_sealed(text: Any) -> bool:
    """Return whether a value looks like a seal of Spillway's, even a broken one or another instance's."""
    return isinstance(text, str) and text.startswith(_MARK)


def opened(keys: Iterable[bytes], owner: str, text: Any) -> Any:
    """The value under a seal that was made with one of these keys, for this owner; None for anything else."""
    if not is_sealed(text):
        return None
    try:
        decoded = urlsafe_b64decode(text.removeprefix(_MARK).encode("ascii"))
    except (NotBase64, ValueError):
        return None
    mac, packed = decoded[:_MAC_BYTES], decoded[_MAC_BYTES:]
    # Unpacked only when it is known to be our own: anything else may be made to be huge.
    if not any(hmac.compare_digest(mac, _mac(key, owner, packed)) for key in keys):
        return None
    return loads_or_none(zlib.decompressobj().decompress(packed, LARGEST))


def _mac(key: bytes, owner: str, packed: bytes) -> bytes:
    return hmac.digest(key, b"%d:%b%b" % (len(owner), owner.encode(), packed), "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedHistory:
    """Content of a seal: the history as it was when it was compacted."""

    messages: Sequence[dict[str, Any]]
    """Those that take the place of the history."""
    lead: Sequence[dict[str, Any]] = ()
    """System messages in front of it that were part of it."""
    fingerprints: Sequence[str] = ()
    """Fingerprints of the user's messages that it stands for."""

    @classmethod
    def read(cls, value: Any) -> "SealedHistory | None":
        """Parse the opened value of a seal; None for anything else."""
        if not isinstance(value, dict) or not all(are_objects(value.get(name)) for name in ("messages", "lead")):
            return None
        return cls(messages=value["messages"], lead=value["lead"], fingerprints=value.get("said") or ())

    def written(self) -> dict[str, Any]:
        """Build the value to seal."""
        return {"messages": list(self.messages), "lead": list(self.lead), "said": list(self.fingerprints)}


def fingerprint(message: Mapping[str, Any]) -> str:
    """Compute the digest by which a message that was sent before is recognised."""
    return blake2b(dumps([message.get("role"), message.get("content")]), digest_size=8).hexdigest()
