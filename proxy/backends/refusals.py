"""Recognising why a backend refused a request, and deciding what to do about it.

No two backends say "the prompt is longer than the window" or "this model can't be given tools" alike, and some wrap another's
words as a JSON string inside their own error. So all that an error says is searched for known wordings; statuses and words
that mean something else (authentication, rate limits, loading) are excluded first. Not every error that mentions tools is a
refusal of them: a malformed schema, a call of an unknown tool or a result without its call are the client's to mend.

A refusal is believed as far as its request could prove it: `credible` is the rule. One whose wording stands in the request
itself holds for that request at most.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, TypeAlias, get_args

from proxy.backends.errors import SentRequest, error_text
from proxy.backends.profile import Continuation

UNDERRATED = 2
"""Times as many tokens as the upper bound of its estimate that a prompt may have."""
SMALLEST_WINDOW = 256
"""Tokens; a refusal that names a smaller window is not about the window."""
MOST_SHORTENED = 2
"""Times in a row that a prompt is shortened because it was refused for its size."""
MOST_RETRIES = 3
"""Times in a row that a request to continue an answer is sent again to a backend that is not ready."""
FIRST_RETRY = 0.5
"""Seconds before the first retry, doubled for each further one, where the backend names no time of its own."""
LONGEST_RETRY = 30.0
"""Seconds of `Retry-After` that are waited for; a backend that wants more is given up."""
MOST_WAITS = 12
"""Times that a request waits for a memory that slots share, before the refusal is taken for its own."""
_MOST_TOKENS = 10**9
_SHARED = "llama.cpp or LM Studio"


@dataclass(frozen=True, slots=True)
class Overflow:
    """A refused prompt. `window` and `prompt_tokens` are in tokens, None where the text named no number.

    `origin` says whose wording it was. `prompt_tokens` may be the backend's estimate. `quoted`: it holds for this request at
    most.
    """

    window: int | None
    prompt_tokens: int | None
    origin: str
    quoted: bool = False

    @property
    def shared(self) -> bool:
        """True if the memory of all slots together may be full, rather than this one's."""
        return self.origin == _SHARED


POOL_FULL = Overflow(None, None, _SHARED)
"""The memory of all slots together is full."""


TemplateRule: TypeAlias = Literal["alternate", "one_system", "no_system", "no_developer"]
"""Demands of chat templates on the roles of a conversation, named as in `RepairRules`."""
TEMPLATE_RULES: tuple[TemplateRule, ...] = get_args(TemplateRule)
Feature: TypeAlias = Literal["tools", "streams", "thinks"] | TemplateRule


@dataclass(frozen=True, slots=True)
class FeatureRefusal:
    """A request refused for its tools, its stream, its bound of thinking or its roles; `origin` and `quoted` as for `Overflow`."""

    feature: Feature
    origin: str
    quoted: bool = False


_N = r"\d[\d,]{0,14}"
_P, _W = rf"(?P<prompt>{_N})", rf"(?P<window>{_N})"
# "… does not support tools together with response_format" is about the request, not about the model.
_NOT_WITH = r"(?!['`\"]? (?:and|along|alongside|in combination|together|when|while|with)\b)"


_Rows: TypeAlias = tuple[tuple[str, re.Pattern[str]], ...]
"""Whose wording, and how it is recognised."""


def _compiled(*rows: tuple[str, str]) -> _Rows:
    return tuple((origin, re.compile(text, re.IGNORECASE | re.DOTALL)) for origin, text in rows)


