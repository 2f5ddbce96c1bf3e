"""A request in the neutral form, the only form that the code between client and backend sees.

Messages and options have their names of chat completions (OpenAI API reference, "Create chat completion", 2026), because
every backend speaks that dialect; a dialect with other names translates when it reads a body. Anything that dialects do
not share is left out: bytes, paths, frames, and the fields in which a client expresses a wish.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Message: TypeAlias = dict[str, Any]

THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Fields with a message's reasoning as text; Spillway writes the first."""
SIGNED = "reasoning_details"
REASONING = (*THOUGHT_FIELDS, SIGNED)
"""All fields of reasoning: as text, and as blocks that are signed or encrypted (OpenRouter)."""
SYSTEM_ROLES = frozenset({"system", "developer"})
_CHORE = "### Task:"

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""Reasoning efforts, the least first (OpenAI's `reasoning.effort`, Anthropic's `output_config.effort`, Ollama's `think`)."""
NONE = "none"
"""OpenAI's effort for a model that should not think."""
COMPACTION = "compaction"
"""Clients' name for a compacted history."""


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
    """Leave out old tool results once the prompt exceeds `over_tokens`, or the history `over_results`."""

    over_tokens: int | None = None
    over_results: int | None = None
    keep: int = 3
    """Number of newest results that stay."""
    at_least: int = 0
    """Tokens that must be saved; otherwise nothing is left out."""
    spared: frozenset[str] = frozenset()
    """Tools whose results stay."""
    arguments: frozenset[str] | bool = False
    """Tools whose calls lose their arguments too; True for all."""


@dataclass(frozen=True, slots=True)
class ClearThoughts:
    """Leave out the model's reasoning, except in the newest `keep` turns that have any."""

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
    """Prompt tokens at which to compact, even if the window is larger; None to leave the point to Spillway."""
    instructions: str = ""
    """Instructions for the summary; empty for Spillway's own."""
    pauses: bool = False
    """Whether the answer ends after a compaction."""
    now: bool = False
    """Whether the request is for a compaction and nothing else."""
    worded: bool = True
    """Whether the client also gets the compaction in words."""
    sealed: bool = True
    """Whether the client gets a seal to send back; if not, its next request is matched with a checkpoint."""
    lead: int = 0
    """Number of leading system messages, counted from the last, that belong to the history: clients drop them with it."""
    fingerprints: Sequence[str] = ()
    """Fingerprints of messages that earlier compactions replaced, which this one builds on."""


@dataclass(frozen=True, slots=True)
class SealedCompaction:
    """A compaction that a client sends back: it replaces all of the history before it."""

    seal: str
    """Seal of the messages that replace the earlier ones (`proxy.core.history.sealed`); empty if there is none."""
    words: str
    """The compaction in words, for an instance that cannot open the seal; empty if there are none."""


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
    # A model is asked even if its summaries failed before: what the answer leaves out is gone for good.
    hands_over: bool = False
    """Whether the client asks for a summary of its own history, which it throws away afterwards."""


# -- requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A client's reasoning options; each backend gets them in its own fields."""

    on: bool | None = None
    """Whether the model should think at all; None for the model's default."""
    effort: str = ""
    """One of `EFFORTS`; empty for the model's default."""
    budget: int | None = None
    """Maximum tokens of reasoning; None if only the answer is bounded."""
    openai: str = ""
    """OpenAI's own value, if the client used it; otherwise empty."""

    @property
    def of_three(self) -> str:
        """The nearest of the efforts that every server knows, `low`, `medium` and `high`; empty if the client set none."""
        return {"minimal": "low", "xhigh": "high", "max": "high"}.get(self.effort, self.effort)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Fields unknown to Spillway survive in `body`."""

    body: Mapping[str, Any]
    """Messages and options, under their neutral names."""
    model: str = ""
    """Model id that the client asked for; empty if it named none."""
    stream: bool = False
    max_tokens: int | None = None
    """The client's bound on completion tokens; None if it set none."""
    bounds: tuple[str, ...] = ("max_tokens",)
    """Names of the options that bound the answer's length; Spillway sets its own bound under the first."""
    wants_usage: bool | None = None
    """Whether the client wants usage in the stream; None if it did not say."""
    choices: int = 1
    """Number of answers requested."""
    structured: bool = False
    """Whether the answer must follow a format, so that Spillway may not insert text."""
    continues: bool = False
    """Whether the model should continue the last message, which the client began for it."""
    thinking: Thinking | None = None
    """Reasoning options; None if the client sets none, or sets them in the backend's own fields."""
    edits: Sequence[Edit] = ()
    """Edits of the history requested by the client, in order."""
    compaction: CompactionRequest | None = None
    """The client's request for compaction; None if it made none."""
    command: tuple[str, str] | None = None
    """Command to Spillway with what follows its name; it ended the conversation, and is not among the messages."""
    restored: Sequence[Message] = ()
    """Messages from the seal of a compaction that the client sends back; they follow its leading system messages."""
    conversation: str = ""
    """The client's name for the conversation, from the body; empty if it gives none."""
    raw: bytes | None = None
    """The body as received, if it can go upstream unchanged."""
    wire: bytes | None = None
    """The same body with its content-encoding; None if it has none."""
    native: bytes | None = None
    """The body as a request of Ollama's `/api/chat`, if it can go to an Ollama unchanged."""
    for_ollama: Mapping[str, Any] | None = None
    """Fields for Ollama only: `options` that other backends lack, `keep_alive`, `think` …; None if there are none."""
    form: Any = None
    """The body as its dialect parsed it, opaque to all other code."""
    reading: "Callable[[], Generator[Fetch | Unseal, Any, Request]] | None" = None
    """Flow that completes a request which refers to stored documents, and has no messages until then; None if complete."""
    keeping: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]] | None = None
    """Builds the name and content of the document to store from the complete answer; None if the answer is not stored."""

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
        """Return the request with other messages or options; one given as None is removed."""
        body = {**self.body, **fields}
        gone = [name for name, value in fields.items() if value is None]
        for name in gone:
            del body[name]
        return replace(self, body=body, raw=None, wire=None, native=None)

    def bounded(self, tokens: int) -> "Request":
        """Return the request, which has no bound on its answer, with one."""
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
    """Return the text of a message whose content is a string or a list of parts; parts without text are left out."""
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
    """Read an effort from a field; empty if it is not one of `EFFORTS`."""
    text = fields.get(name)
    return text if text in EFFORTS else ""
