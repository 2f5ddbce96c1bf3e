"""Open files: each client has one, and each answer another one towards its backend."""

from __future__ import annotations

import logging
from dataclasses import replace

from proxy.server.limits import Limits

_log = logging.getLogger("spillway.server")

WANTED = 65536
"""Open files that are asked for, where the system allows more than what programs are started with (1,024, mostly)."""
OTHERS = 64
"""Files that are no connections: the store, the log, the loop's own."""


def within_files(limits: Limits) -> Limits:
    """The limits with as many connections as there can be files for, once the process may open all it is allowed."""
    try:
        import resource  # noqa: PLC0415 - not on Windows, which has no such bound
    except ModuleNotFoundError:
        return limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return limits if soft == resource.RLIM_INFINITY else fitting(limits, soft)


def fitting(limits: Limits, files: int) -> Limits:
    """The limits with no more connections than so many open files allow."""
    most = max(1, (files - OTHERS) // 2)
    if limits.connections <= most:
        return limits
    _log.warning(
        "%d open files allow %d connections, not %d: raise ulimit -n", files, most, limits.connections
    )
    return replace(limits, connections=most)
