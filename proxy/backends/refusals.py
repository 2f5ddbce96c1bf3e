"""Recognising why a backend refused a request, and deciding what to do about it.

A refusal for length is read by `proxy.backends.overflow`. No two backends use the same words to refuse tools, streams or roles, and
some wrap another's words as a JSON string inside their own error, so the complete text of an error is searched for known wordings.
Not every error that mentions tools refuses them: a malformed schema, a call of an unknown tool or a result without its call are
the client's mistakes.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from proxy.backends.errors import SentRequest, error_text
from proxy.backends.overflow import Overflow
from proxy.backends.profile import TEMPLATE_RULES, Continuation, TemplateRule

MOST_SHORTENED = 2
"""Times in a row that a prompt is shortened after a refusal for its size."""
MOST_RETRIES = 3
"""Times in a row that a request to continue an answer is repeated to a backend that is not ready."""
FIRST_RETRY = 0.5
"""Seconds before the first retry, doubled for each further one, if the backend names no time itself."""
LONGEST_RETRY = 30.0
"""Longest `Retry-After` that is honoured, in seconds; a backend that asks for more is given up."""
Feature: TypeAlias = Literal["tools", "streams", "thinks"] | TemplateRule


@dataclass(frozen=True, slots=True)
class FeatureRefusal:
    """A request refused for its tools, its stream, its bound of thinking or its roles; `origin` and `quoted` as for `Overflow`."""

    feature: Feature
    origin: str
    quoted: bool = False


# "… does not support tools together with response_format" is about the request, not about the model.
_NOT_WITH = r"(?!['`\"]? (?:and|along|alongside|in combination|together|when|while|with)\b)"


_Rows: TypeAlias = tuple[tuple[str, re.Pattern[str]], ...]
"""Pairs of a wording's origin and its pattern."""


def _compiled(*rows: tuple[str, str]) -> _Rows:
    return tuple((origin, re.compile(text, re.IGNORECASE | re.DOTALL)) for origin, text in rows)


_TOOLS = _compiled(
    # From the servers' sources, or from errors that users quote in their trackers.
    ("Ollama", rf"does(?: not|n't) support tools\b{_NOT_WITH}"),
    ("OpenRouter", r"no endpoints found that support tool use"),
    # The last two before the chat formats (end of 2024), and before they were streamed (spring of 2025).
    ("llama.cpp", r"tools param requires --jinja|unsupported param: tools\b|cannot use tools with stream"),
    # `"auto" tool choice …`, and in later versions `tool_choice="required" …` and named ones.
    ("vLLM", r"requires (?:--enable-auto-tool-choice and )?--tool-call-parser to be set"),
    ("DeepSeek", rf"does(?: not|n't) support function calling\b{_NOT_WITH}"),
    ("Bedrock", rf"does(?: not|n't) support tool use\b{_NOT_WITH}"),
    (
        "Groq, DeepInfra or OpenAI",
        r"(?<!parallel )(?<![\w.])(?:tools|tool calling)['`\"]? is not supported (?:with this|for this|for) model",
    ),
    ("LiteLLM", r"does not support parameters: [\[{][^\]}]{0,100}?'tools'"),
    # These refuse certain values of `tool_choice` only, so nothing is learned about the model's tools.
    ("OpenRouter", r"no endpoints found that support the provided ['`\"]?tool_choice(?P<always>(?!))?"),
    ("DeepSeek", r"does(?: not|n't) support this tool_choice(?P<always>(?!))?"),
)
# Follows the refusal of all streams, not only of those with tools or images.
_OF_MODEL = r"(?P<always>(?= ?(?:[.,;:!\"'\n]|$)| (?:for|by|on|with) (?:this|the) (?:model|server|backend|endpoint)))?"
_STREAMS = _compiled(
    # Applies to one client's credential, so it is never learned.
    ("OpenAI", r"organization must be verified to stream(?P<always>(?!))?"),
    # o1: "stream" does not support `true` with this model.
    ("OpenAI", r'"param": "stream"(?P<always>)'),
    # Servers in Go whose connection can't be flushed say "Streaming unsupported!".
    (
        "gateway",
        rf"\bstream(?:ing)?(?: mode| responses?|=true)?['`\"]? (?:is |are )?(?:not (?:yet )?(?:supported|implemented|allowed|enabled)|unsupported|disabled)(?: yet)?{_OF_MODEL}",
    ),
    (
        "gateway",
        rf"\b(?:does|do)(?: not|n't) support (?:the )?['`\"]?stream(?:ing|ed)?(?: mode| responses?| requests?)?['`\"]?(?: parameter| option)?(?: yet)?{_OF_MODEL}",
    ),
    ("Bedrock", rf"\bmodel is (?:not supported|unsupported) for streaming{_OF_MODEL}"),
)
_TEMPLATE, _REASONING = "chat template", r"\breasoning(?:_content|_details)?\b"
_FEATURES: dict[Feature, _Rows] = {
    "tools": _TOOLS,
    # Errors that templates raise, word for word (Mistral, Gemma, Llama 2; Qwen from 3.5 on), and servers' own.
    "alternate": _compiled(
        (_TEMPLATE, r"\b(?:roles|messages) must alternate\b"),
        ("Mistral", r"unexpected role '\w+' after role '\w+'"),
        (
            "DeepSeek",
            r"\b(?:successive|consecutive) (?:user or assistant |user |assistant |model )?(?:messages|turns|roles)\b",
        ),
    ),
    "ends_with_user": _compiled(
        ("llama.cpp", r"\bprefill is incompatible with|cannot have 2 or more assistant messages at the end"),
        ("Anthropic", r"does not support assistant (?:message )?prefill|must end with a user message"),
        ("Mistral", r"expected last role user\b"),
        ("vLLM", r"add_generation_prompt\W{1,3} to true when the last message is from the assistant"),
        (
            _TEMPLATE,
            r"\blast message (?:must|should|has to) (?:be|have|come) (?:from )?(?:the |a )?(?:role )?\W?user\b",
        ),
    ),
    "one_system": _compiled(
        (_TEMPLATE, r"\bsystem (?:message|prompt) must be (?:at )?(?:the )?(?:beginning|start|first)\b"),
        (_TEMPLATE, r"\bonly [\w, ]{1,40} roles are supported"),
    ),
    "no_system": _compiled(
        (_TEMPLATE, r"\bsystem role (?:is )?not supported"), ("Google", r"developer instruction is not enabled")
    ),
    "no_developer": _compiled(
        (_TEMPLATE, r"\b(?:unexpected|unknown|unsupported|invalid) (?:message )?role\b"),
        ("DeepSeek", r"unknown variant .?developer"),
        ("pydantic", r"input tag .?developer|input should be [^\n]{0,20}'system'[^\n]{0,40}'user'"),
    ),
    # Reasoning beside calls: missing, unsigned, or refused.
    "thoughts": _compiled(("DeepSeek", r"\breasoning(?:_content)?\b.{0,40}?(?:must be passed|missing|required)")),
    "signatures": _compiled(("Google", r"missing (?:a |its )?`?thought_?signature")),
    "no_extras": _compiled(
        ("Groq", rf"(?:extra|unknown)[_ ].{{0,99}}?{_REASONING}|{_REASONING}.{{0,40}}?\b(?:un|not )supported")
    ),
    "streams": _STREAMS,
    # The second wording is proposed (vllm-project/vllm#57830).
    "thinks": _compiled(("vLLM", r"thinking_token_budget (?:is set but reasoning_config|needs the reasoning start)")),
}

