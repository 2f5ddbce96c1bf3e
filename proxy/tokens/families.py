"""Families of models that share a tokenizer: how each is recognised, and its vocabulary. A new family is one entry."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from proxy.tokens.counter import Vocabulary
from proxy.tokens.ratios import SAME
from proxy.tokens.vocabulary import ByteLevel, from_file, sentencepiece

GENERAL = "general"
"""Name of the vocabulary used for unknown models: the beginning of o200k."""
MOST = 57_344
"""Tokens of the general vocabulary: the most that fit into a hash table of 65,536 places. tiktoken makes two of these."""
AMBIGUOUS = frozenset({"llama", "mistral", "phi3", "gpt2", "default", "other"})
"""Architectures whose models have different vocabularies: `phi3` is Phi-4's too."""
_NEVER = r"(?!)"

# Regexes by which byte-level vocabularies split text before merging. Sources: tiktoken_ext.openai_public (tiktoken 0.14) for
# o200k and cl100k, the tokenizer files of the models for the others.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_EDGE = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"\s+(?!\S)|\s+"


def _cased(tail: str, digits: str) -> str:
    """Return the regex of a vocabulary that splits words where the case changes."""
    return (
        rf"{_EDGE}{_UPPER}*{_LOWER}+{tail}|{_EDGE}{_UPPER}+{_LOWER}*{tail}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


# Digits matter most: Qwen, Tekken, Gemma and Llama 2 have one token per digit, the others one for up to three. In tool
# output (logs, CSV, JSON) that makes a difference of 30 to 70 %.
_O200K = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_TEKKEN = _cased("", r"\p{N}")
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_QWEN2 = rf"{_CONTRACTIONS}|{_EDGE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
# DeepSeek's tokenizer splits a text three times: at digits, at runs of these characters, then by the rest. One regex
# does the same if the other alternatives exclude these characters, if white space before them stays in one piece, and
# if the last alternative takes whatever is left.
_CJK = r"\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}"
_LETTERS = rf"[\p{{L}}\p{{M}}&&[^{_CJK}]]"
_MARKS = rf"[\p{{P}}\p{{S}}&&[^{_CJK}]]"
_DEEPSEEK = (
    rf"\p{{N}}{{1,3}}|[{_CJK}]+|[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?{_LETTERS}+"
    rf"| ?{_MARKS}+[\r\n]*|\s*[\r\n]+|\s+(?=[\p{{N}}{_CJK}])|{_SPACES}"
    rf"|[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}]+(?!{_LETTERS})"
)


# Only vocabularies whose licences allow it are shipped. A file of the user's own is read at run time instead.
VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    # 0.15 s and 15 MB; all of o200k would take 42.
    GENERAL: partial(ByteLevel, GENERAL, _O200K, "o200k", most=MOST),
    "o200k": partial(ByteLevel, "o200k", _O200K),
    "cl100k": partial(ByteLevel, "cl100k", _CL100K),
    "llama3": partial(ByteLevel, "llama3", _CL100K, "cl100k", "llama3"),
    "qwen": partial(ByteLevel, "qwen", _QWEN2),
    "tekken": partial(ByteLevel, "tekken", _TEKKEN),
    "deepseek": partial(ByteLevel, "deepseek", _DEEPSEEK),
    "mistral": partial(sentencepiece, "mistral"),
    "llama2": partial(sentencepiece, "llama2"),
}
"""Loaders of the shipped vocabularies. They are slow: call them in a thread."""

# Ratios by script (ASCII, digits, Latin, Cyrillic, Arabic, Indic, marks, Han, Hangul, emoji, indentation) for families
# whose licences forbid shipping their tokenizers (Llama, Gemma), fitted to counts by these tokenizers: of programs'
# messages in 97 languages, chats in English and Chinese, code and agents' sessions.
GENERAL_RATIOS = (0.97, 1.4, 0.9, 0.92, 0.9, 1.0, 0.6, 0.72, 0.75, 0.8, 1.0)
"""Ratios for unknown models, fitted to seven present-day vocabularies together."""
_LLAMA4 = (1.0, 0.98, 0.96, 1.0, 1.17, 1.12, 0.8, 0.82, 0.88, 1.09, 1.0)
_LLAMA3 = (*SAME[:5], 0.92, 1.0, 0.94, *SAME[8:])
_LLAMA2 = (1.0, 1.0, 0.89, 0.92, *SAME[4:])
_GEMMA = (1.04, 2.33, 1.04, 1.06, 1.11, 0.87, 0.98, 0.84, 0.96, 0.66, 1.0)
_GLM = (*SAME[:7], 0.6, *SAME[8:])


@dataclass(frozen=True, slots=True)
class Family:
    """Models with the same tokenizer: its id, the vocabulary that counts for them, and how they are recognised.

    `names` finds models by their id, which is a guess. `hints` matches the whole name, in lower case, that a backend reports
    for the architecture or tokenizer. `ratios` by script correct a vocabulary that is not the models' own; empty if it is.
    `load` loads a vocabulary that is not shipped.
    """

    id: str
    vocabulary: str
    names: str = _NEVER
    hints: str = _NEVER
    ratios: tuple[float, ...] = ()
    load: Callable[[], Vocabulary] | None = None


