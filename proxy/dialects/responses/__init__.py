"""OpenAI's Responses, in which Codex, the Agents SDK and Vercel's AI SDK speak."""

from __future__ import annotations

from functools import partial
from typing import Any

from proxy.core.dialect import Dialect, TokenCount
from proxy.dialects.responses.request import read
from proxy.dialects.responses.writing import CompactedWriter, ResponsesWriter


def _counted(tokens: int, before: int | None) -> dict[str, Any]:
    del before
    return {"object": "response.input_tokens", "input_tokens": tokens}


RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    read=read,
    writer=ResponsesWriter,
    count=TokenCount(path="/v1/responses/input_tokens", read=read, reply=_counted),
    id_prefix="resp_",
)
COMPACTED_RESPONSES = Dialect(
    name="responses",
    path="/v1/responses/compact",
    read=partial(read, compacts=True),
    writer=CompactedWriter,
    id_prefix="resp_",
)
"""Requests for a compaction alone, which are answered in one body."""
