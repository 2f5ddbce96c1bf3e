"""What notices say, for tests that look for it in what a client sees or a model is sent; `tests/stream/test_status.py` holds the words."""

from proxy.stream import status


def plain(notice: status.Notice) -> str:
    """Return the text without the sign before it."""
    return notice.text.partition(" ")[2]


COMPACTING = plain(status.COMPACTING).rstrip("…")
COMPACTED = plain(status.compacted(1, 1))
NEVER_SENT = (COMPACTING, COMPACTED, plain(status.IN_VAIN).partition(",")[0], '"event"')
"""What must never reach a model: the words of notices, and the key they ride on."""
