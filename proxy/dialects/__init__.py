"""Dialects: the wire forms of a conversation, read into a neutral form at the edge and written from it again.

A dialect is one API that clients speak: a path, a reader of request bodies, and a writer of answers (`proxy.core.dialect`).
The neutral form is that of chat completions, in which nearly all backends are spoken to (`chat`); only an Ollama may be spoken to
in its own (`ollama_upstream`). A translator is a writer for a dialect that backends do not speak. A body is a whole JSON object, a
frame one server-sent event, and a piece what one frame says, in neutral form. To add a dialect for clients: one folder, one line here.
"""

from functools import partial

from proxy.core.dialect import Dialect
from proxy.dialects import ollama
from proxy.dialects.chat import CHAT
from proxy.dialects.messages import request as messages
from proxy.dialects.messages.writing import MessagesWriter, error_body
from proxy.dialects.responses import request as responses
from proxy.dialects.responses.writing import CompactedWriter, ResponsesWriter

DIALECTS: dict[str, Dialect] = {
    dialect.path: dialect
    for dialect in (
        CHAT,
        Dialect(
            name="messages",
            path="/v1/messages",
            read=messages.read,
            writer=MessagesWriter,
            error=error_body,
            count_path="/v1/messages/count_tokens",
            described=("MessagesRequest", "MessagesAnswer", "messages"),
            parses_calls=True,
        ),
        Dialect(
            name="responses",
            path="/v1/responses",
            read=responses.read,
            writer=ResponsesWriter,
            count_path="/v1/responses/input_tokens",
            count_head={"object": "response.input_tokens"},
            described=("ResponsesRequest", "ResponsesAnswer", "input"),
        ),
        Dialect(
            name="responses",
            path="/v1/responses/compact",
            read=partial(responses.read, compacts=True),
            writer=CompactedWriter,
            described=("ResponsesRequest", "CompactedAnswer", "input"),
        ),
        Dialect(
            name="ollama",
            path="/api/chat",
            read=ollama.read,
            writer=ollama.OllamaWriter,
            error=ollama.error_body,
            described=("OllamaRequest", "OllamaAnswer", "model"),
            parses_calls=True,
        ),
    )
}
"""Dialects by the paths that they own."""

__all__ = ["CHAT", "DIALECTS"]
