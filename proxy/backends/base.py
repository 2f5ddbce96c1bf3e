"""A backend: a server with OpenAI's API of which nothing more is known, and what the known kinds override of it.

What is asked of a server are flows that yield requests and receive replies. They run without a network: a test sends them
recorded replies, `proxy.net.prober` real ones.
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

    Method `FILE` reads the beginning of a file on this machine instead, if it is one, as text of a character for each byte.
    """

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


class Memory(NamedTuple):
    """Memory for models, in bytes."""

    free: int
    total: int


class SlotState(NamedTuple):
    """A place in which a server holds one prompt: the tokens there, and the number of its newest task, -1 for none."""

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
    """Answer without a request."""
    yield from ()
    return value


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in the backend's list: its id, the object as it was sent, and what the list tells."""

    id: str
    raw: dict[str, Any]
    profile: ModelProfile = field(default_factory=ModelProfile)


class Backend:
    """One kind of backend. Instances hold no state."""

    kind = "generic"
    title = "the backend"
    """Its name in texts for users."""
    port = 0
    """Port on which it listens as installed, and is looked for; 0 if it has none of its own."""
    domains: tuple[str, ...] = ()
    """Ends of the host names of a service, which tell the kind without a request."""
    bills_tokens = False
    """Whether tokens cost money even if it is reached in one's own network."""
    start = "start it"
    """What a user does if it does not answer."""
    listen = "have it listen on all addresses (0.0.0.0)"
    """What a user does if other machines can't reach it; empty for a service."""
    add_model = "have it load one; if it is another program, correct the address"
    """What a user does if it lists no models."""
    unauthorized: tuple[JsonObject, ...] = ()
    """Bodies of replies to a request without its key, other than in OpenAI's form."""
    speaks_ollama = False
    """Whether it takes chats at Ollama's `/api/chat`, rather than as chat completions."""
    continuations: tuple[Continuation, ...] = (Continuation.QUOTE,)
    """Ways to continue a partial answer, best first."""
    ask_running_counts: Mapping[str, Any] = {}
    """Fields to merge into a streamed request so that each chunk tells its token count; {} if there are none."""
    shifts_silently = False
    """Whether a window that fills up loses its beginning without a word, instead of ending the answer."""
    fixed_windows = False
    """Whether windows stay as they are while the server runs, so that they may be believed for longer."""
    reports_usage = False
    """Whether a stream ends with usage although nobody asked for it."""
    fits_answer = False
    """Whether a prompt is shortened without a word until the answer's bound fits into the window beside it."""
    refuses_long_answers = False
    """Whether a request is refused whose answer may be longer than the window, instead of ending the answer there."""
    ends_at_window = False
    """Whether an answer ends where the window does, however large a bound its request allows."""
    hosted = False
    """Whether it may be a service: that may know what marks for caches (`cache_control`) mean, which others ignore or refuse.
    Others keep the prompt that they read last, so that one which goes on with it is read from there on, and cost but time."""
    cache_marks: Mapping[str, Literal["request", "message"]] = {}
    """Where a prompt is marked, by the vendor of its model, if the service caches nothing else of that vendor's."""
    continues_reasoning = False
    """Whether a last message that holds only reasoning is gone on with by the flags (llama.cpp, seen on b11549)."""
    repeats_prefill = False
    """Whether an answer that is sent whole begins with what the client began of it (llama.cpp, seen on b11549)."""
    sets_windows = False
    """Whether it can be asked to load a model with a window."""
    reloads = False
    """Whether each request names the window, and has a model that was loaded with another one loaded again."""
    guards_memory = False
    """Whether it refuses by itself to load what would not fit into memory."""
    wider = ""
    """What a user does for a larger window, as the rest of a sentence; empty: nothing can be done."""
    owner = ""
    """Whom its list of models names as their owner, where that tells the kind; empty: anybody."""
    native: tuple[str, ...] = ()
    """Paths that no other kind has, as globs: who asks for one means this kind, whichever comes first."""
    admin: tuple[str, ...] = ()
    """Its own requests that change, reveal or take away more than an answer costs, as globs over `METHOD /path`: lower
    case behind the method, and beginning anywhere in the path."""

    def detect(self) -> Flow[bool]:
        """Tell by the shape of replies whether a server is of this kind."""
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
        """Read all there is to know of one model, without loading it.

        A model that is not loaded has `provisional` set; a window that nothing reports is None: then requests are not managed.
        """
        named = entries_by_name(openai_models((yield MODELS).json))
        return self.listed_profile(named.get(model, {}), named)

    def listed_profile(self, entry: JsonObject, named: Mapping[str, JsonObject]) -> ModelProfile:
        """Read an entry of the list of models, which `named` has whole."""
        return ModelProfile(
            window=window(entry, "model list"),
            trained_window=trained(entry, "model list"),
            continuation=Fact(Continuation.QUOTE, "no other way is known", Trust.FALLBACK),
        )

    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Load a model the way the request `body`, which is about to be sent, would load it; by default all are loaded."""
        return _known(None)

    def load_window(self, model: str, body: Mapping[str, Any], windows: Sequence[int]) -> Flow[int | None]:
        """Load a model for the request `body` with the first of these windows that is granted, and return it; None: none is."""
        return _known(None)

    def fitting_window(self, model: str, memory: Memory | None) -> Flow[int | None]:
        """Compute the largest window that surely fits into memory beside the model; None: that can't be told."""
        return _known(None)

    def stops_on_disconnect(self, body: Mapping[str, Any], profile: ModelProfile) -> bool:
        """Return whether closing a stream stops the generation, and its bill."""
        return True

    def profile_for(self, body: Mapping[str, Any], profile: ModelProfile) -> ModelProfile:
        """Return the profile of its model as it holds for a request with this body."""
        return profile

    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> dict[str, Any]:
        """Request options for a thinking effort, as far as the server's documentation names any; else OpenAI's field."""
        return {"reasoning_effort": thinking.openai} if thinking.openai else {}

    def thinking_bound(self, tokens: int, body: Mapping[str, Any], profile: ModelProfile) -> dict[str, Any]:
        """Request options, instead of those in the `body`, by which the server ends a thought itself; {}: it has none."""
        return {}

    def busy(self, model: str) -> Flow[bool]:
        """Ask whether the backend is at work on any request, whoever sent it; False if it does not report that."""
        return _known(False)

    def slots(self, model: str) -> Flow[Sequence[SlotState]]:
        """Read the slots of a model; empty: it has none, or they can't be read."""
        return _known(())

    def saves_slots(self, model: str) -> Flow[bool | None]:
        """Return whether the server was allowed to save slots to disk; None: it does not tell now."""
        return _known(False)

    def use_slot(self, model: str, action: SlotAction, slot: int, file: str = "") -> Flow[SlotDone | None]:
        """Act on a slot, which waits until it is idle; None: it was refused."""
        return _known(None)

    def count(self, body: dict[str, Any]) -> Flow[int | None]:
        """Exact prompt tokens of a chat completion body; None where the backend has no such endpoint."""
        return _known(None)


class Generic(Backend):
    """Any other server with OpenAI's API."""

    hosted = True
    # OpenAI's own, SGLang's, text-generation-webui's and TabbyAPI's.
    admin = (
        *("DELETE */models/*", "POST */unload", "POST */load_model", "POST */reset"),
        *("* */flush_cache", "* */*_memory_occupation", "POST */model/load", "POST */lora/load", "POST */download"),
    )


class Unknown(Generic):
    """A server that has not told yet what it is: nothing is sent to it that another might refuse."""

    kind = "unknown"

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> dict[str, Any]:
        """None: not even OpenAI's field is taken by all."""
        return {}

    @override
    def saves_slots(self, model: str) -> Flow[bool | None]:
        """It does not tell."""
        return _known(None)


UNKNOWN = Unknown()
