"""Threads: conversations that are kept here, so that a request sends only what is new, and the id of the answer before.

Fields and errors: Anthropic API reference, "Message threads" (2026), and PyPI `anthropic` 2.12.0, `types/beta/beta_thread_*`,
`types/thread_*` and `lib/threads/`. Anthropic's are forgotten after five minutes, and go on from each answer once; these
stay as long as what else is stored, and may fork. A client that is told `thread_not_found` sends the whole conversation.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from proxy.dialects.bodies import text_in
from proxy.errors import BadRequest, NotFound
from proxy.neutral.piece import arguments_of
from proxy.neutral.remembering import Fetch
from proxy.wire.jsontext import dumps

THREAD = "thread"
"""The field of a request, and of what is kept under the id of its answer."""
_FRONT = ("system", "tools")
"""What a thread keeps from its first request."""
_BILLING = "x-anthropic-billing-header:"
"""How the part of the system prompt begins that Claude Code (2.1) sends with every request of a thread."""


def thread_in(asked: Mapping[str, Any]) -> str:
    """`create`, `continue`, or empty: the request belongs to no thread."""
    thread = asked.get(THREAD)
    if thread is None:
        return ""
    kind = text_in(thread, "type") if isinstance(thread, dict) else ""
    if kind not in ("create", "continue"):
        raise BadRequest(
            '`thread` must be {"type": "create"}, or {"type": "continue", "previous_message_id": …}.',
            param=THREAD,
        )
    return kind


def in_full(asked: Mapping[str, Any]) -> Generator[Fetch, Any, dict[str, Any]]:
    """A request that goes on with a thread, as it were if it had sent all of that.

    Raises:
        BadRequest: it changes what a thread keeps.
        NotFound: the thread is not kept, or not any more.
    """
    name = text_in(asked[THREAD], "previous_message_id")
    parts: list[list[Any]] = [asked["messages"]]
    front: dict[str, Any] | None = None
    while front is None:
        # A client has it all and can send it: there is no need to refuse it where the store does not answer.
        node = yield Fetch(name, vital=False)
        kept = None if node is None else node.get(THREAD)
        if kept is None:
            raise NotFound(
                f"No thread is kept for `previous_message_id` {name!r}: it was never stored, is another key's, or has "
                'expired. Send the whole conversation with `thread: {"type": "create"}`.',
                param="thread.previous_message_id",
                code="thread_not_found",
            )
        parts.append(kept["messages"])
        front, name = kept["front"], kept["previous"]
    if differing := [field for field in _FRONT if _differs(asked.get(field), front.get(field))]:
        raise BadRequest(
            f"A thread keeps what it began with; differing field(s): {', '.join(differing)}. Leave them out, or send the "
            'whole conversation with `thread: {"type": "create"}` to change them.',
            param=differing[0],
            code="thread_fingerprint_mismatch",
        )
    return {**asked, **front, "messages": [message for part in reversed(parts) for message in part]}


def _differs(sent: Any, kept: Any) -> bool:
    bare = _unbilled(sent)
    return bool(bare) and _unmarked(bare) != _unmarked(_unbilled(kept))


def _unbilled(value: Any) -> Any:
    """A system prompt or tools without what means nothing."""
    if not isinstance(value, list):
        return value
    return [
        each for each in value if not (isinstance(each, dict) and text_in(each, "text").startswith(_BILLING))
    ]


def _unmarked(value: Any, levels: int = 6) -> Any:
    """Return a value without cache marks, which move from turn to turn; `levels` reach the blocks of a result."""
    if isinstance(value, list) and levels:
        return [_unmarked(each, levels - 1) for each in value]
    if isinstance(value, dict) and levels:
        return {name: _unmarked(each, levels - 1) for name, each in value.items() if name != "cache_control"}
    return value


def node_of(own: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a request, as it was sent, and of its answer; `size` in bytes."""
    messages = list(own["messages"])
    if answer["content"]:
        messages.append({"role": "assistant", "content": answer["content"]})
    begins = thread_in(own) == "create"
    front = {name: own[name] for name in _FRONT if name in own} if begins else None
    previous = "" if begins else text_in(own[THREAD], "previous_message_id")
    kept = {"previous": previous, "front": front, "messages": messages}
    return {THREAD: kept, "size": len(dumps(kept))}


class Gathered:
    """The content of an answer, while it is written as events."""

    def __init__(self) -> None:
        self._blocks: list[tuple[dict[str, Any], list[str]]] = []

    def begin(self, block: dict[str, Any]) -> None:
        """Another block."""
        self._blocks.append((block, []))

    def grow(self, said: str) -> None:
        """A piece of the newest one: of its words, or of its arguments as JSON."""
        self._blocks[-1][1].append(said)

    @property
    def content(self) -> list[dict[str, Any]]:
        """As far as it has come."""
        return [_whole(block, "".join(said)) for block, said in self._blocks]


def _whole(block: dict[str, Any], said: str) -> dict[str, Any]:
    match block["type"]:
        case "tool_use":
            return {**block, "input": arguments_of(said)}
        case "text" | "thinking" as kind:
            return {**block, kind: said}
        case _:
            return block
