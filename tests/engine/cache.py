"""Models made once per machine: a directory in the system's temporary one, keyed by everything that matters."""

import getpass
import hashlib
import inspect
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.engine import bpe, echo, gguf, models, network, others, template, vocab, walk
from tests.engine.models import write_model, write_words
from tests.engine.spec import ModelSpec

_SOURCES = (bpe, echo, gguf, models, network, others, template, vocab, walk)


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and, if it walks, the words of its cycle in order."""

    path: Path
    words: tuple[str, ...]


def cache_directory() -> Path:
    """Where the models are kept, one per user of the machine."""
    return Path(tempfile.gettempdir()) / f"spillway-test-models-{getpass.getuser()}"


def model_digest(spec: ModelSpec) -> str:
    """Digest of the generator's source, the versions that shape its output, and the arguments with their files."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__} {spec!r}".encode())
    for module in _SOURCES:
        digest.update(inspect.getsource(module).encode())
    for file in (spec.vocab, spec.template):
        if file is not None:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def cached_model(spec: ModelSpec, directory: Path | None = None) -> Model:
    """The model of `spec`, made now unless it was made before.

    Several processes may ask at once: each makes its own and the first to rename it into place wins.
    """
    root = directory or cache_directory()
    final = root / f"{spec.mode}-{model_digest(spec)}"
    if not final.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="making-", dir=root))
        write_words(write_model(spec, fresh / "model.gguf"), fresh / "words.json")
        try:
            fresh.rename(final)
        except OSError:  # somebody else was faster
            shutil.rmtree(fresh)
    words = json.loads((final / "words.json").read_text("utf-8"))
    return Model(path=final / "model.gguf", words=tuple(words))