_OVERFLOWS = _compiled(
    # Each with the group it was seen in; the ones that name numbers come first.
    ("llama.cpp", rf"request \({_P} tokens?\) exceeds the available context size \({_W} tokens?\)"),
    ("Ollama", rf"input length \({_P} tokens?\) exceeds the model's maximum context length \({_W} tokens?\)"),
    ("LM Studio", rf"input has {_P} tokens, but the context length only supports {_W} tokens"),
    ("LM Studio", rf"n_keep:? \(?{_P}\)?\s*>=\s*n_ctx:? \(?{_W}"),
    ("LM Studio", rf"keep the first {_P} tokens.{{0,200}}?context length of only {_W} tokens"),
    ("Anthropic", rf"prompt is too long: {_P} tokens? > {_W}"),
    ("gateway", rf"prompt has {_P} tokens, but the configured context size is {_W}"),
    ("Google", rf"input token count \(?{_P}\)? exceeds the maximum number of tokens allowed \(?{_W}"),
    ("vLLM", rf"prompt \(length {_P}\) is longer than the maximum model length of {_W}"),
    ("xAI", rf"maximum prompt length is {_W} but the request contains {_P} tokens"),
    ("Together", rf"input \({_P} tokens\) is longer than the model's context length \({_W} tokens\)"),
    ("gateway", rf"exceeds (?:the )?(?:model's )?maximum context length (?:of )?\(?{_W}"),
    ("gateway", rf"exceeds (?:the )?maximum allowed input length of {_W} tokens"),
    ("OpenRouter", rf"endpoint's maximum context length is {_W} tokens"),
    ("vLLM or OpenAI", rf"maximum context length is {_W} tokens"),
    ("gateway", rf"too large for model with {_W} maximum context"),
    ("gateway", rf"exceeded model token limit(?:: {_W})?"),
    ("gateway", rf"range of input length should be(?: \[\d+, ?{_W})?"),
    ("gateway", rf"tokens?\b[^\n]{{0,80}}?exceeds the limit of {_W}"),
    ("gateway", rf"exceeds the limit of {_W} (?:input )?tokens"),
    ("llama.cpp", r"exceed_context_size_error|the request exceeds the available context size"),
    (_SHARED, r"context size has been exceeded"),
    ("Ollama", r"prompt is longer than the context length|input length exceeds the context length"),
    ("Ollama cloud", r"prompt too long; exceeded (?:max )?context length"),
    ("vLLM", r"max_(?:completion_)?tokens' is too large"),
    # Of the answer's bound alone, before the prompt is looked at (0.32).
    ("vLLM", rf"max_(?:completion_)?tokens=\d+ cannot be greater than max_(?:model_len|total_tokens)={_W}"),
    ("OpenRouter", r"constraint_filtered.{0,2000}context_length|context_length.{0,2000}constraint_filtered"),
    ("OpenRouter", r"error_type\"?: ?\"(?:token_limit_exceeded|string_too_long|payload_too_large)"),
    ("context_length_exceeded", r"context[_ ]length[_ ]exceeded|context_?window_?exceeded"),
    ("gateway", r"exceeds the context window|longer than the model's context length|prompt is too long"),
    ("gateway", r"greater than the context length|context window exceeds limit|maximum prompt length is"),
    ("gateway", r"input token count.{0,80}?exceeds the maximum|input is too long for requested model"),
    ("gateway", r"tokens in request more than max tokens allowed"),
    ("gateway", r"reduce the length of the messages|too many tokens|token limit exceeded|request_too_large"),
    ("gateway", r"exceeds maximum allowed content length|request size cannot exceed"),
)
# Figures that stand elsewhere in the error than the words by which it was recognised.
_WINDOWS = _compiled(
    ("error fields", rf'"n_ctx": ?({_N})'), ("error text", rf"context length is (?:only )?({_N}) tokens")
)
_PROMPTS = _compiled(
    ("error fields", rf'"n_prompt_tokens": ?({_N})'),
    ("OpenAI", rf"messages resulted in ({_N}) tokens"),
    ("vLLM", rf"requested \d+ tokens \(({_N}) in (?:the messages|your prompt)"),
    ("OpenRouter", rf"requested about {_N} tokens \(({_N}) of text input"),  # its total counts the answer as well
    ("vLLM", rf"(?:prompt contains|request has) ({_N}) input tokens"),
    ("Moonshot", rf"token limit: \d+ \(requested: ({_N})\)"),
)
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
    # Of these values of `tool_choice` alone: of the model's tools nothing is to be learned.
    ("OpenRouter", r"no endpoints found that support the provided ['`\"]?tool_choice(?P<always>(?!))?"),
    ("DeepSeek", r"does(?: not|n't) support this tool_choice(?P<always>(?!))?"),
)
# Behind the refusal of all streams, and not of those with tools, of images …
_OF_MODEL = r"(?P<always>(?= ?(?:[.,;:!\"'\n]|$)| (?:for|by|on|with) (?:this|the) (?:model|server|backend|endpoint)))?"
_STREAMS = _compiled(
    # Holds for one client's credential, so it is never learned.
    ("OpenAI", r"organization must be verified to stream(?P<always>(?!))?"),
    # Of o1: that the value `true` of it is not supported with this model.
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
_TEMPLATE = "chat template"
_FEATURES: dict[Feature, _Rows] = {
    "tools": _TOOLS,
    # What templates raise, word for word (Mistral, Gemma, Llama 2; Qwen from 3.5 on), and servers on their own.
    "alternate": _compiled(
        (_TEMPLATE, r"\broles must alternate\b"), ("Mistral", r"unexpected role '\w+' after role '\w+'")
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
    "streams": _STREAMS,
    # The second wording is proposed (vllm-project/vllm#57830).
    "thinks": _compiled(("vLLM", r"thinking_token_budget (?:is set but reasoning_config|needs the reasoning start)")),
}

_OTHER_CAUSE = re.compile(r"rate[ _-]?limit|quota|throttl|per[ -]min|too many requests", re.IGNORECASE)
_BUSY = re.compile(r"\bloading\b|overloaded|at capacity|server (?:is )?busy", re.IGNORECASE)
# "The thinking budget exceeds the limit of 24576 tokens": a limit of something else, unless the match names the context.
_ABOUT_PROMPT = re.compile(r"context|prompt|input|n_ctx|max_model_len|max_total_tokens|messages", re.IGNORECASE)
_ABOUT_OTHERS = re.compile(
    r"max_?(?:completion_?|output_?|new_?)?tokens|(?:output|completion|reasoning|thinking)\b|budget|image|audio|video|"
    r"logit_?bias|logprobs|\bstop\b|embedding",
    re.IGNORECASE,
)
_NOT_READY = frozenset({408, 429, 500, 502, 503, 504, 529})
# LM Studio 0.3 (`No models loaded. Please load a model`, `Model unloaded`), llama.cpp's router (`model is not loaded`).
_NOT_LOADED = re.compile(r"no models? loaded|model (?:(?:is|was|has been) )?(?:not loaded|unloaded)", re.IGNORECASE)


def recognise(status: int, body: bytes, sent: SentRequest | None = None) -> Overflow | None:
    """Tell whether a backend refused a prompt for its length.

    Args:
        status: as for `error_text`.
        body: as for `error_text`.
        sent: the refused request; None: not at hand.
    """
    text = error_text(status, body)
    if text is None or _OTHER_CAUSE.search(text) or (status >= 500 and _BUSY.search(text)):
        return None
    for origin, found, quoted in _matches(_OVERFLOWS, text, sent):
        if _names_other_limit(found, text):
            continue
        window = _figure(found, "window") or _first(_WINDOWS, text, sent)
        if quoted and window is None:
            continue
        return Overflow(window, _figure(found, "prompt") or _first(_PROMPTS, text, sent), origin, quoted)
    return Overflow(None, None, "gateway") if status == 413 else None


def refused_feature(
    status: int, body: bytes, features: Iterable[Feature], sent: SentRequest | None = None
) -> FeatureRefusal | None:
    """Tell which of these features, the first one first, the model or its server does not take; else as `recognise`."""
    text = error_text(status, body) or ""
    for feature in features:
        for origin, found, quoted in _matches(_FEATURES[feature], text, sent):
            return FeatureRefusal(feature, origin, quoted=quoted or found.groupdict().get("always", "") is None)
    return None


def template_rules(template: str) -> frozenset[TemplateRule]:
    """Read from a chat template (Jinja) which roles it refuses, by the errors that it raises."""
    return frozenset(rule for rule in TEMPLATE_RULES if any(row.search(template) for _, row in _FEATURES[rule]))


def is_not_ready(status: int, body: bytes) -> bool:
    """Tell whether the same request may be taken later: the server is busy or starts, or the model is not loaded."""
    return status in _NOT_READY or _NOT_LOADED.search(error_text(status, body) or "") is not None


def credible(overflow: Overflow, *, needed: int, loaded: int | None, held: int) -> Overflow | None:
    """Judge an overflow by what its request could prove.

    None: its request would have fitted the window that it names, or the loaded instance reports a larger one; so something
    else was refused. One that contradicts what was just answered holds for its own request, as a quoted one does.

    Args:
        overflow: what the backend says.
        needed: tokens of prompt and answer at most.
        loaded: window that the loaded instance reports now.
        held: the most tokens that the backend held at once lately, 0 for unknown.
    """
    window = overflow.window
    if window is None:
        return overflow
    if needed < window or (loaded is not None and window < loaded):
        return None
    return replace(overflow, quoted=True) if window < max(held, SMALLEST_WINDOW) else overflow


def _matches(rows: _Rows, text: str, sent: SentRequest | None) -> Iterator[tuple[str, re.Match[str], bool]]:
    """Origin and match of each wording that is no parameter of the request, repeated, and whether its conversation holds it."""
    for origin, pattern in rows:
        for found in pattern.finditer(text):
            place = None if sent is None else sent.place(found.group())
            if place != "parameters":
                yield origin, found, place is not None


def _names_other_limit(found: re.Match[str], text: str) -> bool:
    """Return whether the sentence, as far as it goes, names something else than the prompt."""
    if _ABOUT_PROMPT.search(found.group()):
        return False
    begin = max(text.rfind("\n", 0, found.start()), text.rfind(". ", 0, found.start())) + 1
    return _ABOUT_OTHERS.search(text, begin, found.end()) is not None


def _first(rows: _Rows, text: str, sent: SentRequest | None) -> int | None:
    """The first figure in words that are not the client's own."""
    found = (match for _, match, quoted in _matches(rows, text, sent) if not quoted)
    return next((_figure(match, 1) for match in found), None)


def _figure(found: re.Match[str], group: str | int) -> int | None:
    """A positive figure; thousands may be separated by commas."""
    digits = found.groupdict().get(group) if isinstance(group, str) else found.group(group)
    value = int(digits.replace(",", "")) if digits else 0
    return value if 0 < value <= _MOST_TOKENS else None


class Remedy(Enum):
    """Actions upon a refusal."""

    WAIT = "wait"
    """Send the same again when the slots that share a memory have room."""
    SHORTEN = "shorten"
    """Send it again, shortened."""
    EMULATE = "emulate"
    """Send it again, with its tools as text."""
    REPAIR = "repair"
    """Send it again, with roles that the model's chat template takes."""
    UNSTREAM = "unstream"
    """Send it again, for an answer in one body."""
    OTHER_WAY = "other way"
    """Ask in the next way to go on with the answer."""
    GIVE_UP = "give up"
    """Tell the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Error of a backend in place of an answer."""

    overflow: Overflow | None = None
    feature: FeatureRefusal | None = None
    roomy: bool = False
    """Whether the prompt fits so well that it can't be its own length that was refused."""
    way: Continuation | None = None
    """The way in which the backend was asked to go on with an answer; None: it was a first request."""


@dataclass
class Spent:
    """Use of the budget by one client's request, over all its attempts, streamed or not; nothing at first."""

    waits: int = 0
    shortened: int = 0
    """In a row: an attempt that says something begins anew."""
    without: frozenset[Feature] = frozenset()
    """Features that were refused, and are done without."""
    retries: int = 0
    """In a row, as above."""
    corrected: bool = False
    """Whether the model was asked once more for a tool call that could not be made."""
    refused: frozenset[Continuation] = frozenset()
    """Ways to go on that were refused."""

    def corrects(self) -> bool:
        """Return whether the model may be asked once more for a call that could not be parsed, and charge that to the budget."""
        first, self.corrected = not self.corrected, True
        return first

    def retry(self, retry_after: float | None) -> float | None:
        """Count a retry; the seconds to wait before it, or None if there is none left.

        `retry_after`: seconds that the backend asks for; None: it names none.
        """
        if self.retries >= MOST_RETRIES or (retry_after or 0) > LONGEST_RETRY:
            return None
        self.retries += 1
        return FIRST_RETRY * 2 ** (self.retries - 1) if retry_after is None else retry_after

    def answered(self) -> None:
        """The backend took the prompt and said something."""
        self.shortened = self.retries = 0


def remedy(refusal: Refusal, spent: Spent) -> Remedy:
    """Decide, and charge it to the budget.

    Whatever backends answer, that ends: waiting has a limit of its own, each feature is given up once, every other way is
    taken once, and shortening is limited until the model says something.
    """
    overflow, feature = refusal.overflow, refusal.feature
    if overflow is not None:
        # A refusal without figures of a prompt that fits by far is about the memory of all slots together.
        pooled = overflow.shared and overflow.window is None and refusal.roomy
        if pooled and spent.waits < MOST_WAITS:
            spent.waits += 1
            return Remedy.WAIT
        if spent.shortened < MOST_SHORTENED:
            spent.shortened += 1
            return Remedy.SHORTEN
    elif feature is not None and feature.feature not in spent.without:
        spent.without |= {feature.feature}
        return {"tools": Remedy.EMULATE, "streams": Remedy.UNSTREAM}.get(feature.feature, Remedy.REPAIR)
    elif refusal.way is not None and refusal.way not in spent.refused:
        spent.refused |= {refusal.way}
        return Remedy.OTHER_WAY
    return Remedy.GIVE_UP
