"""Known capabilities of a model, with the origin of every field."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from proxy.core.settings import Settings

T = TypeVar("T")

ModelKey: TypeAlias = tuple[str, str]
"""Backend name and model id."""
TemplateRule: TypeAlias = Literal[
    "alternate", "one_system", "no_system", "no_developer", "ends_with_user", "thoughts", "signatures", "no_extras"
]
"""Demands of chat templates and services on the messages of a conversation, named as in `RepairRules`."""
TEMPLATE_RULES: tuple[TemplateRule, ...] = get_args(TemplateRule)
DEMANDS: Mapping[TemplateRule, str] = {
    "alternate": "user and assistant to take turns",
    "one_system": "no system message but the first",
    "no_system": "no system message",
    "no_developer": "no message of a developer",
    "ends_with_user": "no answer at the end",
    "thoughts": "its reasoning back with its answers",
    "signatures": "the signatures of its reasoning back with its calls",
    "no_extras": "no reasoning in messages",
}
"""The same demands in words, to follow "the model wants"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRules:
    """Demands of a model's chat template beyond those of every backend."""

    alternate: bool = False
    """User and assistant must alternate, beginning with the user; tool batches do not count."""
    one_system: bool = False
    """A system message is refused anywhere but at the very beginning, and so is the role `developer`."""
    no_system: bool = False
    """Any system message is refused: `without_system` must be applied to every request."""
    no_developer: bool = False
    """The role `developer` is refused."""
    ends_with_user: bool = False
    """An answer at the end is refused, even one to be continued."""
    thoughts: bool = False
    """Answers without their reasoning are refused: those with calls (Moonshot), and later ones of the same turn (DeepSeek)."""
    signatures: bool = False
    """Calls without the signature of the reasoning that led to them are refused (Gemini)."""
    no_extras: bool = False
    """Reasoning in a message is refused (Groq, Mistral)."""
    keep_last: bool = False
    """The last message is an answer to be continued, which may be empty."""


class Trust(IntEnum):
    """Trust in the source of a value; of two values for one field the more trusted one wins."""

    FALLBACK = 0
    """A conservative default, without any source."""
    TRAINED = 1
    """The model's training: an upper bound, rarely the loaded value."""
    LISTED = 2
    """A catalogue's entry."""
    CONFIGURED = 3
    """The backend's configuration for loading the model, or the value with which it was last loaded."""
    LOADED = 4
    """The loaded instance's own report."""
    LEARNED = 5
    """A figure in an error, which is the freshest there is, or a repeated observation; it expires."""
    REQUESTED = 6
    """The value with which the request itself makes the backend load the model."""
    USER = 7
    """The user's setting."""


class Continuation(StrEnum):
    """Ways to make a backend continue a partial answer."""

    FLAGS = "continue_final_message"
    """Trailing assistant message with `continue_final_message: true, add_generation_prompt: false`."""
    TRAILING = "trailing_assistant"
    """Trailing assistant message alone."""
    QUOTE = "user_turn"
    """The partial answer as a finished turn, then a user turn that quotes its end and asks to go on."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value, its origin in words for people, and how far to trust it."""

    value: T
    origin: str
    trust: Trust


def value_of(fact: Fact[T] | None) -> T | None:
    """Return a fact's value, or None if unknown."""
    return None if fact is None else fact.value


class Provider(NamedTuple):
    """One of several providers of a model behind a single API (OpenRouter)."""

    name: str
    tag: str
    """Slug of its endpoint: `deepinfra/fp8`."""
    window: int | None
    """Context window in tokens; None if it is not listed."""


