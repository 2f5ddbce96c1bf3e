"""The wire forms of a conversation: read into the neutral form at the edge, and written there again.

A new one for clients is one folder and one line here.
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
"""By the paths that they own."""

__all__ = ["CHAT", "DIALECTS"]
