"""Recognising "the prompt is longer than the window" in what backends answer, and the numbers they name.

No two backends say it alike, and some wrap another's words as a JSON string inside their own error. So the
text as it came and every string nested in it are searched for fingerprints; statuses and words that
mean something else (authentication, rate limits, loading) are excluded first, and so is what the client wrote itself.

An error is believed as far as its request could prove it: `credible` is the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from proxy.backends.quoting import Quote, SentRequest
from proxy.core import jsontext

EXAMINED = 64 * 1024
"""Bytes of a body that are looked at; error texts are far shorter."""

_DEPTH = 8
_FIELDS = 256
_MOST_TOKENS = 10**9

_NEVER = frozenset({401, 402, 403, 429})
_OTHER_CAUSE = re.compile(r"rate[ _-]?limit|quota|throttl|per[ -]min|too many requests", re.IGNORECASE)
_BUSY = re.compile(r"\bloading\b|overloaded|at capacity|server (?:is )?busy", re.IGNORECASE)
_HINTS = (
    b"context",
    b"token",
    b"exceed",
    b"too long",
    b"too_long",
    b"too_large",
    b"n_ctx",
    b"input length",
    b"model length",
)
"""One of these is in every text that a fingerprint matches."""

N = r"(\d[\d,]{0,14})"
P = r"(?P<prompt>\d[\d,]{0,14})"
_SHARED = "llama.cpp or LM Studio"
W = r"(?P<window>\d[\d,]{0,14})"


def _rules(*rules: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((origin, re.compile(text, re.IGNORECASE | re.DOTALL)) for origin, text in rules)


_FINGERPRINTS = _rules(
    # Each with the group it was seen in; the ones that name numbers come first.
    ("llama.cpp", rf"request \({P} tokens?\) exceeds the available context size \({W} tokens?\)"),
    ("Ollama", rf"input length \({P} tokens?\) exceeds the model's maximum context length \({W} tokens?\)"),
    ("LM Studio", rf"input has {P} tokens, but the context length only supports {W} tokens"),
    ("LM Studio", rf"n_keep:? \(?{P}\)?\s*>=\s*n_ctx:? \(?{W}"),
    ("LM Studio", rf"keep the first {P} tokens.{{0,200}}?context length of only {W} tokens"),
    ("Anthropic", rf"prompt is too long: {P} tokens? > {W}"),
    ("gateway", rf"prompt has {P} tokens, but the configured context size is {W}"),
    ("Google", rf"input token count \(?{P}\)? exceeds the maximum number of tokens allowed \(?{W}"),
    ("vLLM", rf"prompt \(length {P}\) is longer than the maximum model length of {W}"),
    ("xAI", rf"maximum prompt length is {W} but the request contains {P} tokens"),
    ("Together", rf"input \({P} tokens\) is longer than the model's context length \({W} tokens\)"),
    ("gateway", rf"exceeds (?:the )?(?:model's )?maximum context length (?:of )?\(?{W}"),
    ("gateway", rf"exceeds (?:the )?maximum allowed input length of {W} tokens"),
    ("OpenRouter", rf"endpoint's maximum context length is {W} tokens"),
    ("vLLM or OpenAI", rf"maximum context length is {W} tokens"),
    ("gateway", rf"too large for model with {W} maximum context"),
    ("gateway", rf"exceeded model token limit(?:: {W})?"),
    ("gateway", rf"range of input length should be(?: \[\d+, ?{W})?"),
    ("gateway", rf"tokens?\b[^\n]{{0,80}}?exceeds the limit of {W}"),
    ("gateway", rf"exceeds the limit of {W} (?:input )?tokens"),
    ("llama.cpp", r"exceed_context_size_error|the request exceeds the available context size"),
    (_SHARED, r"context size has been exceeded"),
    ("Ollama", r"prompt is longer than the context length|input length exceeds the context length"),
    ("Ollama cloud", r"prompt too long; exceeded (?:max )?context length"),
    ("vLLM", r"max_(?:completion_)?tokens' is too large"),
    # Of the answer's bound alone, before the prompt is looked at (0.32).
    ("vLLM", rf"max_(?:completion_)?tokens=\d+ cannot be greater than max_(?:model_len|total_tokens)={W}"),
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

_WINDOWS = _rules(("error fields", rf"\"n_ctx\": ?{N}"), ("error text", rf"context length is (?:only )?{N} tokens"))
_PROMPTS = _rules(
    ("error fields", rf"\"n_prompt_tokens\": ?{N}"),
    ("OpenAI", rf"messages resulted in {N} tokens"),
    ("vLLM", rf"requested \d+ tokens \({N} in (?:the messages|your prompt)"),
    ("vLLM", rf"(?:prompt contains|request has) {N} input tokens"),
    ("Moonshot", rf"token limit: \d+ \(requested: {N}\)"),
)
# OpenRouter's total counts the answer that was asked for as well.
_TOTAL_AND_ANSWER = re.compile(rf"requested about {N} tokens \([^)]{{0,200}}?\b{N} in the output\)", re.IGNORECASE)

# "The thinking budget exceeds the limit of 24576 tokens": a limit of something else, unless the match names the context.
_ABOUT_PROMPT = re.compile(r"context|prompt|input|n_ctx|max_model_len|max_total_tokens|messages", re.IGNORECASE)
_ABOUT_OTHERS = re.compile(
    r"max_?(?:completion_?|output_?|new_?)?tokens|(?:output|completion|reasoning|thinking)\b|budget|image|audio|video|"
    r"logit_?bias|logprobs|\bstop\b|embedding",
    re.IGNORECASE,
)

UNDERRATED = 2
"""Times as many tokens as the upper bound of its estimate that a prompt may have."""
SMALLEST_WINDOW = 256
"""Tokens; a refusal that names a smaller window is not about the window."""

_ECHOES = frozenset({"input", "messages", "prompt", "body", "request"})
_ECHO = re.compile(r"""['"]input['"]: ?[\[{]""")

