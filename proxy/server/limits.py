"""What one client, and all of them together, may take of the server."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RATE = 500.0
"""Bytes per second that a body has to bring on the whole once its time is over; as Apache's RequestReadTimeout."""
STEP = 16 * 1024
"""Bytes of an answer that a client has to take within the time it is given, to count as reading."""
BODY_BUFFER = 64 * 1024
"""Bytes of a body that wait for the application before the client is left unread."""
UNSENT = 256 * 1024
"""Bytes of an answer that the system may hold unsent for one client; beyond that it is we who hold them, and see it."""
JOINED = 64 * 1024
"""Bytes up to which what is sent in one step of the loop is copied together."""
PIPELINED = 16
"""Requests that may wait behind one that is being answered."""
LINGER = 30.0
LINGER_SILENCE = 5.0
"""Seconds that a client is read on, on the whole and in silence, after an answer to a request that it has not finished
sending: closed at once, the answer would be lost (RFC 9112, section 9.6). As nginx's lingering_time and _timeout."""
PASSED = 16 * 2**20
"""Bytes that go through before it is worth while to give memory back."""
GIVE_BACK = 10.0
"""Seconds at least between two times that memory is given back."""
TURNED_AWAY = 100
"""Connections above the bounds that are told why at the same time; more are closed without a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the listening side."""

    head: int = 64 * 1024
    """Bytes of a request's line and headers."""
    timeout: float = 60.0
    """Seconds for a head, for silence in a body, and for a client to go on reading its answer."""
    keep_alive: float = 5.0
    """Seconds that a connection is kept between two requests."""
    bodies: int = 256 * 2**20
    """Bytes of bodies that are held at a time, of all requests together."""
    connections: int = 1000
    """Connections at a time."""
    per_address: int = 500
    """Of them from one address that is not loopback; 0: as many as there may be."""
