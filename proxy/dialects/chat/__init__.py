"""Chat completions: the dialect of most clients, and the one in which every backend is spoken to."""

from proxy.core.dialect import Dialect
from proxy.dialects.chat.answers import ChatWriter
from proxy.dialects.chat.request import read

UPSTREAM_PATH = b"/v1/chat/completions"
"""Where every backend takes requests."""

_WRITER = ChatWriter()
CHAT = Dialect(name="chat", path=UPSTREAM_PATH.decode(), read=read, writer=lambda *_: _WRITER, native=True)
"""Its writer keeps nothing, and needs nothing: backends are asked in the same dialect, and know of no edits."""
