"""Connections that a transport holds."""

from proxy.net.transport import HttpTransport


def in_use(transport: HttpTransport) -> int:
    """Number of connections whose response was neither read to its end nor closed."""
    session = transport._session
    return 0 if session is None or session.connector is None else len(session.connector._acquired)
