"""Parsed content of one frame of an answer's stream, or of a frame of Spillway's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.core.jsontext import loads_object

_LARGEST = 2**53
_SPOKEN = ("text", "summary", "data")
"""Fields of a reasoning block that grow from frame to frame (OpenRouter, "Preserving reasoning blocks")."""


@dataclass(slots=True)
class Identity:
    """Identity of an answer, set by its first frame and repeated in every other."""

    id: str
    created: int
    model: str
    extra: dict[str, Any] = field(default_factory=dict)


NOBODY = Identity("", 0, "")
"""Identity of frames that belong to no answer, such as comments."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call, or a whole one."""

    name: str = ""
    arguments: str = ""
    id: str = ""
    index: int | None = None
    """Index of the call in the answer."""
    kind: str = "function"
    extras: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of the call beyond OpenAI's, such as Gemini's `extra_content`."""

    def joined(self, more: CallPart) -> CallPart:
        """Return this part with more of the same call appended."""
        name, arguments = self.name or more.name, self.arguments + more.arguments
        extras = joined_fields(self.extras, more.extras)
        return replace(self, id=self.id or more.id, name=name, arguments=arguments, extras=extras)


@dataclass(slots=True, kw_only=True)
class Piece:
    """Content of a frame for the first choice that it lists; malformed fields are left out.

    A piece that was changed (`dataclasses.replace`) has no `frame`: its content is then in its fields, and anything
    else that was in the frame survives in `form`.
    """

    frame: bytes = b""
    """The bytes as received, without fields that a backend must not set; empty if the frame has to be built."""
    form: Any = None
    """The frame as its dialect parsed it, opaque to all other code; None if it says nothing about an answer."""
    bare: bool = False
    """Whether an earlier piece already carries the frame's other fields of the choice."""

    text: str = ""
    thought: str = ""
    calls: tuple[CallPart, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the delta besides its text and calls, including reasoning."""
    finish: str | None = None
    stopped: str = ""
    """The client's stop sequence that ended the answer; empty if none did, or if the backend does not report it."""
    role: bool = False
    identity: Identity | None = None
    usage: dict[str, Any] | None = None
    """Usage reported with this frame. In a stream, it mostly comes in a frame of its own, about no choice."""
    prompt_tokens: int = 0
    """Prompt tokens reported with this frame; 0 if none were."""
    completion_tokens: int = 0
    """Completion tokens of the whole answer so far, as reported with this frame; 0 if none were."""
    timings: Mapping[str, Any] = field(default_factory=dict)
    """What llama-server says it took, in milliseconds among other figures."""

    choice: bool = False
    """Whether it is about a choice at all."""
    index: int = 0
    """Index of the choice; -1 if it is not known."""
    other_choices: tuple[Piece, ...] = ()
    """Content of the same frame for further choices."""
    more: bool = False
    """Whether it says anything about the choice besides the text and the finish reason."""
    alone: str = ""
    """Name of the text's field, if the frame holds nothing but text and possibly the role: no counts, no other field."""

    error: Any = None
    """Error reported by the backend; None if there is none."""
    done: bool = False
    """Whether it is the mark that ends the stream."""
    aside: bool = False
    """Whether it carries no data, like a comment."""
    comment: str = ""
    """A comment of Spillway's own."""
    event: dict[str, Any] | None = None
    """A status event of Spillway's own, which rides on an empty piece."""

    def uncounted(self) -> Piece:
        """Copy the content without usage and counts, for a new frame."""
        return replace(self, frame=b"", other_choices=(), usage=None, prompt_tokens=0, completion_tokens=0)

    def by_choice(self) -> list[Piece]:
        """Split into a piece per choice, for new frames; usage and counts go with the last. Empty if it lists no choice."""
        pieces = [each.uncounted() for each in (self, *self.other_choices) if each.choice]
        if not pieces:
            return []
        pieces[0].identity = self.identity
        pieces[-1].usage, pieces[-1].prompt_tokens = self.usage, self.prompt_tokens
        pieces[-1].completion_tokens = self.completion_tokens
        return pieces

    def blank(self) -> Piece:
        """Return an empty piece of the same choice."""
        blank = self.uncounted()
        blank.bare, blank.role, blank.more = True, False, False
        blank.text, blank.thought, blank.calls, blank.extras, blank.finish = "", "", (), {}, None
        return blank


def joined_fields(before: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Join the extra fields of two frames: lists are extended, blocks in them merged by index, other values replaced."""
    if not (before and more):
        return before or more
    lists = {
        name: _joined_blocks(before[name], value)
        for name, value in more.items()
        if isinstance(before.get(name), list) and isinstance(value, list)
    }
    return {**before, **more, **lists}


def _joined_blocks(blocks: list[Any], more: list[Any]) -> list[Any]:
    """Extend a list of blocks; a block with the index and type of the last one continues that."""
    blocks = [*blocks]
    for block in more:
        last = blocks[-1] if blocks else None
        if (
            isinstance(last, dict)
            and isinstance(block, dict)
            and "index" in block
            and all(block.get(name) == last.get(name) for name in ("index", "type"))
        ):
            spoken = {
                name: f"{last.get(name) or ''}{block[name]}" for name in _SPOKEN if isinstance(block.get(name), str)
            }
            blocks[-1] = {**last, **{name: value for name, value in block.items() if value is not None}, **spoken}
        else:
            blocks.append(block)
    return blocks


def arguments_of(written: str) -> dict[str, Any]:
    """Parse the arguments of a complete call; empty if they are not a JSON object."""
    return loads_object(written) or {}


def as_count(value: Any) -> int:
    """Read a token count that a backend reported; 0 for anything but a count."""
    if type(value) is int:  # as nearly all of them are
        return value if 0 <= value < _LARGEST else 0
    return int(value) if isinstance(value, float) and 0 <= value < _LARGEST else 0
