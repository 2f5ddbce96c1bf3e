"""A request in the neutral form, in which everything between the two ends of Spillway knows it.

Messages and options keep the names that chat completions has for them (OpenAI API reference, "Create chat
completion", 2026), because every backend is spoken to in that dialect; a dialect that says them otherwise translates
when it reads a body. What dialects do not share is no part of it: bytes, paths, frames, and by which fields a wish is
expressed.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Message: TypeAlias = dict[str, Any]

THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""In which the thoughts of a message stand as text, the one that is written first."""
SIGNED = "reasoning_details"
REASONING = (*THOUGHT_FIELDS, SIGNED)
"""The same, and the field of blocks that are signed or encrypted (OpenRouter)."""
SYSTEM_ROLES = frozenset({"system", "developer"})
_CHORE = "### Task:"

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""The least first (OpenAI's `reasoning.effort`, Anthropic's `output_config.effort`, Ollama's `think`)."""
NONE = "none"
"""The word of OpenAI for a model that is not to think."""
COMPACTION = "compaction"
"""What clients call a history that was compacted."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Lookup of a stored document of the client's credential by name; the reply is the document, or None."""

    name: str


@dataclass(frozen=True, slots=True)
class Unseal:
    """Opening of one of Spillway's seals; the reply is its content, or None for a seal that is not genuine."""

    text: str


# -- a client's own management of its history: edits and compactions, and their results
#
# Contracts: Anthropic's context editing and compaction (PyPI `anthropic` 2.12.0, `types/beta/`), OpenAI's compaction
# (PyPI `openai` 3.54.0, `types/responses/`). Figures are prompt tokens unless they say otherwise.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResults:
    """Leave out old tool results, once the prompt has more than so many tokens, or the history more than so many results."""

    over_tokens: int | None = None
    over_results: int | None = None
    keep: int = 3
    """The newest ones, which stay."""
    at_least: int = 0
    """Tokens to be won; nothing is left out for less."""
    spared: frozenset[str] = frozenset()
    """Tools whose results stay."""
    arguments: frozenset[str] | bool = False
    """Tools whose calls lose their arguments too; True: all."""


@dataclass(frozen=True, slots=True)
class ClearThoughts:
    """Leave out what the model thought, but for that of the newest `keep` turns in which it did."""

    keep: int


Edit: TypeAlias = ClearResults | ClearThoughts


@dataclass(frozen=True, slots=True)
class Cleared:
    """Result of one edit: the number of results, or of turns whose thoughts were removed, and their tokens."""

    what: Literal["results", "thoughts"]
    number: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """Client's request to compact its history; it gets the compaction, and sends that back."""

    trigger: int | None = None
    """Tokens from which on it is, though the window may be larger; None: where Spillway does it anyway."""
    instructions: str = ""
    """Instructions for the summary, instead of Spillway's; empty: those."""
    pauses: bool = False
    """Whether the answer ends behind a compaction."""
    now: bool = False
    """Whether the request is for a compaction and nothing else."""
    worded: bool = True
    """Whether the client is given the compaction in words, too."""
    sealed: bool = True
    """Whether the client gets the compaction to send it back; False: it knows nothing of such, and finds the checkpoint."""
    lead: int = 0
    """How many of the leading system messages, the last ones, are part of the history: clients leave them out with it."""
    fingerprints: Sequence[str] = ()
    """Fingerprints of messages that earlier compactions replaced, which this one builds on."""


@dataclass(frozen=True, slots=True)
class SealedCompaction:
    """A compaction that a client sends back: it replaces all of the history before it."""

    seal: str
    """Of the messages that take the place of those before (`proxy.core.history.sealed`); empty: there is none."""
    words: str
    """The same in words, for who can't open the seal; empty: there are none."""


@dataclass(slots=True)
class Managed:
    """Results of a client's edits and compaction, as its answer reports them."""

    cleared: Sequence[Cleared] = ()
    sealed_compaction: SealedCompaction | None = None
    """The compaction that the answer begins with."""
    ended: bool = False
    """Whether the answer holds nothing else."""
    spent: tuple[int, int] = (0, 0)
    """Prompt and completion tokens of the summaries for it."""
    hands_over: bool = False
    """Whether the client asks for a summary of its own history, which it throws away afterwards."""


# -- requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Reasoning options of a client; each backend gets them in its own fields."""

    on: bool | None = None
    """Whether it is to think at all; None: the model's default."""
    effort: str = ""
    """One of `EFFORTS`; empty: the model's default."""
    budget: int | None = None
    """The most tokens of it; None: no bound but the answer's."""
    openai: str = ""
    """OpenAI's own value, where the client used that; empty: it did not."""

    def nearest(self, known: tuple[str, ...]) -> str:
        """Find the nearest effort that a backend knows; empty if the client set none.

        `known` in the order of `EFFORTS`.
        """
        if not self.effort:
            return ""
        least, *_ = known
        return max((each for each in known if _rank(each) <= _rank(self.effort)), key=_rank, default=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Fields that nobody here knows survive in `body`."""

    body: Mapping[str, Any]
    """Messages and options, by their neutral names."""
    model: str = ""
    """The id that the client asked for; empty if it named none."""
    stream: bool = False
    max_tokens: int | None = None
    """The client's bound on completion tokens; None: none."""
    bounds: tuple[str, ...] = ("max_tokens",)
    """Options by which it bounds the answer, or would."""
    wants_usage: bool | None = None
    """Whether the client wants usage in the stream; None: it said nothing about it."""
    choices: int = 1
    """How many answers are asked for."""
    structured: bool = False
    """Whether the answer has to follow a format, into which nothing may be written."""
    continues: bool = False
    """Whether the model is to go on with the last message, which the client began for it."""
    thinking: Thinking | None = None
    """How much the model is to think; None: the client says nothing of it, or says it to the backend itself."""
    edits: Sequence[Edit] = ()
    """Edits that the client asks for in its history, in this order."""
    compaction: CompactionRequest | None = None
    """Client's request for compaction; None: it knows nothing of compactions."""
    restored: Sequence[Message] = ()
    """Messages under the seal of the compaction that it sends back, which stand behind its leading system messages."""
    conversation: str = ""
    """Client's name of the conversation in the body; empty: it gives none."""
    raw: bytes | None = None
    """The body as it came, where it can go upstream as it is."""
    wire: bytes | None = None
    """The same with its content-encoding; None: it has none."""
    native: bytes | None = None
    """The body as a request of Ollama's `/api/chat`, where an Ollama can be sent it as it is."""
    for_ollama: Mapping[str, Any] | None = None
    """Fields that only an Ollama is sent: `options` that other backends do not have, `keep_alive`, `think` …; None: there are none."""
    form: Any = None
    """The body as its dialect parsed it, opaque to everyone else."""
    reading: "Callable[[], Generator[Fetch | Unseal, Any, Request]] | None" = None
    """Flow that completes a request which refers to stored documents; it has no messages until then. None: it is complete."""
    keeping: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]] | None = None
    """Builds the name and the document to store from the complete answer; None: it is not stored."""

    @property
    def messages(self) -> list[Message]:
        """The conversation as the client sent it."""
        messages: list[Message] = self.body["messages"]
        return messages

    @property
    def background(self) -> bool:
        """Return whether it looks like a client's own background task (Open WebUI 0.12: titles, tags, follow-ups)."""
        messages = self.messages
        if self.stream or len(messages) != 1 or self.body.get("tools"):
            return False
        content = messages[0].get("content")
        return isinstance(content, str) and content.startswith(_CHORE)

    def changed(self, **fields: Any) -> "Request":
        """The same request with other messages or options; one given as None is removed."""
        body = {**self.body, **fields}
        gone = [name for name, value in fields.items() if value is None]
        for name in gone:
            del body[name]
        return replace(self, body=body, raw=None, wire=None, native=None)

    def bounded(self, tokens: int) -> "Request":
        """The same request with a bound on its answer, which it had not."""
        return replace(self.changed(**{self.bounds[0]: tokens}), max_tokens=tokens)


def leading_system(messages: Sequence[Message]) -> int:
    """Count the system or developer messages that open the conversation."""
    count = 0
    for message in messages:
        if message.get("role") not in SYSTEM_ROLES:
            break
        count += 1
    return count


def is_text_part(part: Any) -> bool:
    """Return whether a content part has text."""
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message whose content is a string or a list of parts; other parts are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if is_text_part(part))
    return ""


def in_openais_word(word: str) -> Thinking | None:
    """Parse OpenAI's `reasoning_effort`; None if it is empty."""
    if not word:
        return None
    if word == NONE:
        return Thinking(on=False, openai=word)
    return Thinking(effort=word if word in EFFORTS else "", openai=word)


def effort_in(fields: Mapping[str, Any], name: str) -> str:
    """Read an effort from a field; empty where it is none."""
    text = fields.get(name)
    return text if text in EFFORTS else ""


def _rank(effort: str) -> int:
    return EFFORTS.index(effort)
