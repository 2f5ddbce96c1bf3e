"""The real llama-server as a context manager, for tests that want the genuine article."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

import httpx
from typing_extensions import Unpack

from tests.engine.process import ServerProcess, running
from tests.engine.serve import READY


class ServeOptions(TypedDict, total=False):
    """Options of `tests.engine.serve`, under the same names and with the same defaults."""

    ctx: int
    parallel: int
    unified: bool
    threads: int
    batch: int
    api_key: str
    embeddings: bool
    port: int
    cache_ram: int
    slot_save_path: str


@dataclass(frozen=True, slots=True)
class Engine:
    """A running llama-server. `url` is its root, without `/v1`; `words` the cycle of a walk model."""

    url: str
    model: str
    process: ServerProcess = field(repr=False)
    words: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return self.process.pid

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=30.0, trust_env=False).raise_for_status().json()

    def slots(self) -> list[dict[str, Any]]:
        """The state of every slot.

        Asked more often than every 1.5 seconds this keeps the engine from noticing that a client has gone: it
        looks only when a wait of one second ends without any result, and an answer to this question is one.
        """
        return cast("list[dict[str, Any]]", self.get("/slots"))

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60.0, trust_env=False)

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """A chat completion, not streamed.

        Raises:
            httpx.HTTPStatusError: the engine refused.
        """
        reply = self.post("/v1/chat/completions", {"model": self.model, "messages": messages, **fields})
        return cast("dict[str, Any]", reply.raise_for_status().json())


def _arguments(model: Path, alias: str, options: ServeOptions) -> list[str]:
    arguments = ["-m", "tests.engine.serve", str(model), "--stay-with-parent", "--alias", alias]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not False:
            arguments += [flag, str(value)]
    return arguments


@contextmanager
def llama_server(
    model: Path, *, log: Path, alias: str = "tiny", words: tuple[str, ...] = (), **options: Unpack[ServeOptions]
) -> Iterator[Engine]:
    """Run llama-server on a model file, on a free port of the loopback interface.

    Raises:
        RuntimeError: it could not load the model; the text has its log.
    """
    with running(_arguments(model, alias, options), ready=READY, log=log) as (process, url):
        yield Engine(url=url, model=alias, process=process, words=words)
