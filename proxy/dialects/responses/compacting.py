"""`POST /v1/responses/compact`: a compaction, and nothing else."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from proxy.dialects.responses.conversation import items_in
from proxy.dialects.responses.response import usage_of
from proxy.dialects.responses.stored import as_told, identified
from proxy.dialects.responses.writing import ResponsesWriter
from proxy.neutral.piece import Identity, Piece


class CompactedWriter(ResponsesWriter):
    """Writes what was compacted: the user's messages as they were sent, and the compaction behind them.

    Clients may send all of it again; what the compaction stands for is then left out.
    """

    @override
    def _whole(self, came: Piece, identity: Identity) -> dict[str, Any]:
        response = super()._whole(came, identity)
        said = [item for item in items_in(self._asked.get("input")) if item.get("role") == "user"]
        own = [as_told(identified(item, self._unique, number)) for number, item in enumerate(said)]
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*own, *response["output"]],
            "usage": usage_of(self._used()),
        }
