"""Families of models that share a tokenizer: how each is recognised, and its vocabulary. A new one is one entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from proxy.tokens.vocabulary import ByteLevel, Vocabulary, from_file, sentencepiece

GENERAL = "general"
"""The vocabulary that stands in for unknown ones: the beginning of o200k."""
O200K_ID = "o200k"
MOST = 57_344
"""Tokens of the general vocabulary: as many as a hash table of 65,536 places takes, of which tiktoken makes two."""
AMBIGUOUS = frozenset({"llama", "mistral", "phi3", "gpt2", "default", "other"})
"""Architectures whose models have different vocabularies: `phi3` is Phi-4's too."""
_NEVER = re.compile(r"(?!)")

# Regexes by which byte-level vocabularies split text before merging. Sources: tiktoken_ext.openai_public (tiktoken 0.14) for
# o200k and cl100k, the tokenizer files of the models for the others.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_EDGE = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"\s+(?!\S)|\s+"


def _cased(tail: str, digits: str) -> str:
    """Words split where the case changes."""
    return (
        rf"{_EDGE}{_UPPER}*{_LOWER}+{tail}|{_EDGE}{_UPPER}+{_LOWER}*{tail}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


def _words(digits: str) -> str:
    """Words of letters, with the character before them."""
    return rf"{_CONTRACTIONS}|{_EDGE}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"


_O200K = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_TEKKEN = _cased("", r"\p{N}")
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
# DeepSeek splits three times: digits, then a run of these, then the rest. One regex does the same if what
# follows leaves these out, if space before them stays whole, and if nothing is left unmatched.
_CJK = r"\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}"
_LETTERS = rf"[\p{{L}}\p{{M}}&&[^{_CJK}]]"
_MARKS = rf"[\p{{P}}\p{{S}}&&[^{_CJK}]]"
_DEEPSEEK = (
    rf"\p{{N}}{{1,3}}|[{_CJK}]+|[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?{_LETTERS}+"
    rf"| ?{_MARKS}+[\r\n]*|\s*[\r\n]+|\s+(?=[\p{{N}}{_CJK}])|{_SPACES}"
    rf"|[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}]+(?!{_LETTERS})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models with the same tokenizer.

    `hints` matches the names by which backends call the architecture or tokenizer (lower case, whole);
    `names` finds models by their id, which is a guess. `load` builds the vocabulary from shipped data (slow:
    call it in a thread). Where the model's own may not be shipped, `load` builds one that is near to it (None: o200k
    is), and `prior` corrects that: weights of its tokens and of byte classes, see `proxy.counting.calibration.start`.
    """

    id: str
    hints: re.Pattern[str] = _NEVER
    names: re.Pattern[str] = _NEVER
    load: Callable[[], Vocabulary] | None = None
    prior: tuple[float, ...] = ()


def load_general() -> Vocabulary:
    """Build the general vocabulary: 0.15 s, 15 MB; all of o200k would take 42."""
    return ByteLevel(GENERAL, _O200K, shipped=O200K_ID, most=MOST)


def load_of(vocabulary: str) -> Callable[[], Vocabulary] | None:
    """Find what loads the vocabulary of this name."""
    return load_general if vocabulary == GENERAL else BY_ID[vocabulary].load


FAMILIES: tuple[Family, ...] = (
    # DeepSeek V3, V3.1, R1; not its distilled models, which keep the vocabulary they came from.
    Family(
        id="deepseek",
        hints=re.compile(r"deepseek[_-]?(v3|v3\.1|v32|3|r1)|deepseek"),
        names=re.compile(r"deepseek-?(v3|r1(?!.*distill)(?!:(1\.5|7|8|14|32|70)b)|chat|reasoner)"),
        load=partial(ByteLevel, "deepseek", _DEEPSEEK),
    ),
    # Qwen 3.5 and later: a larger vocabulary that is not at hand; what is known is one token per digit.
    Family(
        id="qwen35",
        hints=re.compile(r"qwen3\.?[5-9](moe|vl|_)*"),
        names=re.compile(r"qwen-?3\.[5-9]"),
        prior=(1.0, 0.6, *([0.0] * 15)),
    ),
    # Llama 4: licence forbids shipping the vocabulary, so a prior corrects o200k's. It was fitted as Gemma's below; chats that were
    # held out are off by 0.2 % (English) and 0.6 % (Chinese).
    Family(
        id="llama4",
        hints=re.compile(r"llama-?4"),
        names=re.compile(r"llama-?4"),
        prior=(
            *(0.946, 0.058, 0.011, 0.021, 0.124, -0.017),
            *(
                -0.215,
                0.002,
                -0.027,
                0.114,
                0.067,
                0.034,
                -0.069,
                0.362,
                0.117,
                -0.204,
                -0.17,
                -0.095,
                -0.071,
                0.317,
                0.13,
            ),
            *(-0.014, -0.019),
        ),
    ),
    # Llama 3, 3.1, 3.2, 3.3: the vocabulary begins with cl100k's, which is the same for English and code; the licence forbids
    # shipping the rest, tokens of other scripts, so a prior lowers what those take.
    Family(
        id="llama3",
        hints=re.compile(r"llama-?3|llama-bpe|llama-v3"),
        names=re.compile(r"llama-?3|hermes-3|dolphin.*llama|deepseek-r1:70b|distill-llama"),
        load=partial(ByteLevel, "llama3", _LLAMA3, shipped="cl100k"),
        prior=(
            *(1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
            *(
                -0.33,
                -0.58,
                -0.17,
                -0.02,
                -0.41,
                -0.62,
                -0.47,
                0.02,
                -0.13,
                -0.09,
                -0.4,
                -0.37,
                -0.41,
                -0.15,
                -0.08,
            ),
            *(0.0, 0.0),
        ),
    ),
    # Llama 2 and Phi-3, which took its vocabulary over: the licence forbids shipping it; Mistral's pieces are near.
    Family(
        id="llama2",
        hints=re.compile(r"llama-?2|llama-spm"),
        names=re.compile(r"llama-?2|codellama|vicuna|tinyllama|phi-?3"),
        load=partial(sentencepiece, "llama2", "mistral"),
        prior=(
            *(1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
            *(-0.18, 0.0, -0.03, 0.0, 0.02, 0.06, 0.07, 0.08, 0.16, -0.15, -0.08, 0.32, 0.37, -0.17, 0.32),
            *(0.0, 0.0),
        ),
    ),
    # Qwen 1 to 3, and models distilled into them: one vocabulary, one token per digit.
    Family(
        id="qwen",
        hints=re.compile(
            r"(qwen([23]|2[._]?5)?[_-]?(vl|moe|next|omni|audio|_)*|deepseek-r1-qwen)(tokenizer(fast)?)?"
        ),
        names=re.compile(r"qwen-?(?!-?3\.[5-9])|qwq|qvq|deepseek-r1:(1\.5|7|8|14|32)b"),
        load=partial(ByteLevel, "qwen", _QWEN2),
    ),
    # Tekken: Mistral Nemo, Small 3, Ministral, Pixtral 12B, Devstral, Magistral.
    Family(
        id="tekken",
        hints=re.compile(r"tekken|mistral3|ministral3?"),
        names=re.compile(
            r"nemo(?!tron)|mistral-?small|mistral-?medium|ministral|pixtral-?12b|devstral|magistral|voxtral"
        ),
        load=partial(ByteLevel, "tekken", _TEKKEN),
    ),
    # SentencePiece of Mistral 7B and Mixtral; v1, v2, v3 and v7 of it count the same.
    Family(
        id="mistral",
        hints=re.compile(r"mistral-spm|mixtral"),
        names=re.compile(
            r"mistral-?7b|mixtral|mistral:(?!small|nemo|large)|^mistral$|mathstral|codestral-?22b|zephyr-7b"
        ),
        load=partial(sentencepiece, "mistral", "mistral"),
    ),
    # Gemma 2, 3 and 4: terms forbid shipping the vocabulary of 2 and 3, so a prior corrects o200k's. Fitted to the messages of
    # LibreOffice in 25 languages, GNOME's help in 33, half of the Universal Declaration of Human Rights in 40, and half of the
    # chats, code and agents' sessions; of what was held out, chats are off by 1.6 % (English) and 0.7 % (Chinese), code by 2.7 %.
    Family(
        id="gemma3",
        hints=re.compile(r"gemma[234]?n?|gemini"),
        names=re.compile(r"gemma|gemini"),
        prior=(
            *(0.778, 0.698, 0.052, 0.046, 0.262, 0.253),
            *(
                0.115,
                0.093,
                0.047,
                0.195,
                0.077,
                0.008,
                0.008,
                -0.018,
                0.174,
                -0.269,
                -0.107,
                0.044,
                0.107,
                0.627,
                -0.24,
            ),
            *(-0.027, 0.043),
        ),
    ),
    # GLM: said to be cl100k with Chinese merges; no vocabulary at hand, so a prior corrects the general one.
    Family(
        id="glm",
        hints=re.compile(r"(chat)?glm(-?4)?(moe)?(-bpe)?"),
        names=re.compile(r"(^|[/:-])(chat)?glm"),
        prior=(
            *(1.016, -0.004, 0.010, -0.010, -0.036, -0.059, 1.075, 0.209, 0.494, 0.808, 0.039, 0.260, 0.312),
            *(0.531, -0.054, 0.967, 0.012),
        ),
    ),
    # o200k: GPT-4o and later, gpt-oss; its beginning is the general vocabulary for models that are not known.
    Family(
        id=O200K_ID,
        hints=re.compile(r"o200k(_base|_harmony)?|gpt-?oss|gpt-4o"),
        names=re.compile(r"gpt-?oss|gpt-4o|gpt-4\.[1-9]|gpt-[5-9]|chatgpt|(^|[/:-])o[134](-|$)"),
        load=partial(ByteLevel, O200K_ID, _O200K),
    ),
    # cl100k: GPT-4, GPT-3.5; also Phi-4.
    Family(
        id="cl100k",
        hints=re.compile(r"cl100k(_base)?|phi-?4"),
        names=re.compile(r"gpt-4(?![\do.])|gpt-3\.5|phi-?4"),
        load=partial(ByteLevel, "cl100k", _CL100K),
    ),
)
"""In the order in which model names are tried."""
BY_ID = {family.id: family for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class Resolution:
    """A family, None when nothing fits, and its origin: `user`, `backend`, `name`, `none`."""

    family: Family | None
    origin: str


def resolve(model: str, hint: str | None, override: str | None) -> Resolution:
    """Find the family of a model.

    Args:
        model: its id; tried as a whole and, where it has one, without what stands before the last slash.
        hint: architecture, tokenizer name, model name or file, as the backend says.
        override: the same or a family, as the user says.
    """
    if hint is not None and hint.strip().lower() in AMBIGUOUS:
        hint = None
    for origin, word in (("user", override), ("backend", hint)):
        family = _by_word(word) if word else None
        if family is not None:
            return Resolution(family, origin)
    family = _by_name(model)
    return Resolution(family, "name" if family is not None else "none")


def _by_word(word: str) -> Family | None:
    """Find the family of a file, a family's id, an architecture, or else of a model's name."""
    word = word.strip()
    file = _family_of_file(word)
    if file is not None:
        return file
    known = word.lower()
    if known in BY_ID:
        return BY_ID[known]
    exact = next((family for family in FAMILIES if family.hints.fullmatch(known)), None)
    return exact or _by_name(word)


def _by_name(name: str) -> Family | None:
    name = name.lower()
    return next((family for family in FAMILIES if family.names.search(name)), None)


def _family_of_file(word: str) -> Family | None:
    """Make a family for the `tokenizer.json`, or the folder with one, that `word` names; None if there is none.

    The file is not read before the vocabulary is needed. Its size and time are part of the name, so that a
    file that was replaced is another tokenizer.
    """
    if "/" not in word and "\\" not in word and not word.endswith(".json"):
        return None
    path = Path(word).expanduser()
    try:
        path = path / "tokenizer.json" if path.is_dir() else path
        stat = path.stat()
    except (OSError, ValueError):
        return None
    if path.suffix == ".gguf":  # the backend's own file: its name may still tell the family
        return None
    name = f"{path}:{stat.st_size}:{stat.st_mtime_ns}"
    return Family(id=name, load=partial(from_file, name, path))
