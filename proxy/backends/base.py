"""The base of all kinds of backend: a server with OpenAI's API about which nothing more is known.

Questions to a server are flows, generators that yield requests and receive replies. They need no network: a test sends
them recorded replies, `proxy.net.prober` real ones.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from proxy.backends.fields import entries_by_name, mapping, openai_models, trained, window
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.core.jsontext import JsonObject
from proxy.core.request import Thinking

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe:
    """A small request to the backend. `path` starts at the server's root, without `/v1`: `/props`.

    Method `FILE` instead reads the beginning of a file on this machine, if it exists, as text with one character per byte.
    """

    method: str
    path: str
    json: Any = None
    loads: bool = False
    """Whether the reply may take as long as loading a model."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to a probe. `status` 0: no connection. `json` is None when the body is not JSON."""

    status: int
    json: Any = None


class Memory(NamedTuple):
    """Memory for models, in bytes."""

    free: int
    total: int


class SlotState(NamedTuple):
    """A slot, in which a server holds one prompt: its tokens, and the number of its newest task, -1 for none."""

    busy: bool
    tokens: int
    task: int


class SlotDone(NamedTuple):
    """Tokens, bytes on disk and seconds of an action on a slot."""

    tokens: int
    bytes: int
    seconds: float


SlotAction: TypeAlias = Literal["save", "restore", "erase"]
Flow: TypeAlias = Generator[Probe, Reply, T]
MODELS = Probe("GET", "/v1/models")
"""Lists models in OpenAI's shape."""


def _known(value: T) -> Flow[T]:
    """Make a flow that returns a value without a request."""
    yield from ()
    return value


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in the backend's list: its id, the object as received, and the facts in the list."""

    id: str
    raw: dict[str, Any]
    profile: ModelProfile = field(default_factory=ModelProfile)


