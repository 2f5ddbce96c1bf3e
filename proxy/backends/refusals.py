"""Recognising "this model can't be given tools" in what backends answer.

Not every error that mentions tools is one: a malformed schema, a call of an unknown tool or a result without its
call are the client's to mend, and would be no better with the tools in the prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from proxy.backends.overflow import EXAMINED, error_text
from proxy.backends.quoting import Quote, SentRequest

_HINTS = (b"tool", b"function")
"""One of these is in every text that a fingerprint matches."""

# "… does not support tools together with response_format" is about the request, not about the model.
_NOT_WITH = r"(?!['`\"]? (?:and|along|alongside|in combination|together|when|while|with)\b)"


@dataclass(frozen=True, slots=True)
class ToolRefusal:
    """A request refused for its tools. `origin` says whose wording it was."""

    origin: str
    choice_only: bool = False
    """Only this value of `tool_choice` is refused: of the model's tools nothing is to be learnt."""
    quoted: bool = False
    """The wording stands in the conversation itself, so that it holds for this request at most."""


_FINGERPRINTS: tuple[tuple[ToolRefusal, re.Pattern[str]], ...] = tuple(
    (refusal, re.compile(text, re.IGNORECASE))
    for refusal, text in (
        # From the servers' sources, or from errors that users quote in their trackers.
        (ToolRefusal("Ollama"), rf"does(?: not|n't) support tools\b{_NOT_WITH}"),
        (ToolRefusal("OpenRouter"), r"no endpoints found that support tool use"),
        (ToolRefusal("llama.cpp"), r"tools param requires --jinja"),
        # Before the chat formats (end of 2024), and before they were streamed (spring of 2025).
        (ToolRefusal("llama.cpp"), r"unsupported param: tools\b|cannot use tools with stream"),
        # `"auto" tool choice …`, and in later versions `tool_choice="required" …` and named ones.
        (ToolRefusal("vLLM"), r"requires (?:--enable-auto-tool-choice and )?--tool-call-parser to be set"),
        (ToolRefusal("DeepSeek"), rf"does(?: not|n't) support function calling\b{_NOT_WITH}"),
        (ToolRefusal("Bedrock"), rf"does(?: not|n't) support tool use\b{_NOT_WITH}"),
        (
            ToolRefusal("Groq, DeepInfra or OpenAI"),
            r"(?<!parallel )(?<![\w.])(?:tools|tool calling)['`\"]? is not supported (?:with this|for this|for) model",
        ),
        (ToolRefusal("LiteLLM"), r"does not support parameters: [\[{][^\]}]{0,100}?'tools'"),
        (
            ToolRefusal("OpenRouter", choice_only=True),
            r"no endpoints found that support the provided ['`\"]?tool_choice",
        ),
        (ToolRefusal("DeepSeek", choice_only=True), r"does(?: not|n't) support this tool_choice"),
    )
)


_NOT_READY = frozenset({408, 429, 500, 502, 503, 504, 529})
_NOT_LOADED = re.compile(r"no models? loaded|model (?:(?:is|was|has been) )?(?:not loaded|unloaded)", re.IGNORECASE)
"""LM Studio 0.3 (`No models loaded. Please load a model`, `Model unloaded`), llama.cpp's router (`model is not loaded`)."""


def is_not_ready(status: int, body: bytes) -> bool:
    """Tell whether the same request may be taken later: the server is busy or starts, or the model is not loaded."""
    return status in _NOT_READY or _NOT_LOADED.search(error_text(status, body[:EXAMINED]) or "") is not None


def refuses_tools(status: int, body: bytes, sent: SentRequest | None = None) -> ToolRefusal | None:
    """Tell whether a backend refused a request because the model, or the server for it, takes no tools.

    Args:
        status: HTTP status of the response; 200 for the data of an SSE frame.
        body: body of the response, or data of the frame. Of a 200 only an error counts.
        sent: the refused request, whose own words are no evidence; None: not at hand.
    """
    head = body[:EXAMINED]
    lowered = head.lower()
    if not any(hint in lowered for hint in _HINTS):
        return None
    text = error_text(status, head)
    if text is None:
        return None
    for refusal, pattern in _FINGERPRINTS:
        for found in pattern.finditer(text):
            quote = Quote.NONE if sent is None else sent.quote_of(found.group())
            if quote is not Quote.PARAMETER:
                return replace(refusal, quoted=quote is Quote.CONVERSATION)
    return None
