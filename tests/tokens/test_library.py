import asyncio
import threading

import pytest

from proxy.tokens.counter import Vocabulary
from proxy.tokens.vocabulary import Coarse, Library

pytestmark = pytest.mark.anyio


async def test_a_vocabulary_is_loaded_once_and_in_a_thread() -> None:
    library, threads = Library(), []

    def load() -> Vocabulary:
        threads.append(threading.current_thread())
        return Coarse()

    first, second = await asyncio.gather(library.load("x", load), library.load("x", load))
    assert first is second is library.get("x")
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_a_failure_is_remembered_and_not_repeated() -> None:
    library, tries = Library(), []

    def load() -> Vocabulary:
        tries.append(1)
        raise ValueError("damaged")

    assert await library.load("x", load) is None
    assert await library.load("x", load) is None
    assert library.failures == {"x": "damaged"}
    assert len(tries) == 1
