"""The base of the writers of dialects that backends do not speak: nothing passes as it came."""

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
    """A part of an answer: `text`, `thinking`, a `call`, or the `compaction` that it begins with."""

    kind: str
    name: str = ""
    """Of the function that a call is of."""
    id: str = ""
    """Of a call, as the backend gave it with its first piece; empty: it gave none."""
    index: int = 0
    """Its place in the answer."""
    pieces: list[str] = field(default_factory=list)
    """Of the text, or of the JSON of a call's arguments."""
    status: str = "in_progress"
    signature: str = ""
    """Of a thought: what its server wants back with it."""

    @property
    def text(self) -> str:
        """The text, or the arguments, as far as they have come."""
        return "".join(self.pieces)


class Translator(Writer):
    """Writes one answer as a beginning, blocks that are opened, grow and are closed one after the other, and an end.

    Blocks do not interleave: the first call is written while it comes, what comes beside or after it at the end.
    The finish reason and the usage wait for the end, too: backends report them apart.
    """

    media_type = "text/event-stream; charset=utf-8"
    call_prefix = "call"
    """How ids of calls begin to which the backend gave none."""

    def __init__(self, request: Request, unique: str, managed: Managed) -> None:
        self._request = request
        self._unique = unique
        self._managed = managed
        self._identity = NOBODY
        self._begun = self._over = False
        self._blocks: list[ContentBlock] = []
        """Those that were opened."""
        self._open: ContentBlock | None = None
        self._calls: list[ContentBlock] = []
        self._calls_by_index: dict[int, ContentBlock] = {}
        """Calls by their index."""
        self._signed: Mapping[str, Any] = {}
        """Signed blocks of reasoning that no thought has been closed with yet."""
        self._later: list[tuple[str, str]] = []
        """Kind and text of what came after the first call began."""
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
            return b""  # a comment of the backend's: Spillway keeps the connection alive itself
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
        """Write a piece of the first choice; of others, and after the end, nothing."""
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
        """Write the head of the answer, once, and the compaction that it begins with."""
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
        """Write a piece of a block, which is opened if it is not open."""
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
        """Find the call of that index, or begin it; a whole call may come without one."""
        call = None if part.index is None else self._calls_by_index.get(part.index)
        if call is None:
            call = ContentBlock("call", part.name, part.id)
            self._calls.append(call)
            if part.index is not None:
                self._calls_by_index[part.index] = call
        return call

    def _comment(self, comment: str) -> bytes:
        """Write a comment that keeps the connection alive, or tells something besides the answer."""
        return sse.comment(comment)

    # -- what differs from dialect to dialect

    def _begin(self, prompt_tokens: int) -> list[bytes]:
        """Write the head of the answer; nothing by default."""
        return []

    def _opened(self, block: ContentBlock) -> list[bytes]:
        """Write the beginning of a block; nothing by default."""
        return []

    def _delta(self, block: ContentBlock, text: str) -> bytes:
        """Write a piece of the open block, which is in it already."""
        raise NotImplementedError

    def _closed(self, block: ContentBlock) -> list[bytes]:
        """Write the end of a block."""
        raise NotImplementedError

    def _ended(self) -> list[bytes]:
        """Write the end of the answer, behind its blocks."""
        raise NotImplementedError

    def _failed(self, error: Any) -> bytes:
        """Write an error, after which nothing comes."""
        raise NotImplementedError

    def _answer(self) -> dict[str, Any]:
        """Build the complete answer as one body."""
        raise NotImplementedError


def event(kind: str, **fields: Any) -> bytes:
    """Write an event that is named, and says its kind once more in its data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))
