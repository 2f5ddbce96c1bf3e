"""The listening side: HTTP/1.1 as clients speak it, with bounds on what they may hold up, and how it stops.

uvicorn gives the server around it (sockets, lifespan, configuration). Its own protocols bound neither headers nor
bodies nor time, lose the body of a request that offers an upgrade, and send HTTP/1.0 clients chunks.
"""

from proxy.server.files import within_files
from proxy.server.guard import Guard
from proxy.server.limits import Limits
from proxy.server.server import Server

__all__ = ["Guard", "Limits", "Server", "within_files"]
