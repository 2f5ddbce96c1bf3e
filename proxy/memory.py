"""Memory that is free goes back to the system: glibc keeps what lies below something that is still used.

After a flood of large bodies the process would stay as large as it was at its worst. Elsewhere (musl, macOS, Windows)
there is nothing to be done, and nothing is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
APART = 8 * 2**20
"""Bytes from which a piece of memory is one of its own, and so goes back when it is freed; glibc would raise that to 32 MiB
once it has seen such pieces freed. More than a body of 700 kB is parsed in, which takes twelve times its size: the system would
clear the pages of each piece anew, which takes a tenth of what the turn of a long conversation costs, and as much of a chunk."""
_KEPT = 2 * APART
"""Bytes at the end of the heap that stay there when they are free, for the same reason."""


def keep_apart() -> None:
    """Have large pieces of memory be pieces of their own, for as long as the process lives."""
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, APART)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Give back whole pages of small pieces: milliseconds."""
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
