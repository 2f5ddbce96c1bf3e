"""Recognising that a prompt was refused for its length, and the figures in the refusal, in any wording, status or envelope.

A sentence is such a refusal if it has a subject (a prompt, its input, messages or tokens, a context or window; and a size) and a
complaint (exceeds, too long, a maximum, a limit, would fit), or two figures of which the one sent is above the one allowed. Rates,
money, pictures, files, memory, time and a bound of the answer alone are other matters. The nearest word before a figure gives
its meaning.

A refusal is believed only as far as its request could prove it: `credible` is the rule. A refusal whose words and figures occur in
the request itself applies to that request at most.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from proxy.backends.errors import SentRequest, error_status, error_text

UNDERRATED = 2
"""Factor by which a prompt's tokens may exceed the upper bound of their estimate."""
SMALLEST_WINDOW = 256
"""Smallest window in tokens; a refusal that names a smaller figure is not about the window."""
ORIGIN = "the backend's refusal"
_MOST_TOKENS = 10**9
_LEAST_TOKENS = 16
_MONEY, _TOO_LARGE = 402, 413
# vLLM 0.15 names the window less the answer's bound. A round number is more likely to be the window.
_ROUND = (1000, 1024)
"""Units of windows: as a rule a window is a multiple of one of these."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A refusal of a prompt for its length. `window` and `prompt_tokens` are in tokens, or None if the text has no figure.

    `prompt_tokens` may be the backend's estimate. `shared`: the memory shared by all slots may be full, rather than this slot's.
    `quoted`: it applies to this request at most. `bounded`: the figure may be the window less the request's bound of the answer
    (vLLM 0.15).
    """

    window: int | None
    prompt_tokens: int | None
    shared: bool = False
    quoted: bool = False
    bounded: bool = False


# llama-server ends all active requests then, with 500 and "Context size has been exceeded."
POOL_FULL = Overflow(None, None, shared=True)
"""Refusal because the memory shared by all slots is full."""


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_ANSWER = (
    r"max_(?:completion_|output_|new_|response_)?tokens|max (?:output|completion|new) tokens|num predict"
    r"|\b(?:output|completion|reasoning|thinking|generated|response|answer)\b(?: tokens?\b| length\b)?"
)
_OF_ANSWER = _words(_ANSWER)
_PROMPT = (
    r"context(?! ?(?:deadline|cancel))|prompt|\binputs?\b|messages?\b|conversation|max_?(?:model|seq\w{0,9}) len|n ctx"
    r"|kontext|contesto|eingabe|entrada|entrée|контекст|上下文|输入|提示|コンテキスト|入力|컨텍스트|입력"
)
"""Words for a prompt. Here and below, the English words come first, then those of other languages of engines and gateways."""
_OF_PROMPT = _words(_PROMPT)
_OF_REQUEST = _words(
    _PROMPT,
    r"request(?:ed|s)?\b|anfrage|requête|solicitud|请求|запрос|payload|model (?:token|length)|sequence length|\btokens?\b",
)
_SIZE = _words(
    r"tokens?\b|length|lenght|long|size|window|large|big|\blen\b|context|n ctx",
    r"länge|\blang\b|fenster|fenêtre|ventana|jetons|lung|kontext|长|長|窗口|トークン|길이|длин|размер|токен",
)
_OVER = _words(
    r"exceed|overflow|too (?:long|large|big|many|much)|(?:long|larg|great|bigg|high)er than|more than|\bmax|\blimit|longest",
    r"at most|up to|(?:not|n't) fit|must (?:be|have) (?:<|less|fewer|at most|under|below|short|small)|range|reduce|shorten",
    r"(?:only|not) (?:supports?|holds?|has|have|enough)|not enough|available (?:context|window|tokens)|available$|[<>≤≥]",
    r"überschr|\bzu lang|höchstens|super[aó]|exced|dépass|trop long|demasiado|máxim|límite|过长|超|最大|上限|限制|長すぎ|초과|최대|превыш|максим",
)
_OTHER_CAUSE = _words(
    r"rate[ _-]?limit|quota|throttl|too many requests|(?:per|a|each|this) (?:sec|min|hour|day|month)|\b[TR]P[MDS]\b|today|daily",
    r"\b(?:pro|por|par|al) (?:sek|min|stunde|tag|seg|heure|hora|jour|d[ií]a)|每|频|速率|额|\bloading\b|overloaded|at capacity|server (?:is )?busy",
)
_OF_OTHERS = _words(
    r"image|picture|photo|audio|video|pixel|\bfiles?\b|\bpages?\b|attachment|upload|\bstring|\barray|\bitems?\b|header|cookie",
    r"\bur[il]\b|deadline|time[ds]?[ -]?out|cancel|retries|recursion|memory|\bv?ram\b|\bdisk\b|\bstop\b|logit|logprob|budget",
    r"(?<!position )embedding|credit|afford|balance|billing|\bpa(?:y|id|yment)\b|concurren|\bconnections\b|queue|batch|input should\b|\bname\b|grpc:|to process|\bid\b|expired|invalid token|seconds|minutes|hours|unsafe|policy",
    r"\bbild|imagen|archivo|fichier|\bdatei|délai|sekunden|secondes|segundos|图|文件|超时|并发|过载|秒",
)
_SHARED = "context size has been exceeded"
_CODES = _words(
    r"constraint_filtered[\s\S]{0,200}context_length|context_length[\s\S]{0,200}constraint_filtered",
    r'error_type"?: ?"string_too_long|exceeds maximum allowed content length',
)
"""Codes of OpenRouter and gateways, whose errors contain no sentence that says it."""
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.$#/-])(\d{1,3}(?:,\d{3}){1,4}|\d{1,12})(k?)(?:\.0)?(?![A-Za-z0-9_%]|[.:]\d|,\d{3}| ?(?:px|[KMG]i?B|[mk]?s|bytes?|sec\w*|min\w*|char\w*)\b)",
    re.IGNORECASE,
)
_Role: TypeAlias = Literal["answer", "limit", "total", "sent"]
_ROLES = re.compile(
    rf"(?P<answer>{_ANSWER}|\+ ?$)"
    r"|(?P<limit>max\w*(?: ?(?:allowed|number|amount|of|input|prompt|token|context|model|sequence|total|seq|len))*s?|n ctx(?! train)"
    r"|conte[sx]t|window|limit|bound|only|at most|up to|allow|support|exceed|capacity|\bfits? in\w*|than|below|under|range[^\d\n]{0,40}|[<>≤≥]=?"
    r"|höchstens|grenze|l[íi]mite|máxim\w{0,5}|контекст|上下文|窗口|上限|限制|最大|コンテキスト|컨텍스트)"
    r"|(?P<total>requested|\btotal\b)"
    r"|(?P<sent>prompt|\binputs?\b|sequence|message|request|contain|\bhas\b|\bhave\b|result|\bgot\b|given|current|keep|\bsent\b|actual|receiv|suppl|used"
    r"|contien|enthält|tiene|запрос|输入|请求|提示|入力|입력)",
    re.IGNORECASE,
)
_AFTER = re.compile(
    rf"(?P<measured>(?: tokens)? ?(?:\+ ?\d|>))|[ `'\"]*(?:tokens?[ `'\"]*)?(?:(?:in|of|from|for|as) )?(?:the |your )?[`'\"]?(?:(?P<answer>{_ANSWER})|(?P<limit>max|limit|avail|allow)|"
    r"(?P<total>needed|required|given)|(?P<sent>messages|prompt|text input|inputs?\b))",
    re.IGNORECASE,
)
_NO_FIGURE = re.compile(r"(?:at least|\bby) (?:about )?$", re.IGNORECASE)
_PAYABLE = re.compile(
    r"(?:afford|pay for|enough for|covers?|(?:credits?|balance)[^\n.]{0,60}?(?:only|most|up to)|max_tokens limit exceeded: \d{1,12} >)"
    r" (\d[\d,]{0,14})",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"\n|(?<=[.!?])\s+")
