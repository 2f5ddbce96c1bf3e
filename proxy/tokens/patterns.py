"""How byte-level vocabularies split text before merging: the regexes of the models' own tokenizers.

Sources: tiktoken_ext.openai_public (tiktoken 0.14) for o200k and cl100k, the tokenizer files of the models for
the others, llama.cpp's `llama-vocab.cpp` for the names in a GGUF.
"""

from __future__ import annotations

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


O200K = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
TEKKEN = _cased("", r"\p{N}")
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
LLAMA3 = _words(r"\p{N}{1,3}")
QWEN2 = _words(r"\p{N}")
QWEN35 = rf"{_CONTRACTIONS}|{_EDGE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
DIGIT_GPT2 = rf"\p{{N}}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?=\p{{N}})|{_SPACES}"

# DeepSeek splits three times: digits, then a run of these, then the rest. One regex does the same if what
# follows leaves these out, if space before them stays whole, and if nothing is left unmatched.
_CJK = r"\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}"
_LETTERS = rf"[\p{{L}}\p{{M}}&&[^{_CJK}]]"
_MARKS = rf"[\p{{P}}\p{{S}}&&[^{_CJK}]]"
DEEPSEEK3 = (
    rf"\p{{N}}{{1,3}}|[{_CJK}]+|[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?{_LETTERS}+"
    rf"| ?{_MARKS}+[\r\n]*|\s*[\r\n]+|\s+(?=[\p{{N}}{_CJK}])|{_SPACES}"
    rf"|[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}]+(?!{_LETTERS})"
)

BY_GGUF_NAME: dict[str, str] = {
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), O200K),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx"),
        LLAMA3,
    ),
    **dict.fromkeys(("smaug-bpe", "glm4", "chatglm-bpe"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez"), QWEN2),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2"), QWEN2),
    "qwen35": QWEN35,
    "tekken": TEKKEN,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), DEEPSEEK3),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), GPT2),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4"), GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"), DIGIT_GPT2),
    **dict.fromkeys(("minerva-7b", "mellum2"), DIGIT_GPT2),
}
"""Patterns by `tokenizer.ggml.pre`. Names that split in ways one regex can't express are left out."""

IGNORE_MERGES = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
)
"""Names for which a whole word that is a token is that token, whatever the merges say."""
