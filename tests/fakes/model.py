"""The words shared by all fakes: models, what a brain is asked and what it answers, refusals."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from proxy.core.request import text_of
from tests.fakes.waiting import Gate

Message: TypeAlias = dict[str, Any]
Prefill: TypeAlias = Literal["continue", "new", "echo", "refuse"]
"""What becomes of a trailing assistant message: it is continued; a new answer begins after it; it is continued
and repeated in front of the answer; the request is refused."""


@dataclass(slots=True)
class FakeModel:
    """A model on a fake backend. Windows are in tokens; `window` is the effective one once it is loaded.

    `trained_window` defaults to the window. `template_overhead` counts the tokens that the chat template adds
    per message. A field that is None takes what the kind of backend does by default.
    """

    id: str
    window: int = 4096
    trained_window: int = 0
    tools: bool = True
    vision: bool = False
    loaded: bool = True
    template_overhead: int = 4
    letters: int | None = None
    """Density of the tokenizer: letters per token, at most."""
    thinking: bool = False
    prefill: Prefill | None = None
    max_output: int | None = None
    num_ctx: int | None = None
    """Ollama: the `num_ctx` line of the Modelfile."""
    native: bool = False
    """Ollama: served by the native path, which refuses what does not fit instead of cutting it."""
    shifts: bool | None = None
    """Whether generation goes on, silently, when the window is full."""
    template_drops_last: bool = False
    """vLLM: the chat template removes a final message that is to be continued."""
    embedding: bool = False
    size: int = 1_000_000
    """Bytes of its file."""
    providers: "tuple[Provider, ...]" = ()

    def __post_init__(self) -> None:
        self.trained_window = self.trained_window or self.window


@dataclass(frozen=True, slots=True)
class Provider:
    """One of OpenRouter's endpoints for a model; `window` in tokens."""

    name: str
    window: int
    max_output: int | None = None
    tools: bool = True


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model; `arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What the model is shown: the messages as the backend kept them, without the answer to be continued.

    `prefix` is the partial text it has to go on with; empty when a new answer begins.
    """

    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()
    body: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""
    prefix_reasoning: str = ""
    model: FakeModel = field(default_factory=lambda: FakeModel("fake"))
    prompt_tokens: int = 0
    choice: int = 0

    @property
    def last_user(self) -> str:
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return text_of(message)
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model says: reasoning, then text, then tool calls.

    Text and reasoning may be an endless iterator; they are cut into tokens by the fake's tokenizer unless
    `exact`: then every item is one chunk. `finish` defaults to `stop`, or `tool_calls` if there are any.
    """

    text: str | Iterable[str] = ""
    reasoning: str | Iterable[str] = ""
    tool_calls: Sequence[ToolCall] = ()
    finish: str | None = None
    exact: bool = False
    usage: dict[str, Any] | None = None
    """Replaces fields of the reported usage."""
    error: str | None = None
    """An error in mid-answer, after `after` tokens, in the kind's own shape."""
    cut: bool = False
    """The connection is dropped after `after` tokens."""
    after: int = 0
    gate: Gate | None = None
    raw: Sequence[bytes] | None = None
    """The whole body of the response, byte for byte, one write each: for shapes nobody foresaw."""


Brain: TypeAlias = Callable[[Question], Reply]


class Refused(Exception):
    """The request is answered by an error; `body` is JSON, or bytes sent as they are."""

    def __init__(self, status: int, body: Any, *, overflow: bool = False, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body
        self.overflow = overflow
        self.headers = list(headers)


@dataclass(slots=True)
class Prompt:
    """A chat request as the backend took it in; counts are tokens."""

    model: FakeModel
    name: str
    """The model's name as responses give it."""
    body: dict[str, Any]
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    prefix: str = ""
    prefix_reasoning: str = ""
    echo: bool = False
    """The answer repeats the prefix."""
    limit: int | None = None
    """What the client allows for the answer."""
    room: int | None = None
    """What the window has left for the answer; None: it shifts, there is no end."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    window: int = 0
    """Tokens of the window that holds for this request."""
    lossy: bool = False
    """The backend left something out."""

    def __post_init__(self) -> None:
        self.window = self.window or self.model.window

    @property
    def budget(self) -> int | None:
        """Tokens after which the answer ends for length."""
        bounds = [bound for bound in (self.limit, self.room) if bound is not None]
        return min(bounds) if bounds else None