_NAME = re.compile(r'"\w*": (?=")')


def recognise(status: int, body: bytes, sent: SentRequest | None = None) -> Overflow | None:
    """Recognise the refusal of a prompt for its length, or return None.

    Args:
        status: as for `error_text`.
        body: as for `error_text`.
        sent: the refused request; None if it is not at hand.
    """
    # By what a sentence is about instead of by wordings: every further server had one of its own.
    text = error_text(status, body, money=True)
    if text is None or _OTHER_CAUSE.search(text):
        return None
    plain, bound = _NAME.sub("", _plain(text)), 0 if sent is None else sent.answer_bound
    everything = _figures(plain)
    for sentence in filter(_is_refusal, _SENTENCES.split(plain)):
        place = None if sent is None else _place(sentence, sent)
        here = _figures(sentence)
        window, prompt = _choose("limit", here, everything), _choose("sent", here, everything, bound=bound)
        if place == "parameters" or (place and window is None):
            continue
        stated = bound == 0 or str(bound) in (digits for digits, _ in _NUMBER.findall(plain)) or "n ctx" in plain
        return Overflow(
            window,
            None if prompt == window else prompt,
            shared=window is None and _SHARED in sentence.lower(),
            quoted=place is not None or error_status(status, body) == _MONEY,
            bounded=window is not None and not (stated or (_is_round(window) and not _is_round(window + bound))),
        )
    too_large = status == _TOO_LARGE and not _OF_OTHERS.search(text)
    return Overflow(None, None) if too_large or _CODES.search(text) else None


