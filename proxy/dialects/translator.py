"""Base class of writers for dialects that backends do not speak, so that no frame can be passed on as it came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from proxy.core import sse
from proxy.core.dialect import Completion, Writer
from proxy.core.jsontext import dumps
from proxy.core.piece import NOBODY, CallPart, Identity, Piece, joined_fields
from proxy.core.request import COMPACTION, SIGNED, Managed, Request
from proxy.dialects.bodies import enclosed, pick


@dataclass(slots=True)
class ContentBlock:
    """Part of an answer, of the kind `text`, `thinking`, `call`, or `compaction` (at the beginning of the answer)."""

    kind: str
    name: str = ""
    """Name of the function, for a call."""
    id: str = ""
    """Id of a call, from its first piece; empty if the backend gave none."""
    index: int = 0
    """Place in the answer, counted from 0."""
    pieces: list[str] = field(default_factory=list)
    """Pieces of the text, or of the JSON of a call's arguments."""
    status: str = "in_progress"
    signature: str = ""
    """Signature of thinking, which its server wants back with it."""

    @property
    def text(self) -> str:
        """Text, or arguments of a call, received so far."""
        return "".join(self.pieces)


class Translator(Writer):
    """Writer of one answer as a beginning, blocks that are opened, grow and are closed one after another, and an end.

    Blocks do not interleave: the first call is written as it arrives, and everything that arrives between or after its
    pieces is written at the end. The finish reason and the usage wait for the end too, because backends report them
    separately.
    """

    media_type = "text/event-stream; charset=utf-8"
    call_prefix = "call"
    """Prefix of ids for calls that came without one."""

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        self._request = request
        self._unique = unique
        self._managed = managed
        self._identity = NOBODY
        self._begun = self._over = False
        self._blocks: list[ContentBlock] = []
        """Blocks opened so far."""
        self._open: ContentBlock | None = None
        self._calls: list[ContentBlock] = []
        self._calls_by_index: dict[int, ContentBlock] = {}
        """Calls by the index that the backend gave them."""
        self._signed: Mapping[str, Any] = {}
        """Signed blocks of reasoning that are not yet attached to a thinking block."""
        self._later: list[tuple[str, str]] = []
        """Kind and text of pieces that came after the first call began."""
        self._finish: str | None = None
        self._stopped = ""
        self._usage: Mapping[str, Any] = {}

    @override
    def relay(self, piece: Piece, identity: Identity | None, *, role_sent: bool) -> bytes:
        if piece.done:
            return self.end()
        if piece.error:
            return self.error({"error": piece.error})
        if piece.form is None:
            return b""  # the backend's comment: Spillway keeps the connection alive itself
        return self._written(piece, identity or piece.identity or NOBODY)

    @override
    def part(self, piece: Piece, identity: Identity, *, role_sent: bool) -> bytes:
        content = Piece(text=piece.text, thought=piece.thought, calls=piece.calls, choice=True)
        return self._written(content, identity)

    @override
    def insert(self, piece: Piece, identity: Identity) -> bytes:
        # Open WebUI's status event is left out: OpenAI's npm SDK (6.49, 7.57) throws at events it has no schema for.
        return self._comment(piece.comment) if piece.comment else self._written(piece, identity)

    @override
    def error(self, body: Mapping[str, Any]) -> bytes:
        if self._over:
            return b""
        self._over = True
        return self._failed(body.get("error"))

    @override
    def end(self) -> bytes:
        if self._over:
            return b""
        self._over = True
        out = self._beginning(NOBODY)
        for kind, text in self._later:
            out += self._text(kind, text)
        for call in self._calls[1:]:
            out += self._start(call)
            if call.pieces:
                out.append(self._delta(call, call.text))
        out += self._close("incomplete" if self._finish == "length" else "completed")
        return b"".join((*out, *self._ended()))

    @override
    def body(self, completion: Completion, choices: Sequence[Piece], usage: dict[str, Any] | None) -> bytes:
        first = [*choices, *completion.choices, Piece()][0]
        identity = completion.choices[0].identity if completion.choices else None
        self._written(replace(first, index=0, choice=True, usage=usage or first.usage), identity or NOBODY)
        self.end()
        return dumps(self._answer())

    def _written(self, piece: Piece, identity: Identity) -> bytes:
        """Write a piece of the first choice; pieces of other choices, and any after the end, are ignored."""
        if piece.index or self._over:
            return b""
        self._usage = piece.usage or self._usage
        self._finish, self._stopped = piece.finish or self._finish, piece.stopped or self._stopped
        out = list[bytes]()
        if piece.choice or piece.role or piece.text or piece.thought or piece.calls:
            out += self._beginning(identity, piece.prompt_tokens)
        if SIGNED in piece.extras and not self._calls:
            self._signed = joined_fields(self._signed, pick(piece.extras, (SIGNED,)))
        for kind, text in (("thinking", piece.thought), ("text", piece.text)):
            if text and self._calls:
                self._later.append((kind, text))
            elif text:
                out += self._text(kind, text)
        for part in piece.calls:
            call = self._call_of(part)
            if call is self._calls[0]:
                out += self._grow(call, part.arguments)
            else:
                call.pieces.append(part.arguments)
        return b"".join(out)

    def _beginning(self, identity: Identity, prompt_tokens: int = 0) -> list[bytes]:
        """Write the head of the answer, and the compaction at its beginning, each once."""
        out = list[bytes]()
        if not self._begun:
            self._begun, self._identity = True, identity
            out += self._begin(prompt_tokens)
        compaction = self._managed.sealed_compaction
        if compaction is not None and not any(block.kind == COMPACTION for block in self._blocks):
            out += (*self._grow(ContentBlock(COMPACTION), compaction.words), *self._close())
        return out

    def _text(self, kind: str, text: str) -> list[bytes]:
        block = self._open
        return self._grow(block if block is not None and block.kind == kind else ContentBlock(kind), text)

    def _grow(self, block: ContentBlock, text: str) -> list[bytes]:
        """Write a piece of a block, opening the block if needed."""
        out = [] if block is self._open else self._start(block)
        if text:
            block.pieces.append(text)
            out.append(self._delta(block, text))
        return out

    def _start(self, block: ContentBlock) -> list[bytes]:
        out = self._close()
        if self._signed and block.kind != "thinking":
            out += (*self._start(ContentBlock("thinking")), *self._close())
        block.index = len(self._blocks)
        self._blocks.append(block)
        self._open = block
        return [*out, *self._opened(block)]

    def _close(self, status: str = "completed") -> list[bytes]:
        block, self._open = self._open, None
        if block is None:
            return []
        block.status = status
        if block.kind == "thinking" and self._signed:
            block.signature, self._signed = enclosed(self._signed[SIGNED]), {}
        return self._closed(block)

    def _call_id(self, call: ContentBlock) -> str:
        return call.id or f"{self.call_prefix}_{self._unique}_{call.index}"

    def _call_of(self, part: CallPart) -> ContentBlock:
        """Find the call with the part's index, or begin a new one; a whole call may come without an index."""
        call = None if part.index is None else self._calls_by_index.get(part.index)
        if call is None:
            call = ContentBlock("call", part.name, part.id)
            self._calls.append(call)
            if part.index is not None:
                self._calls_by_index[part.index] = call
        return call

    def _comment(self, comment: str) -> bytes:
        """Write a comment that keeps the connection alive or says something besides the answer."""
        return sse.comment(comment)

    # -- overridden by each dialect

    def _begin(self, prompt_tokens: int) -> list[bytes]:
        """Write the head of the answer; nothing by default."""
        return []

    def _opened(self, block: ContentBlock) -> list[bytes]:
        """Write the beginning of a block; nothing by default."""
        return []

    def _delta(self, block: ContentBlock, text: str) -> bytes:
        """Write a piece of the open block, to which the piece has been added already."""
        raise NotImplementedError

    def _closed(self, block: ContentBlock) -> list[bytes]:
        """Write the end of a block."""
        raise NotImplementedError

    def _ended(self) -> list[bytes]:
        """Write the end of the answer, after its blocks."""
        raise NotImplementedError

    def _failed(self, error: Any) -> bytes:
        """Write an error, which ends the answer."""
        raise NotImplementedError

    def _answer(self) -> dict[str, Any]:
        """Build the complete answer as one body."""
        raise NotImplementedError


def event(kind: str, **fields: Any) -> bytes:
    """Write a server-sent event with its kind both as its name and as `type` in its data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))
