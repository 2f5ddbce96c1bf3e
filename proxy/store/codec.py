"""Checkpoints as bytes: one JSON object, the same in every store and in an export."""

from __future__ import annotations

from typing import Any

from proxy.core.history.checkpoint import Checkpoint
from proxy.core.jsontext import dumps, loads

VERSION = 1


def encode(checkpoint: Checkpoint) -> bytes:
    """One line of JSON, UTF-8.

    Raises:
        TypeError, ValueError, RecursionError: the replacement is not JSON.
    """
    return dumps(
        {
            "v": VERSION,
            "scope": checkpoint.scope,
            "digest": checkpoint.digest.hex(),
            "kind": checkpoint.kind,
            "created": checkpoint.created,
            "covered": checkpoint.covered,
            "tokens_before": checkpoint.tokens_before,
            "tokens_after": checkpoint.tokens_after,
            "window": checkpoint.window,
            "replacement": checkpoint.replacement,
        }
    )


def decode(body: bytes, scope: str | None = None, digest: bytes | None = None) -> Checkpoint | None:
    """Read what `encode` wrote; None for anything else, or when it belongs to another scope or digest.

    That check is the last line of defence against showing one credential what another one sent.
    """
    try:
        checkpoint = _checkpoint(loads(body))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if scope is not None and checkpoint.scope != scope:
        return None
    if digest is not None and checkpoint.digest != digest:
        return None
    return checkpoint


def _checkpoint(document: Any) -> Checkpoint:
    if document["v"] != VERSION:
        msg = "unknown version"
        raise ValueError(msg)
    replacement, covered = document["replacement"], int(document["covered"])
    if covered < 0 or not (isinstance(replacement, list) and all(isinstance(each, dict) for each in replacement)):
        msg = "not the messages that stand for others"
        raise ValueError(msg)
    return Checkpoint(
        scope=document["scope"],
        digest=bytes.fromhex(document["digest"]),
        kind=document["kind"],
        created=float(document["created"]),
        covered=covered,
        tokens_before=int(document["tokens_before"]),
        tokens_after=int(document["tokens_after"]),
        window=int(document.get("window", 0)),
        replacement=tuple(replacement),
    )
