"""Each engine with the same two models: one that walks through a cycle of words, one that echoes.

What they say is known word for word, whichever engine runs them: `tests/engine` computes their weights.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.engine.folder import write_folder
from tests.engine.process import ROOT
from tests.engine.spec import ModelSpec
from tests.engines.serving import Server, free_port, serving

WINDOW = 2048
"""Tokens, in every engine."""
VLLM = ROOT / ".venv-vllm"
TRANSFORMERS = ROOT / ".venv-transformers"
WALK, ECHO = ModelSpec(mode="walk"), ModelSpec(mode="echo")
_REVISION = "0" * 40
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
_VLLM = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A running engine: the ids of its models, and what Spillway is to find out about it."""

    urls: tuple[str, ...]
    servers: tuple[Server, ...]
    walk: str
    echo: str
    words: tuple[str, ...]
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What Spillway has to be told, because the engine does not tell it."""
    window_told: bool = True
    """Whether the engine tells its window."""
    continues: bool = True
    """Whether it goes on with a partial answer. One that is asked to in a turn of its own has to follow instructions,
    and the model that walks does not: of its answer only the first part is right."""
    native_calls: bool = True
    """Whether it makes calls of what its models write."""
    turns: int = 30
    """Of a conversation; a slow engine gets fewer."""
    length: int = 3 * WINDOW
    """Tokens of a long answer."""


Start: TypeAlias = Callable[[ExitStack, Path], Place]


def _vllm(stack: ExitStack, folder: Path) -> Place:
    """One process for each model: a vLLM has one."""
    words: list[str] = []
    servers = []
    for spec in (WALK, ECHO):
        model, port = folder / spec.mode, free_port()
        words = write_folder(spec, model, WINDOW) or words
        # By a path that means nothing to Spillway, which reads the vocabulary where it can.
        command: list[str | Path] = [VLLM / "bin" / "vllm", "serve", model.name]
        command += ["--served-model-name", spec.mode]
        command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(WINDOW)]
        command += ["--dtype", "float32", "--enforce-eager"]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        running = serving(command, port=port, ready="/health", log=folder / f"{spec.mode}.log", env=_OFFLINE | _VLLM)
        servers.append(stack.enter_context(running))
    return Place(
        urls=tuple(server.url for server in servers), servers=tuple(servers), walk="walk", echo="echo", words=tuple(words),
        kind="vllm",
    )  # fmt: skip


def _transformers(stack: ExitStack, folder: Path) -> Place:
    """One process for all that lies in the cache of the hub, each loaded when it is asked for."""
    hub = folder / "hub"
    words: list[str] = []
    for spec in (WALK, ECHO):
        kept = hub / f"models--tiny--{spec.mode}"
        words = write_folder(spec, kept / "snapshots" / _REVISION, WINDOW) or words
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text(_REVISION, "utf-8")
    port = free_port()
    command: list[str | Path] = [TRANSFORMERS / "bin" / "transformers", "serve"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    env = _OFFLINE | {"HF_HUB_CACHE": str(hub)}
    server = stack.enter_context(serving(command, port=port, ready="/health", log=folder / "serve.log", env=env))
    return Place(
        urls=(server.url,), servers=(server,), walk="tiny/walk", echo="tiny/echo", words=tuple(words), kind="generic",
        settings={"models": {"tiny/*": {"window": WINDOW}}}, turns=16, length=WINDOW * 5 // 4, window_told=False,
        continues=False, native_calls=False,
    )  # fmt: skip


ENGINES: dict[str, Start] = {"vllm": _vllm, "transformers": _transformers}


@contextmanager
def place(engine: str, folder: Path) -> Iterator[Place]:
    """Start an engine; `folder` gets its models and logs, and is emptied."""
    folder.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield ENGINES[engine](stack, folder)
