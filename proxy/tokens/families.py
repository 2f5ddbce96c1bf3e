"""Families of models that share a tokenizer: how each is recognised, and its vocabulary. A new one is one entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources

from proxy.tokens.lean import unpack
from proxy.tokens.llama2 import near_llama2
from proxy.tokens.llama3 import near_llama3
from proxy.tokens.patterns import CL100K, DEEPSEEK3, O200K, QWEN2, TEKKEN
from proxy.tokens.sentencepiece import SentencePieceVocabulary
from proxy.tokens.vocabulary import GENERAL, BpeVocabulary, Vocabulary

O200K_ID = "o200k"
MOST = 57_344
"""Tokens of the general vocabulary: as many as a hash table of 65,536 places takes, of which tiktoken makes two."""
_NEVER = re.compile(r"(?!)")


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


@cache
def load_general() -> Vocabulary:
    """Build the general vocabulary: 0.15 s, 15 MB.

    With the weights of classes of bytes that every unknown model begins with, it counts those as well as all of o200k would,
    which takes 42 MB: what is not known of a model is more than what the two differ in.
    """
    return BpeVocabulary(GENERAL, O200K, _shipped(O200K_ID, MOST))


def load_of(vocabulary: str) -> Callable[[], Vocabulary] | None:
    """What loads the vocabulary of this name."""
    return load_general if vocabulary == GENERAL else BY_ID[vocabulary].load


@cache
def _byte_level(name: str, pattern: str) -> Vocabulary:
    return BpeVocabulary(name, pattern, _shipped(name))


def _sentencepiece(name: str) -> Vocabulary:
    return SentencePieceVocabulary(name, _pieces(name), prefix=True)


def _near_llama2() -> Vocabulary:
    return near_llama2(_pieces("mistral"), _pieces("llama2"))


def _near_llama3() -> Vocabulary:
    return near_llama3(_shipped("cl100k"), _shipped(O200K_ID))


def _pieces(name: str) -> list[str]:
    return [token.decode() for token in _shipped(name)]  # which are in the order of their ranks


def _shipped(name: str, most: int | None = None) -> dict[bytes, int]:
    from proxy.tokens import data  # noqa: PLC0415 - so that it can be seen from outside when the first one is read

    return unpack(resources.files(data).joinpath(f"{name}.spv").read_bytes(), most)


FAMILIES: tuple[Family, ...] = (
    # DeepSeek V3, V3.1, R1; not its distilled models, which keep the vocabulary they came from.
    Family(
        id="deepseek",
        hints=re.compile(r"deepseek[_-]?(v3|v3\.1|v32|3|r1)|deepseek"),
        names=re.compile(r"deepseek-?(v3|r1(?!.*distill)(?!:(1\.5|7|8|14|32|70)b)|chat|reasoner)"),
        load=partial(_byte_level, "deepseek", DEEPSEEK3),
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
    # Llama 3, 3.1, 3.2, 3.3: licence forbids shipping the vocabulary; one that is near to it is made of two others.
    Family(
        id="llama3",
        hints=re.compile(r"llama-?3|llama-bpe|llama-v3"),
        names=re.compile(r"llama-?3|hermes-3|dolphin.*llama|deepseek-r1:70b|distill-llama"),
        load=_near_llama3,
        prior=(1.0, *([0.0] * 10), -0.083, -0.117, *([0.0] * 3), -0.014, -0.06, *([0.0] * 5)),
    ),
    # Llama 2 and Phi-3, which took its vocabulary over: licence forbids shipping it; one that is near to it is made of Mistral's.
    # For scripts of which the characters tell all, the prior only makes up for the first weight, which is below one.
    Family(
        id="llama2",
        hints=re.compile(r"llama-?2|llama-spm"),
        names=re.compile(r"llama-?2|codellama|vicuna|tinyllama|phi-?3"),
        load=_near_llama2,
        prior=(
            *(0.971, 0.032, -0.017, 0.108, 0.251, 0.011),
            *(-0.239, 0.0, -0.042, 0.03, 0.04, 0.03, 0.03, 0.04, 0.05, -0.137, 0.03, 0.04, 0.04, 0.04, 0.1),
            *(0.055, -0.245),
        ),
    ),
    # Qwen 1 to 3, and models distilled into them: one vocabulary, one token per digit.
    Family(
        id="qwen",
        hints=re.compile(
            r"(qwen([23]|2[._]?5)?[_-]?(vl|moe|next|omni|audio|_)*|deepseek-r1-qwen)(tokenizer(fast)?)?"
        ),
        names=re.compile(r"qwen-?(?!-?3\.[5-9])|qwq|qvq|deepseek-r1:(1\.5|7|8|14|32)b"),
        load=partial(_byte_level, "qwen", QWEN2),
    ),
    # Tekken: Mistral Nemo, Small 3, Ministral, Pixtral 12B, Devstral, Magistral.
    Family(
        id="tekken",
        hints=re.compile(r"tekken|mistral3|ministral3?"),
        names=re.compile(
            r"nemo(?!tron)|mistral-?small|mistral-?medium|ministral|pixtral-?12b|devstral|magistral|voxtral"
        ),
        load=partial(_byte_level, "tekken", TEKKEN),
    ),
    # SentencePiece of Mistral 7B and Mixtral; v1, v2, v3 and v7 of it count the same.
    Family(
        id="mistral",
        hints=re.compile(r"mistral-spm|mixtral"),
        names=re.compile(
            r"mistral-?7b|mixtral|mistral:(?!small|nemo|large)|^mistral$|mathstral|codestral-?22b|zephyr-7b"
        ),
        load=partial(_sentencepiece, "mistral"),
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
        load=partial(_byte_level, O200K_ID, O200K),
    ),
    # cl100k: GPT-4, GPT-3.5; also Phi-4.
    Family(
        id="cl100k",
        hints=re.compile(r"cl100k(_base)?|phi-?4"),
        names=re.compile(r"gpt-4(?![\do.])|gpt-3\.5|phi-?4"),
        load=partial(_byte_level, "cl100k", CL100K),
    ),
)
"""In the order in which model names are tried."""
BY_ID = {family.id: family for family in FAMILIES}
