"""Vocabularies in memory: loaded when first needed, in a thread, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.tokens.vocabulary import Vocabulary


class Library:
    """Loads vocabularies by name. A load that failed is not tried again; its reason is in `failures`."""

    def __init__(self) -> None:
        self._loaded: dict[str, Vocabulary] = {}
        self._loading: dict[str, asyncio.Future[Vocabulary | None]] = {}
        self.failures: dict[str, str] = {}

    def get(self, name: str) -> Vocabulary | None:
        """The vocabulary, if it is in memory."""
        return self._loaded.get(name)

    def begin(self, name: str, load: Callable[[], Vocabulary]) -> asyncio.Future[Vocabulary | None]:
        """Start loading unless somebody did; the future holds None when it failed. Needs a running loop."""
        loading = self._loading.get(name)
        if loading is None or (loading.done() and loading.cancelled()):
            loading = asyncio.get_running_loop().run_in_executor(None, self._load, name, load)
            self._loading[name] = loading
        return loading

    async def load(self, name: str, load: Callable[[], Vocabulary]) -> Vocabulary | None:
        """Wait for the vocabulary; None when it can't be loaded."""
        found = self._loaded.get(name)
        if found is not None or name in self.failures:
            return found
        return await asyncio.shield(self.begin(name, load))

    def _load(self, name: str, load: Callable[[], Vocabulary]) -> Vocabulary | None:
        try:
            vocabulary = load()
        except BaseException as error:  # a broken file of the user's must not stop the proxy; status shows it
            # Libraries written in Rust panic as an exception that is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            self.failures[name] = f"{type(error).__name__}: {error}"
            return None
        self._loaded[name] = vocabulary
        return vocabulary
