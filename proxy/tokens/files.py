"""Tokenizers that lie on the user's disk: a GGUF file, a `tokenizer.json`, or a folder with one of them."""

from __future__ import annotations

from pathlib import Path

from proxy.tokens.families import Family
from proxy.tokens.gguf import MAGIC, load_gguf
from proxy.tokens.huggingface import load_tokenizer_json
from proxy.tokens.vocabulary import Vocabulary


def family_of_file(word: str) -> Family | None:
    """A family of one for the file or folder that `word` names; None if there is none.

    The file is not read before the vocabulary is needed. Its size and time are part of the name, so that a
    file that was replaced is another tokenizer.
    """
    if "/" not in word and "\\" not in word and not word.endswith((".gguf", ".json")):
        return None
    path = Path(word).expanduser()
    try:
        if path.is_dir():
            found = [path / "tokenizer.json", *sorted(path.glob("*.gguf"))]
            path = next(file for file in found if file.is_file())
        stat = path.stat()
    except (OSError, ValueError, StopIteration):
        return None
    name = f"{path}:{stat.st_size}:{stat.st_mtime_ns}"
    return Family(id=name, load=lambda: load_file(path, name))


def load_file(path: Path, name: str) -> Vocabulary:
    """Build the vocabulary in `path`.

    Raises:
        OSError: the file can't be read.
        ValueError: its tokenizer is of a kind not known here, or it is damaged.
    """
    with path.open("rb") as file:
        is_gguf = file.read(4) == MAGIC
    return load_gguf(path, name) if is_gguf else load_tokenizer_json(path, name)