FAMILIES: tuple[Family, ...] = (
    # DeepSeek V3, V3.1, R1; not its distilled models, which keep the vocabulary they came from.
    Family("deepseek", "deepseek", r"deepseek-?(v3|r1(?!.*distill)(?!:(1\.5|7|8|14|32|70)b)|chat|reasoner)", r"deepseek([_-]?(v3|v3\.1|v32|3|r1))?"),
    # Its vocabulary is larger than that of Qwen 1 to 3, which counts for it because its own is not shipped. Both have
    # one token per digit.
    Family("qwen35", "qwen", r"qwen-?3\.[5-9]", r"qwen3\.?[5-9](moe|vl|_)*", SAME),
    Family("llama4", "o200k", r"llama-?4", r"llama-?4", _LLAMA4),
    # Llama 3 to 3.3: cl100k's vocabulary, with which theirs begins, and tokens of o200k in place of the rest: as many
    # of each script as Llama has. Ratios by script alone were off by a factor of 2 for Greek and 1.3 for Hindi and
    # Ukrainian; this is within 1 to 6 % for most scripts, and ships none of Llama's own tokens.
    Family("llama3", "llama3", r"llama-?3|hermes-3|dolphin.*llama|deepseek-r1:70b|distill-llama", r"llama-?3|llama-bpe|llama-v3", _LLAMA3),
    # Phi-3 has the vocabulary of Llama 2. Pieces of Mistral's stand in for it, except those with a character that has
    # no token there: ratios by script left Japanese 15 % too high, traditional Chinese 11 % and Telugu 32 % too low,
    # and now Asian and Semitic scripts are within 2 % (by Phi-3's own tokenizer).
    Family("llama2", "llama2", r"llama-?2|codellama|vicuna|tinyllama|phi-?3", r"llama-?2|llama-spm", _LLAMA2),
    # Qwen 1 to 3, and models distilled into them.
    Family("qwen", "qwen", r"qwen-?(?!-?3\.[5-9])|qwq|qvq|deepseek-r1:(1\.5|7|8|14|32)b", r"(qwen([23]|2[._]?5)?[_-]?(vl|moe|next|omni|audio|_)*|deepseek-r1-qwen)(tokenizer(fast)?)?"),
    Family("tekken", "tekken", r"nemo(?!tron)|mistral-?small|mistral-?medium|ministral|pixtral-?12b|devstral|magistral|voxtral", r"tekken|mistral3|ministral3?"),
    # Mistral 7B and Mixtral; v1, v2, v3 and v7 of their pieces count the same.
    Family("mistral", "mistral", r"mistral-?7b|mixtral|mistral:(?!small|nemo|large)|^mistral$|mathstral|codestral-?22b|zephyr-7b", r"mistral-spm|mixtral"),
    Family("gemma3", "o200k", r"gemma|gemini", r"gemma[234]?n?|gemini", _GEMMA),
    # Said to be cl100k with Chinese merges.
    Family("glm", "cl100k", r"(^|[/:-])(chat)?glm", r"(chat)?glm(-?4)?(moe)?(-bpe)?", _GLM),
    Family("o200k", "o200k", r"gpt-?oss|gpt-4o|gpt-4\.[1-9]|gpt-[5-9]|chatgpt|(^|[/:-])o[134](-|$)", r"o200k(_base|_harmony)?|gpt-?oss|gpt-4o"),
    Family("cl100k", "cl100k", r"gpt-4(?![\do.])|gpt-3\.5|phi-?4", r"cl100k(_base)?|phi-?4"),
)  # fmt: skip
"""All families, in the order in which model names are tried. A new family is one line."""
UNKNOWN = Family(GENERAL, GENERAL, ratios=GENERAL_RATIOS)
"""Family of models that match no other."""


def resolve(model: str, hint: str | None, override: str | None) -> tuple[Family, str]:
    """Find the family of a model, and the source that named it: `user`, `backend`, `name` or `none`.

    Args:
        model: id of the model; the family's name may be anywhere in it.
        hint: architecture, tokenizer name, model name or file, as reported by the backend.
        override: the same, or the id of a family, as set by the user.
    """
    if hint is not None and hint.strip().lower() in AMBIGUOUS:
        hint = None
    found = (("user", _by_word(override or "")), ("backend", _by_word(hint or "")), ("name", _by_name(model)))
    return next(((family, origin) for origin, family in found if family is not None), (UNKNOWN, "none"))


def _by_word(word: str) -> Family | None:
    """Find the family for a tokenizer file, a family's id, an architecture or, failing these, a model's name."""
    word = word.strip()
    file = _family_of_file(word)
    if file is not None:
        return file
    known = word.lower()
    exact = next((family for family in FAMILIES if known == family.id or re.fullmatch(family.hints, known)), None)
    return exact or _by_name(word)


def _by_name(name: str) -> Family | None:
    name = name.lower()
    return next((family for family in FAMILIES if re.search(family.names, name)), None)


def _family_of_file(word: str) -> Family | None:
    """Make a family for the `tokenizer.json`, or the folder with one, that `word` names, or None if there is no such file.

    The file is not read until the vocabulary is needed. Its size and time are part of the name, so that a replaced file
    counts as another tokenizer.
    """
    if "/" not in word and "\\" not in word and not word.endswith(".json"):
        return None
    path = Path(word).expanduser()
    try:
        path = path / "tokenizer.json" if path.is_dir() else path
        stat = path.stat()
    except (OSError, ValueError):
        return None
    if path.suffix == ".gguf":  # the backend's own file; the caller goes on to find the family by its name
        return None
    name = f"{path}:{stat.st_size}:{stat.st_mtime_ns}"
    return Family(name, name, load=partial(from_file, name, path))