SMALL = 4096
"""Tokens of a window that is small enough to be a default that nobody chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Facts about one model on one backend. An unknown field is None.

    `window` and `trained_window` are in tokens: `window` is the effective context window of one request now,
    `trained_window` the one that the model was trained for.
    """

    window: Fact[int] | None = None
    trained_window: Fact[int] | None = None
    max_output: Fact[int] | None = None
    tools: Fact[bool] | None = None
    """Whether the server accepts `tools` for this model and answers with calls, in any prompt format of its own. If
    unknown, tools are sent unchanged, and a refusal is learned from."""
    streams: Fact[bool] | None = None
    """Whether its answers can be streamed. If unknown, streams are requested, and a refusal is learned from."""
    # Learned from refusals, too: Codex opens with several developer messages, which templates that take one system
    # message answer with 400 or 500.
    template_rules: Fact[frozenset[str]] | None = None
    """Demands of its chat template on roles. If unknown, those of the family its id names apply, and refusals are learned from."""
    vision: Fact[bool] | None = None
    thinks: Fact[bool] | None = None
    """Whether it accepts options for thinking; some servers refuse them for other models."""
    continuation: Fact[Continuation] | None = None
    """Way to continue that is tried first."""
    refused_continuations: Fact[frozenset[Continuation]] | None = None
    """Ways to continue that the backend recently refused for this model."""
    tokenizer: Fact[str] | None = None
    """Architecture, tokenizer name or file: a hint for choosing a vocabulary."""
    counts_answers: Fact[bool] | None = None
    """Whether a prompt that leaves no room for the bound of its answer is refused."""
    rolls_back: Fact[bool] | None = None
    """Whether its cache can be cut back to any token; False for recurrent and hybrid models, and sliding windows."""
    providers: Fact[tuple[Provider, ...]] | None = None
    provisional: bool = False
    """Whether the model is not loaded, so that it may next be loaded with other values."""

    @property
    def loaded_window(self) -> int | None:
        """Window in tokens that a loaded instance reports, or None."""
        return self.window.value if self.window is not None and self.window.trust is Trust.LOADED else None

    @property
    def has_small_window(self) -> bool:
        """Return whether the window is as small as a default that nobody chose, and the model was made for more."""
        window, trained = value_of(self.window), value_of(self.trained_window)
        return window is not None and trained is not None and window <= SMALL < trained

    @property
    def demands(self) -> frozenset[str]:
        """Known demands of its chat template or its service."""
        return frozenset() if self.template_rules is None else self.template_rules.value

    def ways(self, offered: Iterable[Continuation]) -> list[Continuation]:
        """List the ways to continue an answer, best first, at least one: the profile's own, then those `offered` by the backend.

        Refused ways are left out, except one set by the user. The last resort is quoting, which every chat model understands.
        """
        chosen = self.continuation
        refused = value_of(self.refused_continuations) or frozenset()
        first = [chosen.value] if chosen is not None else []
        if chosen is not None and chosen.trust is Trust.USER:
            refused -= {chosen.value}
        known = dict.fromkeys([*first, *offered, Continuation.QUOTE])
        return [way for way in known if way not in refused] or [Continuation.QUOTE]

    def as_json(self, expires_in: Mapping[str, float]) -> dict[str, Any]:
        """Return value, origin and trust by field, as JSON, with the seconds until a learned value expires."""
        document: dict[str, Any] = {"provisional": self.provisional}
        for name in _FACTS:
            fact = getattr(self, name)
            if fact is None:
                document[name] = None
                continue
            document[name] = {"value": _plain(fact.value), "origin": fact.origin, "trust": fact.trust.name.lower()}
            if fact.trust is Trust.LEARNED and name in expires_in:
                document[name]["expires_in"] = round(expires_in[name])
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, tuple):
        return [each._asdict() for each in value]
    return str(value) if isinstance(value, str) else value


_FACTS = tuple(field.name for field in fields(ModelProfile) if field.name != "provisional")


_DOCUMENTED: tuple[tuple[re.Pattern[str], TemplateRule], ...] = (
    (re.compile(r"^(?:[^/]*\.)?deepseek\.com/"), "thoughts"),
    (re.compile(r"^(?:[^/]*\.)?moonshot\.(?:ai|cn)/.*kimi-k(?:2-thinking|2\.[5-9]|[3-9])", re.IGNORECASE), "thoughts"),
    (re.compile(r"^(?:[^/]*\.)?googleapis\.com/.*gemini-[3-9]", re.IGNORECASE), "signatures"),
)
"""Documented demands by host and model ("Thinking Mode", "Thinking models", "Thought signatures", 2026), so that not even a
first request is refused. Earlier models are left out: it is not known whether they accept these fields."""


def documented(host: str, model: str) -> ModelProfile:
    """Return the documented demands of the service at a host on a model's conversations."""
    rules = frozenset(rule for row, rule in _DOCUMENTED if row.search(f"{host}/{model}"))
    return ModelProfile(template_rules=Fact(rules, "documentation", Trust.LISTED) if rules else None)


def profile_from_settings(settings: Settings, model: str) -> ModelProfile:
    """Return the user's settings for a model as facts of the highest trust."""
    values: dict[str, Any] = {"tools": False} if settings.for_model(model).tool_mode == "emulated" else {}
    for each in settings.matching(model):
        set_here = {name: getattr(each, name) for name in ("window", "tools", "vision", "tokenizer", "continuation")}
        values |= {name: value for name, value in set_here.items() if value not in (None, "auto")}
    if "continuation" in values:
        values["continuation"] = Continuation(values["continuation"])
    facts: dict[str, Any] = {name: Fact(value, "setting", Trust.USER) for name, value in values.items()}
    return ModelProfile(**facts)


def merge_profiles(*profiles: ModelProfile) -> ModelProfile:
    """Merge profiles: in each field the most trusted fact wins, and the later one of equally trusted facts.

    A window set by the user is overridden only by a *smaller* learned one: the backend would refuse or cut a prompt of the
    size that the user promised.
    """
    best: dict[str, Any] = {}
    for profile in profiles:
        for name in _FACTS:
            new, old = getattr(profile, name), best.get(name)
            if new is not None and (old is None or new.trust >= old.trust):
                best[name] = new
    window: Fact[int] | None = best.get("window")
    if window is not None and window.trust is Trust.USER:
        learned = [each.window for each in profiles if each.window is not None and each.window.trust is Trust.LEARNED]
        window = best["window"] = min([window, *learned], key=lambda each: each.value)
    is_settled = window is not None and window.trust in (Trust.LOADED, Trust.USER)
    return ModelProfile(**best, provisional=any(each.provisional for each in profiles) and not is_settled)
