"""Anthropic's Messages, in which Claude Code and Anthropic's SDKs speak."""

from __future__ import annotations

from functools import partial
from typing import Any

from proxy.core.dialect import Dialect, TokenCount
from proxy.dialects.messages.request import read
from proxy.dialects.messages.writing import ID_PREFIX, MessagesWriter, error_body


def _counted(tokens: int, before: int | None) -> dict[str, Any]:
    original = {} if before is None else {"context_management": {"original_input_tokens": before}}
    return {"input_tokens": tokens, **original}


MESSAGES = Dialect(
    name="messages",
    path="/v1/messages",
    read=read,
    writer=MessagesWriter,
    error=error_body,
    count=TokenCount(path="/v1/messages/count_tokens", read=partial(read, bounded=False), reply=_counted),
    id_prefix=ID_PREFIX,
    parses_calls=True,
)