def credible(overflow: Overflow, *, needed: int, loaded: int | None, held: int) -> Overflow | None:
    """Return an overflow as far as its request could prove it.

    None if its request would have fitted the window that it names, or if the loaded instance reports a larger one: something
    else was refused then. If it contradicts a recent answer, it is marked as quoted, and applies to its own request only.

    Args:
        overflow: the backend's refusal.
        needed: upper bound on the tokens of prompt and answer.
        loaded: window that the loaded instance reports now.
        held: most tokens that the backend recently held at once; 0 if unknown.
    """
    # The order of trust follows from that: a loaded instance is believed over anything that an error says, since errors
    # may quote any text (see `proxy.backends.errors.SentRequest`), and a wrong window would apply to every client for
    # an hour.
    window = overflow.window
    if window is None:
        return overflow
    if needed < window or (loaded is not None and window < loaded):
        return None
    return replace(overflow, quoted=True) if window < max(held, SMALLEST_WINDOW) else overflow


def told_apart(found: Overflow, bound: int, known: int | None, before: int | None) -> Overflow:
    """Decide whether a figure is the window, or the window less the bound of the answer.

    Args:
        found: a refusal with a figure.
        bound: tokens of an answer that its request allowed; 0 for no bound.
        known: the window as currently believed; None if unknown.
        before: the figure of an earlier refusal with another bound; None if there was none.
    """
    assert found.window is not None
    total = found.window + bound
    if bound and found.bounded and total == known:
        return replace(found, window=total, quoted=True, bounded=False)
    if before is None:
        return found
    return replace(found, window=found.window if found.window == before else total, bounded=False)


def affordable(status: int, body: bytes) -> int | None:
    """Return the affordable tokens of an answer that an error names (OpenRouter's 402); None if it names none."""
    text = error_text(status, body, money=True)
    found = _PAYABLE.search(text) if text is not None and error_status(status, body) == _MONEY else None
    return int(found[1].replace(",", "")) or None if found is not None else None


def _plain(text: str) -> str:
    """Split identifiers into words, except parameters such as `max_tokens`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"(?<!max)_(?!tokens)", " ", text))


def _is_refusal(sentence: str) -> bool:
    of_answer, rest = _OF_ANSWER.search(sentence), _OF_ANSWER.sub("", sentence)
    # If the sentence mentions a bound of the answer, the words "tokens" and "request" prove nothing, so a prompt must be named.
    if not (_OF_PROMPT if of_answer else _OF_REQUEST).search(rest) or not _SIZE.search(rest):
        return False
    if _OF_OTHERS.search(sentence):
        return False
    figures = {role: value for value, role in reversed(_figures(sentence))}
    return bool(_OVER.search(rest)) or figures.get("sent", 0) > figures.get("limit", _MOST_TOKENS)


def _place(sentence: str, sent: SentRequest) -> Literal["parameters", "conversation"] | None:
    """Find where the sentence's words occur in the request, if its figures occur there too."""
    marks = [found.span() for pattern in (_OF_REQUEST, _SIZE, _OVER) for found in pattern.finditer(sentence)]
    numbers = _NUMBER.findall(sentence)
    if any(sent.place(digits) is None for digits, _ in numbers):
        return None
    return sent.place(sentence[min(marks)[0] : max(end for _, end in marks)])


def _figures(text: str) -> list[tuple[int, _Role]]:
    """Read the figures, in tokens, whose meaning is clear from words before them on the line or directly after them."""
    figures, end = list[tuple[int, _Role]](), 0
    for found in _NUMBER.finditer(text):
        value = int(found[1].replace(",", "")) * (1000 if found[2] else 1)
        if not _LEAST_TOKENS <= value <= _MOST_TOKENS:
            continue
        before = text[max(end, text.rfind("\n", 0, found.start()) + 1, found.start() - 80) : found.start()]
        role, end = _role(before, _AFTER.match(text, found.end())), found.end()
        if role is not None and not _NO_FIGURE.search(before):
            figures.append((value, role))
    # A lone number in brackets may be a code: "context window exceeds limit (2013)".
    return figures if len(figures) > 1 or not re.search(r"\(\d+\)", text) or "token" in text else []


def _role(before: str, after: re.Match[str] | None) -> _Role | None:
    following = after.lastgroup if after is not None else None
    words = [found.lastgroup for found in _ROLES.finditer(before)]
    if following == "measured" and words[-1:] != ["answer"]:
        return "sent"
    role = following if following in ("answer", "limit", "total") or not words else words[-1]
    return cast("_Role | None", role)


def _choose(role: _Role, *sources: list[tuple[int, _Role]], bound: int = 0) -> int | None:
    """Choose the first figure of this role, or the smallest limit. A requested total includes the bound of the answer."""
    for figures in sources:
        known = [value for value, each in figures if each == role]
        # OpenRouter and older vLLM name the prompt and the requested answer together ("you requested about T tokens").
        # vLLM's "at least N input tokens" is the limit plus 1, however long the prompt was.
        totals = [value - bound for value, each in figures if each == "total" and role == "sent" and value > bound]
        if known or totals:
            return min(known) if role == "limit" else (known or totals)[0]
    return None


def _is_round(window: int) -> bool:
    return any(window % unit == 0 for unit in _ROUND)
