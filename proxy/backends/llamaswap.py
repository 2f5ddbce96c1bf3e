"""llama-swap: a proxy that starts and stops several servers, each under a name.

Asking a server itself (`/upstream/NAME/…`, `/props?model=NAME`) loads its model in place of the running one
(`internal/server`, 2026-08), so this is done only to load it; the window is read from the command that started it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from proxy.backends.base import MODELS, Backend, Flow, Probe
from proxy.backends.fields import contains, entries_by_name, fact, nonblank, objects, openai_models, tokens, window
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.core.jsontext import JsonObject, dig

_RUNNING = Probe("GET", "/running")
_WINDOW = re.compile(r"(?<!\S)(?:-c|--ctx-size|--max-model-len)[ =]+([0-9]{1,12})(?!\S)")
_SLOTS = re.compile(r"(?<!\S)(?:-np|--parallel)[ =]+([0-9]{1,4})(?!\S)")
_SHARED = re.compile(r"(?<!\S)(?:-kvu|--kv-unified)(?!\S)")
_FLAGS = re.compile(r"llama-server|\bvllm\b")
"""Programs or images of servers that continue a last message if flags ask for it."""


class LlamaSwap(Backend):
    """Proxy in front of servers of any kind."""

    kind = "llamaswap"
    owner = "llama-swap"
    continuations = (Continuation.FLAGS, Continuation.QUOTE)
    wider = (
        "start the model with a larger context in llama-swap's configuration (`-c 16384` in `cmd`, for llama-server)"
    )
    native = ("/running", "/upstream/*", "/api/profiles", "/api/profiles/*")
    admin = (
        *("* */unload", "* */unload/*", "* */upstream/*", "PUT */api/profiles/active"),
        *("POST */api/inflight/*", "* */logs", "* */logs/*", "GET */api/captures/*", "GET */api/events"),
    )

    @override
    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read the command line of a running server, or else the configuration."""
        entry = _entry(openai_models((yield MODELS).json), model)
        listed = self.listed_profile(entry, {})
        if listed.provisional:
            return listed
        running = objects(dig((yield _RUNNING).json, "running"))
        command = next((one.get("cmd") for one in running if one.get("model") == entry["id"]), None)
        return _started(listed, nonblank(command) or "")

    @override
    def listed_profile(self, entry: JsonObject, named: Mapping[str, JsonObject]) -> ModelProfile:
        """Read an entry of the list, which names every configured model, running or not."""
        return ModelProfile(
            window=window(entry, "llama-swap, configuration", Trust.CONFIGURED),
            continuation=Fact(Continuation.QUOTE, "no other way is known", Trust.FALLBACK),
            provisional=dig(entry, "status", "value") != "loaded",
        )

    @override
    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Request a small page from the model's own server, as llama-swap's web page does to load a model."""
        entry = _entry(openai_models((yield MODELS).json), model)
        name = quote(entry.get("id", model), safe="/", errors="replace")
        yield Probe("GET", f"/upstream/{name}/health", loads=True)

    @override
    def busy(self, model: str) -> Flow[bool]:
        """Ask whether the model would have to be loaded in place of another one, which background work must not cause."""
        running = dig((yield _RUNNING).json, "running")
        if not isinstance(running, list):
            return False
        return not any(one.get("model") == model and one.get("state") == "ready" for one in objects(running))


def _entry(entries: list[JsonObject], model: str) -> JsonObject:
    """Find the entry of a model by its name, or by one of its aliases."""
    aliased = (one for one in entries if contains(dig(one, "meta", "llamaswap", "aliases"), model))
    return entries_by_name(entries).get(model) or next(aliased, {})


def _started(listed: ModelProfile, command: str) -> ModelProfile:
    """Add the facts in a command line of llama-server or vLLM. llama-server divides `-c` among its slots, unless they share it."""
    length, slots = _number(_WINDOW, command), _number(_SLOTS, command)
    if length is not None and slots is not None and not _SHARED.search(command):
        length //= slots
    flags = Fact(Continuation.FLAGS, "command of the server", Trust.FALLBACK)
    return replace(
        listed,
        window=fact(length or None, "llama-swap, command of the server", Trust.LOADED) or listed.window,
        continuation=flags if _FLAGS.search(command) else listed.continuation,
    )


def _number(pattern: re.Pattern[str], command: str) -> int | None:
    found = pattern.search(command)
    return tokens(found.group(1)) if found is not None else None
