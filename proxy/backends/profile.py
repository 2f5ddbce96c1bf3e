"""Capabilities of a model, as far as they are known, with the origin of every field."""

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
"""The same in words: what a model wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRules:
    """Demands of a model's chat template beyond those of every backend."""

    alternate: bool = False
    """User and assistant have to take turns, beginning with the user; tool batches do not count."""
    one_system: bool = False
    """A system message is refused anywhere but at the very beginning, and so is the role `developer`."""
    no_system: bool = False
    """Any is refused: `without_system` is to be applied to what is sent."""
    no_developer: bool = False
    """The role `developer` is refused."""
    ends_with_user: bool = False
    """An answer at the end is refused, be it to be continued."""
    thoughts: bool = False
    """Answers are refused without their reasoning: those with calls (Moonshot), and what follows them in their turn (DeepSeek)."""
    signatures: bool = False
    """Calls are refused without the signature of the reasoning that led to them (Gemini)."""
    no_extras: bool = False
    """Reasoning in a message is refused (Groq, Mistral)."""
    keep_last: bool = False
    """The last message is an answer to be continued, which may be empty."""


class Trust(IntEnum):
    """Trust in the source of a value; of two values for one field the more trusted one wins."""

    FALLBACK = 0
    """Nobody said anything: a conservative default."""
    TRAINED = 1
    """What the model was trained for: an upper bound, rarely what is loaded."""
    LISTED = 2
    """What a catalogue lists."""
    CONFIGURED = 3
    """What the backend is configured to use when it loads the model, or loaded it with last."""
    LOADED = 4
    """What the loaded instance says of itself."""
    LEARNED = 5
    """What an error named, the freshest number there is, or what was seen often enough; believed for a time."""
    REQUESTED = 6
    """What the request itself has the model loaded with."""
    USER = 7
    """What the user set."""


class Continuation(StrEnum):
    """Ways to have a backend continue a partial answer."""

    FLAGS = "continue_final_message"
    """Trailing assistant message with `continue_final_message: true, add_generation_prompt: false`."""
    TRAILING = "trailing_assistant"
    """Trailing assistant message alone."""
    QUOTE = "user_turn"
    """The partial answer as a finished turn, then a user turn that quotes its end and asks to go on."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value, where it came from (for people), and how far to believe it."""

    value: T
    origin: str
    trust: Trust


def value_of(fact: Fact[T] | None) -> T | None:
    """Return the value of a fact; None: nobody told it."""
    return None if fact is None else fact.value


class Provider(NamedTuple):
    """One of those who serve a model behind one API (OpenRouter)."""

    name: str
    tag: str
    """Slug of its endpoint: `deepinfra/fp8`."""
    window: int | None
    """Tokens; None: not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model on one backend. A field that nobody told is None.

    `window` and `trained_window` are in tokens; `window` is the effective context window of one request
    now, `trained_window` what the model was made for.
    """

    window: Fact[int] | None = None
    trained_window: Fact[int] | None = None
    max_output: Fact[int] | None = None
    tools: Fact[bool] | None = None
    """Whether the server takes `tools` for this model and answers with calls, by whatever prompt format of its
    own. None: unknown, so they are sent as they are and an error tells."""
    streams: Fact[bool] | None = None
    """Whether its answers can be streamed. None: unknown, so that is asked for and an error tells."""
    template_rules: Fact[frozenset[str]] | None = None
    """Demands of its chat template on roles. None: unknown, so its id tells the family's, and errors tell others."""
    vision: Fact[bool] | None = None
    thinks: Fact[bool] | None = None
    """Whether it may be told how much to think; to others some servers refuse that."""
    continuation: Fact[Continuation] | None = None
    """The way to continue that is tried first."""
    refused_continuations: Fact[frozenset[Continuation]] | None = None
    """Ways that the backend refused for this model lately."""
    tokenizer: Fact[str] | None = None
    """Architecture, tokenizer name or file: a hint for choosing a vocabulary."""
    counts_answers: Fact[bool] | None = None
    """Whether a prompt is refused that leaves no room for the bound of its answer."""
    rolls_back: Fact[bool] | None = None
    """Whether its cache can be cut back to any token; False for recurrent and hybrid models, and sliding windows."""
    providers: Fact[tuple[Provider, ...]] | None = None
    provisional: bool = False
    """The model is not loaded: what it is loaded with next may differ."""

    @property
    def loaded_window(self) -> int | None:
        """Tokens of the window that a loaded instance reports; None: none does."""
        return self.window.value if self.window is not None and self.window.trust is Trust.LOADED else None

    @property
    def demands(self) -> frozenset[str]:
        """Demands of its chat template, or its service, as far as they are known."""
        return frozenset() if self.template_rules is None else self.template_rules.value

    def ways(self, offered: Iterable[Continuation]) -> list[Continuation]:
        """Ways to continue an answer, best first and never none: the profile's own, then those `offered` by the backend.

        What was refused is left out, but for a way that the user set. Quoting is what every chat model understands.
        """
        chosen = self.continuation
        refused = value_of(self.refused_continuations) or frozenset()
        first = [chosen.value] if chosen is not None else []
        if chosen is not None and chosen.trust is Trust.USER:
            refused -= {chosen.value}
        known = dict.fromkeys([*first, *offered, Continuation.QUOTE])
        return [way for way in known if way not in refused] or [Continuation.QUOTE]

    def as_json(self, expires_in: Mapping[str, float]) -> dict[str, Any]:
        """Return value, origin and trust by field, as JSON, and in how many seconds a lesson expires."""
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
"""By host and model: what services document ("Thinking Mode", "Thinking models", "Thought signatures", 2026), so that not even a
first request is refused. Models before these are left out: of those it is not known that they take it."""


def documented(host: str, model: str) -> ModelProfile:
    """Return what the service at a host demands of a model's conversations."""
    rules = frozenset(rule for row, rule in _DOCUMENTED if row.search(f"{host}/{model}"))
    return ModelProfile(template_rules=Fact(rules, "documentation", Trust.LISTED) if rules else None)


def profile_from_settings(settings: Settings, model: str) -> ModelProfile:
    """Return the facts that the user gave about a model, at the highest trust."""
    values: dict[str, Any] = {"tools": False} if settings.for_model(model).tool_mode == "emulated" else {}
    for each in settings.matching(model):
        set_here = {name: getattr(each, name) for name in ("window", "tools", "vision", "tokenizer", "continuation")}
        values |= {name: value for name, value in set_here.items() if value not in (None, "auto")}
    if "continuation" in values:
        values["continuation"] = Continuation(values["continuation"])
    facts: dict[str, Any] = {name: Fact(value, "setting", Trust.USER) for name, value in values.items()}
    return ModelProfile(**facts)


def merge_profiles(*profiles: ModelProfile) -> ModelProfile:
    """Layer profiles: per field the most trusted fact wins, of equally trusted ones the later.

    A window the user set gives way only to a *smaller* one that was learnt: the backend would refuse, or cut,
    what the user promised.
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