_LOADING = re.compile(r"\bloading\b|\bwarming up\b|\b(?:is|being) loaded\b|\bstarting\b", re.IGNORECASE)
_NOT_READY = frozenset({408, 429, 500, 502, 503, 504, 529})
# LM Studio 0.3 (`No models loaded. Please load a model`, `Model unloaded`), llama.cpp's router (`model is not loaded`).
_NOT_LOADED = re.compile(r"no models? loaded|model (?:(?:is|was|has been) )?(?:not loaded|unloaded)", re.IGNORECASE)


def refused_feature(
    status: int, body: bytes, features: Iterable[Feature], sent: SentRequest | None = None
) -> FeatureRefusal | None:
    """Find the first of these features that the model or its server refuses; arguments as for `recognise`."""
    text = error_text(status, body) or ""
    for feature in features:
        for origin, found, quoted in _matches(_FEATURES[feature], text, sent):
            return FeatureRefusal(feature, origin, quoted=quoted or found.groupdict().get("always", "") is None)
    return None


def is_loading(status: int, body: bytes) -> bool:
    """Return whether the server reports that it is starting or loading the model."""
    return status == 503 and _LOADING.search(error_text(status, body) or "") is not None


def template_rules(template: str) -> frozenset[TemplateRule]:
    """Read a chat template's demands on roles from the errors that it raises in its Jinja source."""
    return frozenset(rule for rule in TEMPLATE_RULES if any(row.search(template) for _, row in _FEATURES[rule]))


def is_not_ready(status: int, body: bytes) -> bool:
    """Return whether the same request may succeed later: the server is busy or starting, or the model is not loaded."""
    return status in _NOT_READY or _NOT_LOADED.search(error_text(status, body) or "") is not None


def _matches(rows: _Rows, text: str, sent: SentRequest | None) -> Iterator[tuple[str, re.Match[str], bool]]:
    """Yield origin and match of each wording found, and whether the conversation contains it; quoted parameters do not count."""
    for origin, pattern in rows:
        for found in pattern.finditer(text):
            place = None if sent is None else sent.place(found.group())
            if place != "parameters":
                yield origin, found, place is not None


