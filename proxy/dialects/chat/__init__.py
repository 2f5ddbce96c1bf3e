"""Chat completions: the dialect of most clients, and of nearly all backends."""

from proxy.core.dialect import Dialect
from proxy.dialects.chat.answers import ChatWriter
from proxy.dialects.chat.request import read

UPSTREAM_PATH = b"/v1/chat/completions"
"""Path at which backends take requests."""

_WRITER = ChatWriter()
CHAT = Dialect(name="chat", path=UPSTREAM_PATH.decode(), read=read, writer=lambda *_: _WRITER, native=True)
"""Chat completions. One writer serves all requests: it has no state, since backends speak the same dialect."""