_Object: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Overflow:
    """A refused prompt. `window` and `prompt_tokens` are in tokens, None where the text named no number.

    `origin` says whose wording it was. `prompt_tokens` may be the backend's estimate. `quoted`: the wording stands in the
    conversation itself, so that it holds for this request at most.
    """

    window: int | None
    prompt_tokens: int | None
    origin: str
    quoted: bool = False

    @property
    def shared(self) -> bool:
        """True if the memory of all slots together may be full, rather than this one's."""
        return self.origin == _SHARED


_TOO_LARGE = Overflow(None, None, "gateway")
POOL_FULL = Overflow(None, None, _SHARED)
"""The memory of all slots together is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEvidence:
    """Facts about a refused request and its backend, in tokens.

    `needed`: prompt and answer at most. `loaded`: window that the loaded instance reports now. `held`: the most that the
    backend held at once lately, 0 for unknown.
    """

    needed: int
    loaded: int | None
    held: int


def credible(overflow: Overflow, evidence: WindowEvidence) -> Overflow | None:
    """Judge an overflow by what its request could prove.

    None: its request would have fitted the window that it names, or the loaded instance reports a larger one; so something
    else was refused. One that contradicts what was just answered holds for its own request, as a quoted one does.
    """
    window = overflow.window
    if window is None:
        return overflow
    if evidence.needed < window or (evidence.loaded is not None and window < evidence.loaded):
        return None
    doubtful = window < max(evidence.held, SMALLEST_WINDOW)
    return replace(overflow, quoted=True) if doubtful else overflow


def recognise(status: int, body: bytes, sent: SentRequest | None = None) -> Overflow | None:
    """Tell whether a backend refused a prompt for its length.

    Args:
        status: HTTP status of the response; 200 for the data of an SSE frame.
        body: body of the response, or data of the frame. Of a 200 only an error counts, so that an answer
            *about* overflows is not mistaken for one.
        sent: the refused request, whose own words are no evidence; None: not at hand.
    """
    if status in _NEVER:
        return None
    head = body[:EXAMINED]
    lowered = head.lower()
    if not any(hint in lowered for hint in _HINTS):
        return _TOO_LARGE if status == 413 else None
    if status < 400 and b'"error' not in lowered and b"window_exceeded" not in lowered:
        return None
    text = error_text(status, head)
    return None if text is None or _excluded(status, text) else _match(status, text, sent)


def error_text(status: int, body: bytes) -> str | None:
    """All that an error says, one `"name": value` per line, JSON inside strings taken apart as well.

    None for what is no error, or one that has nothing to do with the request: a key, money, a rate limit.
    """
    parsed = _parse(body)
    if status in _NEVER or _inner_status(parsed) in _NEVER or (status < 400 and not _is_refusal(parsed)):
        return None
    return "\n".join(_texts(body, parsed))


def is_error_frame(chunk: _Object) -> bool:
    """Return whether parsed SSE data (or a 200 body) is an error, in any of the forms that backends use.

    `error` as a string or an object; vLLM's old `object: "error"`; renamed keys without choices; OpenRouter's
    `finish_reason: "error"` or an error inside a choice.
    """
    if chunk.get("error") or chunk.get("object") == "error" or chunk.get("type") == "error":
        return True
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return bool(chunk.get("error_message") or chunk.get("error_type"))
    return any(
        isinstance(choice, dict) and (choice.get("finish_reason") == "error" or choice.get("error"))
        for choice in choices
    )


def is_refusal(body: bytes) -> bool:
    """Return whether a complete response is an error in spite of a good status (OpenRouter; LM Studio for unknown paths)."""
    if b'"error"' not in body:
        return False
    parsed = _parse(body)
    return isinstance(parsed, dict) and "error" in parsed and not parsed.get("choices")


def _is_refusal(parsed: Any) -> bool:
    if not isinstance(parsed, dict):
        return False
    choices = parsed.get("choices")
    return is_error_frame(parsed) or (isinstance(choices, list) and any(map(_is_full, choices)))


def _is_full(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("finish_reason") == "model_context_window_exceeded"


def _parse(data: bytes | str) -> Any:
    try:
        return jsontext.loads(data)
    except ValueError:
        return None


def _inner_status(parsed: Any) -> int | None:
    """The status that an error names for itself: gateways send 200 or 400 around it."""
    error = parsed.get("error") if isinstance(parsed, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        return int(code)
    return code if isinstance(code, int) else None


def _texts(head: bytes, parsed: Any) -> list[str]:
    """Every field as `"name": value`, also those of JSON inside strings; the text as it came if it is no JSON.

    What a validation error repeats of the request is left out: a conversation may well talk of overflows.
    """
    if parsed is None:
        return [_without_echo(head.decode("utf-8", "replace"))]
    found: list[str] = []
    pending: list[tuple[str, Any, int]] = [("", parsed, 0)]
    while pending and len(found) < _FIELDS:
        name, value, depth = pending.pop()
        if name in _ECHOES and isinstance(value, dict | list):
            continue
        found.append(f'"{name}": {_shown(value)}')
        if depth < _DEPTH:
            pending.extend((key, item, depth + 1) for key, item in _inside(value))
    return found


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        value = _parse(value)
    if isinstance(value, dict):
        return list(value.items())
    return [("", item) for item in value] if isinstance(value, list) else []


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{_without_echo(value)}"'
    return "" if isinstance(value, dict | list) else str(value)


def _without_echo(text: str) -> str:
    return _ECHO.split(text, maxsplit=1)[0]


def _excluded(status: int, text: str) -> bool:
    return bool(_OTHER_CAUSE.search(text)) or (status >= 500 and bool(_BUSY.search(text)))


def _match(status: int, text: str, sent: SentRequest | None) -> Overflow | None:
    for origin, pattern in _FINGERPRINTS:
        for found, quote in _unquoted(pattern, text, sent):
            if _about_others(found, text):
                continue
            groups = found.groupdict()
            window = _number(groups.get("window")) or _first(_WINDOWS, text, sent)
            if quote is Quote.CONVERSATION and window is None:
                continue
            prompt = _number(groups.get("prompt")) or _first(_PROMPTS, text, sent) or _total_less_answer(text)
            return Overflow(window, prompt, origin, quoted=quote is not Quote.NONE)
    return _TOO_LARGE if status == 413 else None


def _unquoted(pattern: re.Pattern[str], text: str, sent: SentRequest | None) -> Iterator[tuple[re.Match[str], Quote]]:
    """Matches that are no parameter of the request, repeated."""
    for found in pattern.finditer(text):
        quote = Quote.NONE if sent is None else sent.quote_of(found.group())
        if quote is not Quote.PARAMETER:
            yield found, quote


def _about_others(found: re.Match[str], text: str) -> bool:
    """Return whether the sentence, as far as it goes, names something else than the prompt."""
    if _ABOUT_PROMPT.search(found.group()):
        return False
    begin = max(text.rfind("\n", 0, found.start()), text.rfind(". ", 0, found.start())) + 1
    return _ABOUT_OTHERS.search(text, begin, found.end()) is not None


def _first(rules: tuple[tuple[str, re.Pattern[str]], ...], text: str, sent: SentRequest | None) -> int | None:
    for _, pattern in rules:
        for found, quote in _unquoted(pattern, text, sent):
            if quote is Quote.NONE:
                return _number(found.group(1))
    return None


def _total_less_answer(text: str) -> int | None:
    found = _TOTAL_AND_ANSWER.search(text)
    total = _number(found.group(1)) if found is not None else None
    if found is None or total is None:
        return None
    answer = int(found.group(2).replace(",", ""))
    return total - answer if answer < total else None


def _number(digits: str | None) -> int | None:
    """A positive figure; thousands may be separated by commas."""
    if digits is None:
        return None
    value = int(digits.replace(",", ""))
    return value if 0 < value <= _MOST_TOKENS else None
