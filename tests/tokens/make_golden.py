"""Make golden.json and near.json: counts of the probe texts by the vocabularies' own libraries.

Needs, besides the project: `mistral-common sentencepiece`, the files that `tests.tokens.make_vocabularies` takes its data from,
unpacked, and for near.json the `tokenizer.model` of Llama 3 in the wheel `llama-models` 0.3.0, of which nothing but counts is
kept (those of Llama 2 are of Phi-3's GGUF in `tests/engine/vocab`, which is the same, counted as llama.cpp does): `python -m tests.tokens.make_golden LITELLM_TOKENIZERS QWEN_TIKTOKEN MISTRAL_DATA LLAMA3_MODEL`.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer

from tests.tokens.probe import probe

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)  # dashscope/tokenizers/qwen_tokenizer.py, dashscope 2.0.2
LLAMA3 = QWEN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")  # llama_models/llama3/tokenizer.py, llama-models 0.3.0


def ranks(path: Path) -> dict[bytes, int]:
    return load_tiktoken_bpe(str(path))


def openai(name: str, path: Path) -> Callable[[str], int]:
    public = importlib.import_module("tiktoken_ext.openai_public")
    vars(public)["load_tiktoken_bpe"] = lambda *_, **__: ranks(path)
    encoding = tiktoken.Encoding(**getattr(public, name)())
    return lambda text: len(encoding.encode_ordinary(text))


def counters(litellm: Path, qwen: Path, mistral: Path) -> dict[str, Callable[[str], int]]:
    qwen_encoding = tiktoken.Encoding("qwen", pat_str=QWEN, mergeable_ranks=ranks(qwen), special_tokens={})
    deepseek = Tokenizer.from_file(str(litellm / "deepseek_tokenizer.json"))
    tekkenizer = importlib.import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer
    tekken = tekkenizer.from_file(mistral / "tekken_240718.json")
    processor = importlib.import_module("sentencepiece").SentencePieceProcessor
    spm = processor(model_file=str(mistral / "tokenizer.model.v1"))
    return {
        "o200k": openai("o200k_base", litellm / "fb374d419588a4632f3f557e76b4b70aebbca790"),
        "cl100k": openai("cl100k_base", litellm / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"),
        "qwen": lambda text: len(qwen_encoding.encode_ordinary(text)),
        "deepseek": lambda text: len(deepseek.encode(text, add_special_tokens=False).ids),
        "tekken": lambda text: len(tekken.encode(text, bos=False, eos=False)),
        "mistral": lambda text: len(spm.encode(text)),
    }


def llama3(model: Path) -> Callable[[str], int]:
    encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks(model), special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def write(name: str, found: dict[str, Callable[[str], int]]) -> None:
    counts = {name: [count(text) for text in probe()] for name, count in found.items()}
    (Path(__file__).parent / name).write_text(json.dumps(counts) + "\n")


if __name__ == "__main__":
    write("golden.json", counters(*map(Path, sys.argv[1:4])))
    near = json.loads((Path(__file__).parent / "near.json").read_text())
    count = llama3(Path(sys.argv[4]))
    near["llama3"] = [count(text) for text in probe()]
    (Path(__file__).parent / "near.json").write_text(json.dumps(near) + "\n")
