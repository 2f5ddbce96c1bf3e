"""The protocol every kind of backend implements, as flows that yield requests and receive replies.

A flow runs without a network: a test sends it recorded replies, `proxy.net.prober` sends it real ones.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from proxy.backends.profile import Continuation, ModelProfile
from proxy.core.request import Thinking

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe:
    """A small request to the backend. `path` starts at the server's root, without `/v1`: `/props`."""

    method: str
    path: str
    json: Any = None
    loads: bool = False
    """Whether the reply may take as long as loading a model does."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to a probe. `status` 0: no connection. `json` is None when the body is not JSON."""

    status: int
    json: Any = None
    text: str = ""


Flow: TypeAlias = Generator[Probe, Reply, T]


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in the backend's list: its id, the object as it was sent, and what the list tells."""

    id: str
    raw: dict[str, Any]
    profile: ModelProfile = field(default_factory=ModelProfile)


class Backend(Protocol):
    """One kind of backend. Instances hold no state."""

    kind: str
    chat_dialect: str
    """The form in which it takes chats: `chat` for chat completions, `ollama` for `/api/chat`."""
    continuations: tuple[Continuation, ...]
    """Ways to continue a partial answer, best first."""
    ask_running_counts: dict[str, Any]
    """Fields to merge into a streamed request so that each chunk tells its token count; {} if there are none."""
    shifts_silently: bool
    """Whether a window that fills up loses its beginning without a word, instead of ending the answer."""
    fixed_windows: bool
    """Whether windows stay as they are while the server runs, so that they may be believed for longer."""
    drops_functions: bool
    """Whether the older form of tools (`functions`, `function_call`) is left out without a word."""
    reports_usage: bool
    """Whether a stream ends with usage although nobody asked for it."""
    fits_answer: bool
    """Whether a prompt is shortened without a word until the answer's bound fits into the window beside it."""
    refuses_long_answers: bool
    """Whether a request is refused whose answer may be longer than the window, instead of ending the answer there."""
    takes_marks: bool
    """Whether it may know what marks for caches (`cache_control`) mean; others ignore them, or refuse them."""
    continues_reasoning: bool
    """Whether a last message that holds only reasoning is gone on with by the flags (llama.cpp, seen on b11549)."""
    repeats_prefill: bool
    """Whether an answer that is sent whole begins with what the client began of it (llama.cpp, seen on b11549)."""
    keeps_prompts: bool
    """Whether the prompt that was read last stays in memory, so that one which goes on with it is read from there on; and
    reading one costs nothing but time."""
    wider: str
    """What a user does for a larger window, as the rest of a sentence; empty: nothing can be done."""
    native: tuple[str, ...]
    """Paths that no other kind has, as globs: who asks for one means this kind, whichever comes first."""
    admin: tuple[str, ...]
    """Its own requests that change, reveal or take away more than an answer costs, as globs over `METHOD /path`: lower
    case behind the method, and beginning anywhere in the path."""

    def detect(self, url: str) -> Flow[bool]:
        """Tell by the shape of replies whether the server at `url` (root, without /v1) is of this kind."""
        ...

    def models(self) -> Flow[list[Listed]]:
        """List the models; empty when the server has none or does not answer in a known shape."""
        ...

    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read all there is to know of one model, without loading it.

        A model that is not loaded has `provisional` set; a window that nothing reports is None.
        """
        ...

    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Load a model the way the request `body`, which is about to be sent, would load it."""
        ...

    def stops_on_disconnect(self, body: Mapping[str, Any], profile: ModelProfile) -> bool:
        """Return whether closing a stream stops the generation, and its bill."""
        ...

    def profile_for(self, body: Mapping[str, Any], profile: ModelProfile) -> ModelProfile:
        """The profile of its model as it holds for a request with this body."""
        ...

    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> dict[str, Any]:
        """Request options for a thinking effort, as far as the server's documentation names any; else {}."""
        ...

    def busy(self, model: str) -> Flow[bool]:
        """Ask whether the backend is at work on any request, whoever sent it; False if it does not report that."""
        ...

    def count(self, body: dict[str, Any]) -> Flow[int | None]:
        """Exact prompt tokens of a chat completion body; None where the backend has no such endpoint."""
        ...

    def is_for_chats(self, model: str) -> Flow[bool | None]:
        """Ask whether the model has a chat template of its own, so that it can tell roles apart; None if unknown."""
        ...


_NO_FIELDS: dict[str, Any] = {}


class Usual:
    """Defaults that hold for most servers; a kind overrides those in which it differs."""

    chat_dialect = "chat"
    ask_running_counts = _NO_FIELDS
    shifts_silently = False
    fixed_windows = False
    drops_functions = False
    reports_usage = False
    fits_answer = False
    refuses_long_answers = False
    takes_marks = False
    continues_reasoning = False
    repeats_prefill = False
    keeps_prompts = True
    wider = ""
    native: tuple[str, ...] = ()

    def stops_on_disconnect(self, body: Mapping[str, Any], profile: ModelProfile) -> bool:
        """Always: an answer ends, and is billed no further, when its connection does."""
        del body, profile
        return True

    def profile_for(self, body: Mapping[str, Any], profile: ModelProfile) -> ModelProfile:
        """Return the profile as it is: it holds for every request."""
        del body
        return profile

    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> dict[str, Any]:
        """OpenAI's field, in the word that the client used for it: what else such servers take, nobody says."""
        del profile
        return {"reasoning_effort": thinking.openai} if thinking.openai else {}

    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Do nothing: its models are always loaded."""
        del model, body
        return _untold()

    def busy(self, model: str) -> Flow[bool]:
        """Return False: not reported."""
        del model
        yield from ()
        return False

    def count(self, body: dict[str, Any]) -> Flow[int | None]:
        """There is no endpoint that only counts."""
        del body
        return _untold()

    def is_for_chats(self, model: str) -> Flow[bool | None]:
        """Return None: not reported."""
        del model
        return _untold()


def _untold() -> Flow[None]:
    yield from ()