class Backend:
    """One kind of backend. Instances hold no state."""

    kind = "generic"
    title = "the backend"
    """Its name in texts for users."""
    # A fact about one kind is an attribute of its class, never a table elsewhere: a kind missing from such a table once
    # made discovery raise, and two tables were matched by position.
    port = 0
    """Default port, on which it is discovered; 0 if it has none of its own."""
    domains: tuple[str, ...] = ()
    """Suffixes of a service's host names, which identify the kind without a request."""
    bills_tokens = False
    """Whether tokens cost money even if it is reached through the user's own network."""
    start = "start it"
    """Advice to the user if it does not answer."""
    listen = "have it listen on all addresses (0.0.0.0)"
    """Advice to the user if other machines cannot reach it; empty for a service."""
    add_model = "have it load one; if it is another program, correct the address"
    """Advice to the user if it lists no models."""
    unauthorized: tuple[JsonObject, ...] = ()
    """Bodies of replies to a request without its key, where they are not in OpenAI's form."""
    speaks_ollama = False
    """Whether chats are sent to Ollama's `/api/chat`, not as chat completions."""
    continuations: tuple[Continuation, ...] = (Continuation.QUOTE,)
    """Ways to continue a partial answer, best first."""
    ask_running_counts: Mapping[str, Any] = {}
    """Fields to merge into a streamed request so that each chunk reports the token count; {} if there are none."""
    shifts_silently = False
    """Whether a full window silently loses its beginning, instead of ending the answer."""
    closes_gaps = False
    """Whether its cache can move up what follows a part that was left out of a prompt."""
    fixed_windows = False
    """Whether windows cannot change while the server runs, so that they may be cached for longer."""
    reports_usage = False
    """Whether a stream ends with usage even if it was not requested."""
    fits_answer = False
    """Whether a prompt is silently shortened until the answer's bound also fits into the window."""
    refuses_long_answers = False
    """Whether it refuses a request whose answer may exceed the window, instead of ending the answer there."""
    ends_at_window = False
    """Whether an answer ends where the window does, whatever bound its request sets."""
    hosted = False
    """Whether it may be a hosted service, which may understand cache marks (`cache_control`); others ignore or refuse them.
    A local server needs no marks: it keeps the last prompt, reads only the new part of the next, and costs nothing but time."""
    cache_marks: Mapping[str, Literal["request", "message"]] = {}
    """Where to put cache marks in a prompt, by the model's vendor, for vendors whose prompts are cached only if marked."""
    continues_reasoning = False
    """Whether the flags also continue a last message that holds only reasoning (llama.cpp, seen on b11549)."""
    repeats_prefill = False
    """Whether an unstreamed answer repeats the beginning that the client gave it (llama.cpp, seen on b11549)."""
    sets_windows = False
    """Whether it can load a model with a requested window."""
    reloads = False
    """Whether each request names a window, and a model that was loaded with another one is reloaded for it."""
    guards_memory = False
    """Whether it refuses to load a model that would not fit into memory."""
    wider = ""
    """Advice to the user for a larger window, as the rest of a sentence; empty if there is none."""
    owner = ""
    """Owner of models in its list, if that identifies the kind; otherwise empty."""
    native: tuple[str, ...] = ()
    """Globs on paths that no other kind has: a request for one goes to a backend of this kind, whichever comes first."""
    admin: tuple[str, ...] = ()
    """Its own administrative requests, which change, reveal or take away more than an answer costs. Globs over `METHOD /path`,
    with the path in lower case; they may match from anywhere in the path."""

    def detect(self) -> Flow[bool]:
        """Detect by the shape of replies whether a server is of this kind."""
        reply = mapping((yield MODELS).json)
        if self.owner:
            return any(entry.get("owned_by") == self.owner for entry in openai_models(reply))
        return reply.get("object") == "list" and isinstance(reply.get("data"), list)

    def models(self) -> Flow[list[Listed]]:
        """List the models; empty when the server has none or does not answer in a known shape."""
        entries = openai_models((yield MODELS).json)
        named = entries_by_name(entries)
        return [Listed(entry["id"], entry, self.listed_profile(entry, named)) for entry in entries]

    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read everything about one model, without loading it.

        A model that is not loaded has `provisional` set. The window is None if nothing reports it; requests are then not managed.
        """
        named = entries_by_name(openai_models((yield MODELS).json))
        return self.listed_profile(named.get(model, {}), named)

    def listed_profile(self, entry: JsonObject, named: Mapping[str, JsonObject]) -> ModelProfile:
        """Read an entry of the list of models; `named` is the complete list, by name."""
        best = self.continuations[0]
        return ModelProfile(
            window=window(entry, "model list"),
            trained_window=trained(entry, "model list"),
            continuation=Fact(
                best, "no other way is known" if best is Continuation.QUOTE else self.title, Trust.FALLBACK
            ),
        )

    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Load a model as the request `body`, which is about to be sent, would; does nothing where all models are always loaded."""
        return _known(None)

    def load_window(self, model: str, body: Mapping[str, Any], windows: Sequence[int]) -> Flow[int | None]:
        """Load a model for the request `body` with the first of these windows that is granted; return it, or None."""
        return _known(None)

    def fitting_window(self, model: str, memory: Memory | None) -> Flow[int | None]:
        """Compute the largest window that certainly fits into memory beside the model; None if unknown."""
        return _known(None)

    def stops_on_disconnect(self, body: Mapping[str, Any], profile: ModelProfile) -> bool:
        """Return whether closing a stream stops the generation, and its bill."""
        return True

    def profile_for(self, body: Mapping[str, Any], profile: ModelProfile) -> ModelProfile:
        """Return the profile of its model as it applies to a request with this body."""
        return profile

    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> dict[str, Any]:
        """Build request options for a thinking effort: the server's own if its documentation names any, else OpenAI's field."""
        return {"reasoning_effort": thinking.openai} if thinking.openai else {}

    def thinking_bound(self, tokens: int, body: Mapping[str, Any], profile: ModelProfile) -> dict[str, Any]:
        """Build request options that replace those in the `body` and make the server itself end the thinking; {} if it has none."""
        return {}

    def busy(self, model: str) -> Flow[bool]:
        """Ask whether the backend is working on any request, including other programs'; False if it does not report that."""
        return _known(False)

    def slots(self, model: str) -> Flow[Sequence[SlotState]]:
        """Read the slots of a model; empty if it has none, or if they cannot be read."""
        return _known(())

    def saves_slots(self, model: str) -> Flow[bool | None]:
        """Ask whether the server is configured to save slots to disk; None if it does not answer that now."""
        return _known(False)

    def use_slot(self, model: str, action: SlotAction, slot: int, file: str = "") -> Flow[SlotDone | None]:
        """Act on a slot as soon as it is idle; return None if the server refused."""
        return _known(None)

    def count(self, body: dict[str, Any]) -> Flow[int | None]:
        """Count the exact prompt tokens of a chat completion body; None if the backend has no such endpoint."""
        return _known(None)


class Generic(Backend):
    """Any other server with OpenAI's API."""

    hosted = True
    # Paths of OpenAI itself, SGLang, text-generation-webui and TabbyAPI.
    admin = (
        *("DELETE */models/*", "POST */unload", "POST */load_model", "POST */reset"),
        *("* */flush_cache", "* */*_memory_occupation", "POST */model/load", "POST */lora/load", "POST */download"),
    )


class Unknown(Generic):
    """A server whose kind is not known yet: it is sent nothing that some kind might refuse."""

    kind = "unknown"

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> dict[str, Any]:
        """Build no options: not even OpenAI's field is accepted by every kind."""
        return {}

    @override
    def saves_slots(self, model: str) -> Flow[bool | None]:
        """Return None: not known yet."""
        return _known(None)


UNKNOWN = Unknown()