class Remedy(Enum):
    """Actions upon a refusal."""

    WAIT = "wait"
    """Send it again unchanged once the slots that share a memory have room."""
    SHORTEN = "shorten"
    """Send it again, shortened."""
    EMULATE = "emulate"
    """Send it again, with its tools as text."""
    REPAIR = "repair"
    """Send it again, with roles that the model's chat template accepts."""
    UNSTREAM = "unstream"
    """Send it again without streaming."""
    OTHER_WAY = "other way"
    """Ask for the rest of the answer in the next way to continue."""
    BOUND = "bound"
    """Send it again, with a smaller bound of its answer."""
    GIVE_UP = "give up"
    """Report the error to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Error of a backend in place of an answer."""

    overflow: Overflow | None = None
    feature: FeatureRefusal | None = None
    roomy: bool = False
    """Whether the prompt fits so easily that its own length cannot be the reason."""
    affordable: int | None = None
    """Affordable tokens of an answer; None if the error names none."""
    way: Continuation | None = None
    """Way in which the backend was asked to continue an answer; None for a first request."""

    @property
    def pooled(self) -> bool:
        """Return whether the memory shared by all slots is the reason: no figures, and a prompt that fits easily."""
        return self.overflow is not None and self.overflow.shared and self.roomy


@dataclass
class Spent:
    """Remedies already used by one client's request, over all its attempts, streamed or not."""

    waited: bool = False
    """Whether it has waited for the memory that slots share; reset like `shortened`, as others may have filled it again."""
    in_turn: bool = False
    """Whether it is the one of those that wait whose turn it is, until it ends."""
    bounded: int | None = None
    """Figure that may be the window less the bound of the answer; the bound was lowered to find out."""
    counted: bool = False
    """Whether that bound was lowered because it seems to count towards the window together with the prompt."""
    afforded: bool = False
    shortened: int = 0
    """Times shortened in a row; reset by an attempt that produced output."""
    without: frozenset[Feature] = frozenset()
    """Refused features, which are no longer used."""
    retries: int = 0
    """Retries in a row, reset like `shortened`."""
    corrected: bool = False
    """Whether the model was already asked to correct a tool call that could not be made."""
    loads_since: float = 0.0
    """Time on the outcome's clock, in seconds, when the backend first said that it is loading the model; 0 if it never did."""
    refused: frozenset[Continuation] = frozenset()
    """Refused ways to continue."""

    def corrects(self) -> bool:
        """Return whether the model may be asked to correct a call, which it may be once; the question uses that up."""
        first, self.corrected = not self.corrected, True
        return first

    def retry(self, retry_after: float | None) -> float | None:
        """Count a retry; return the seconds to wait before it, or None if no retry is left.

        `retry_after` is the backend's wish in seconds, or None.
        """
        if self.retries >= MOST_RETRIES or (retry_after or 0) > LONGEST_RETRY:
            return None
        self.retries += 1
        return FIRST_RETRY * 2 ** (self.retries - 1) if retry_after is None else retry_after

    def answered(self) -> None:
        """Reset the counts in a row: the backend accepted the prompt and produced output."""
        self.shortened = self.retries = 0
        self.waited = False


def remedy(refusal: Refusal, spent: Spent) -> Remedy:
    """Choose the remedy for a refusal, and record it as spent.

    This terminates whatever backends answer: a bound is lowered once, each feature is given up once, each other way to continue is
    taken once, and waiting for shared memory and shortening are limited until the model produces output.
    """
    feature, todo = refusal.feature, Remedy.GIVE_UP
    if refusal.overflow is not None:
        todo = _remedy_of(refusal, refusal.overflow, spent)
    elif feature is not None and feature.feature not in spent.without:
        spent.without |= {feature.feature}
        todo = {"tools": Remedy.EMULATE, "streams": Remedy.UNSTREAM}.get(feature.feature, Remedy.REPAIR)
    elif refusal.affordable is not None and not spent.afforded:
        spent.afforded, todo = True, Remedy.BOUND
    elif refusal.way is not None and refusal.way not in spent.refused:
        spent.refused |= {refusal.way}
        todo = Remedy.OTHER_WAY
    return todo


def _remedy_of(refusal: Refusal, overflow: Overflow, spent: Spent) -> Remedy:
    if overflow.bounded and spent.bounded is None:
        spent.bounded = overflow.window
        return Remedy.BOUND
    if refusal.pooled and not spent.waited:
        spent.waited = True
        return Remedy.WAIT
    if spent.shortened < (1 if refusal.pooled else MOST_SHORTENED):
        spent.shortened += 1
        return Remedy.SHORTEN
    return Remedy.GIVE_UP
