"""Fixtures around the real engine; a `conftest.py` imports those it wants."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest
from typing_extensions import Unpack

from tests.engine.cache import cached_model
from tests.engine.instruct import INSTALL, instruct_model
from tests.engine.server import Engine, ServeOptions, llama_server
from tests.engine.spec import ModelSpec

WINDOW = 2048
"""Context window of the shared engines, in tokens, all of it in one slot."""
INSTRUCT_WINDOW = 1024
"""That of the real instruct model, which takes seconds of CPU to read what fills it."""


class StartEngine(Protocol):
    """Starts an engine that lives as long as the tests of this process."""

    def __call__(self, spec: ModelSpec, alias: str = "", **options: Unpack[ServeOptions]) -> Engine: ...


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Factory of engines: a model, and the options of the server; a context of 2,048 tokens by default.

    Whoever asks for the same gets the same engine.
    """
    numbers = itertools.count()
    started: dict[tuple[ModelSpec, str, str], Engine] = {}
    with ExitStack() as stack:

        def start(spec: ModelSpec, alias: str = "", **options: Unpack[ServeOptions]) -> Engine:
            model = cached_model(spec)
            options.setdefault("ctx", WINDOW)
            name = alias or spec.mode
            asked = (spec, name, str(sorted(options.items())))
            if asked not in started:
                log = tmp_path_factory.mktemp("engine") / f"llama-server-{next(numbers)}.log"
                started[asked] = stack.enter_context(
                    llama_server(model.path, log=log, alias=name, words=model.words, **options)
                )
            return started[asked]

        yield start


@pytest.fixture(scope="session")
def walk_engine(engine: StartEngine) -> Engine:
    return engine(ModelSpec(mode="walk"))


@pytest.fixture(scope="session")
def echo_engine(engine: StartEngine) -> Engine:
    return engine(ModelSpec(mode="echo"))


@pytest.fixture(scope="session")
def instruct_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A real model that follows instructions, as far as 135M parameters can, in a window of 1,024 tokens.

    It has ChatML as its template, and no tools.
    """
    model = instruct_model()
    if model is None:
        pytest.skip(f"SmolLM2 is not installed: {INSTALL}")
    log = tmp_path_factory.mktemp("engine") / "llama-server-instruct.log"
    with llama_server(model, log=log, alias="smollm2", ctx=INSTRUCT_WINDOW, threads=1) as server:
        yield server
