"""Sealed values, which clients store for Spillway and send back; the seal proves that Spillway wrote them.

A seal is a MAC (HMAC-SHA-256), bound to the credential. It is not encryption: a client that holds one also holds the
conversation that it was made from, so there is nothing to hide, and the standard library suffices. Sealing is
deterministic: the same value gets the same seal, so a prompt made from it stays the same and a prefix cache keeps working.
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
"""Bytes to which a sealed value may decompress."""
_MARK = "spw1."
_MAC_BYTES = 32


def seal(key: bytes, owner: str, value: Any) -> str:
    """Seal a JSON value: return it as ASCII text of URL-safe characters.

    Args:
        key: secret of `KEY_BYTES` bytes.
        owner: the only credential for which it can be opened again.
        value: the JSON value.

    Raises:
        TypeError, ValueError: the value is not JSON.
    """
    packed = zlib.compress(dumps(value))
    return _MARK + urlsafe_b64encode(_mac(key, owner, packed) + packed).decode()


def is_sealed(text: Any) -> bool:
    """Return whether a value looks like one of Spillway's seals, even if it is broken or another instance's."""
    return isinstance(text, str) and text.startswith(_MARK)


def opened(keys: Iterable[bytes], owner: str, text: Any) -> Any:
    """Return the value under a seal made with one of these keys for this owner, or None for anything else."""
    if not is_sealed(text):
        return None
    try:
        decoded = urlsafe_b64decode(text.removeprefix(_MARK).encode("ascii"))
    except (NotBase64, ValueError):
        return None
    mac, packed = decoded[:_MAC_BYTES], decoded[_MAC_BYTES:]
    # Decompressed only once it is known to be Spillway's own: anything else might be a decompression bomb.
    if not any(hmac.compare_digest(mac, _mac(key, owner, packed)) for key in keys):
        return None
    return loads_or_none(zlib.decompressobj().decompress(packed, LARGEST))


def _mac(key: bytes, owner: str, packed: bytes) -> bytes:
    return hmac.digest(key, b"%d:%b%b" % (len(owner), owner.encode(), packed), "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedHistory:
    """Content of a seal: the history as it was after its compaction."""

    messages: Sequence[dict[str, Any]]
    """Messages that replace the history."""
    lead: Sequence[dict[str, Any]] = ()
    """System messages at its beginning that belong to the history."""
    fingerprints: Sequence[str] = ()
    """Fingerprints of the user messages that it replaces."""

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
    """Compute the digest by which a message is recognised when it is sent again."""
    return blake2b(dumps([message.get("role"), message.get("content")]), digest_size=8).hexdigest()
