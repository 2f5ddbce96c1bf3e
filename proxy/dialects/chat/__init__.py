"""Chat completions: the dialect of most clients, and of nearly all backends.

A chunk is one frame of a streamed answer; its delta is what it adds to a choice. A body is an answer in one piece, with a
message in each choice. Both are repaired to OpenAI's form (`reading`) before they become pieces (`answers`).
"""

from proxy.core.dialect import Dialect
from proxy.dialects.chat.answers import ChatWriter
from proxy.dialects.chat.request import read

UPSTREAM_PATH = b"/v1/chat/completions"
"""Path at which backends take requests."""

_WRITER = ChatWriter()
CHAT = Dialect(name="chat", path=UPSTREAM_PATH.decode(), read=read, writer=lambda *_: _WRITER, native=True)
"""Chat completions. One writer serves all requests: it has no state, since backends speak the same dialect."""
