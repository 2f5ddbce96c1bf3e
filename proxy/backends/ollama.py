"""Ollama: `/api/ps` reports the window of a loaded model, `/api/show` the settings of its Modelfile.

Neither of them loads a model or keeps one alive.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.backends.base import MODELS, Backend, Flow, Listed, Memory, Probe
from proxy.backends.fields import (
    by_name,
    contains,
    fact,
    mapping,
    nonblank,
    objects,
    openai_models,
    rolls_back,
    size_of,
    smallest,
    tokens,
)
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust, value_of
from proxy.core.jsontext import JsonObject, dig
from proxy.core.request import Thinking

_TAGS = Probe("GET", "/api/tags")
_PS = Probe("GET", "/api/ps")
_RENDERER = re.compile(r'^RENDERER\s+"?([\w.-]+)', re.MULTILINE)
_PREFILLING = ("qwen3.5", "qwen3-coder", "qwen3-vl", "cohere", "laguna", "lfm2", "olmo3")
"""Prefixes of the names of renderers that leave a trailing assistant message open (0.33)."""
_USABLE, _WEIGHTS, _BUFFERS = 0.9, 1.05, 2**30
"""Share of memory assumed usable; size of the weights in it, as a multiple of their file; bytes for other buffers."""
_NUM_CTX = re.compile(r'^[ \t]*num_ctx\s+"?([0-9]{1,12})\b', re.MULTILINE)


class Ollama(Backend):
    """Ollama's server. It has no endpoint that counts a prompt without generating or loading the model."""

    kind = "ollama"
    title = "Ollama"
    port = 11434
    start = "start it (the application, or `ollama serve`)"
    listen = 'start it with OLLAMA_HOST=0.0.0.0 (in the application: "Expose Ollama to the network")'
    add_model = "`ollama pull MODEL`"
    # No flag exists. Some built-in renderers and all Go templates leave a trailing assistant message open
    # (`_continuation`).
    continuations = (Continuation.TRAILING, Continuation.QUOTE)
    speaks_ollama = True
    # Two ways to lose text with status 200: a prompt that is too long is cut (`truncate`, on by default), and so is one
    # that outgrows the window while the answer is generated (`shift`, on by default). Only the reported tokens show it.
    shifts_silently = True
    sets_windows = True
    # `needsReload` in server/sched.go: another `num_ctx` restarts the model's runner.
    reloads = True
    wider = (
        'have Spillway load it with one (SPILLWAY_MODELS=\'{"MODEL": {"window": "auto"}}\', or a number), '
        "start it with OLLAMA_CONTEXT_LENGTH=16384 (in the application: Settings, Context length), or put "
        "`PARAMETER num_ctx 16384` into the model's Modelfile"
    )
    native = (
        *("/api/tags", "/api/ps", "/api/version", "/api/show", "/api/chat", "/api/generate", "/api/embed"),
        *("/api/embeddings", "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/*"),
        *("/api/me", "/api/signout"),
    )
    # Routes of `server/routes.go`, 2026-08: models, the account, and downloads in its name.
    admin = (
        *("POST */api/pull", "POST */api/push", "DELETE */api/delete", "POST */api/create", "POST */api/copy"),
        *("POST */api/blobs/*", "POST */api/signout", "DELETE */api/user/*", "POST */api/experimental/*"),
    )

    @override
    def detect(self) -> Flow[bool]:
        """Look for its endpoints, and for a detail that imitators lack: a model's owner is the namespace of its name (0.33).

        KoboldCpp, LocalAI, Lemonade, Docker Model Runner and others name themselves as the owner, or use different `model`
        and `name` fields in the tag list.
        """
        if not (yield from self.has_doors()):
            return False
        tags = objects(dig((yield _TAGS).json, "models"))
        names_agree = all(tag.get("model", name) == name for tag in tags if (name := tag.get("name")))
        return names_agree and all(map(_is_own, openai_models((yield MODELS).json)))

    def has_doors(self) -> Flow[bool]:
        """Look for a version and a tag list; a version is not enough, as other applications have one, including Spillway."""
        version = mapping((yield Probe("GET", "/api/version")).json)
        if nonblank(version.get("version")) is None or "spillway" in version:
            return False
        return "models" in mapping((yield _TAGS).json)

    @override
    def models(self) -> Flow[list[Listed]]:
        """List the models that can be requested (`/v1/models`), with details from tags and loaded models."""
        entries = openai_models((yield MODELS).json)
        tags = _by_name(objects(dig((yield _TAGS).json, "models")))
        loaded = _by_name(objects(dig((yield _PS).json, "models")))
        named = [(entry, _canonical(entry["id"])) for entry in entries]
        return [
            Listed(entry["id"], entry, _profile(name, tags.get(name, {}), loaded.get(name))) for entry, name in named
        ]

    @override
    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read the facts in the model's file, and the window of a loaded instance."""
        loaded = yield from _find(_PS, model)
        return _profile(model, mapping((yield Probe("POST", "/api/show", {"model": model})).json), loaded)

    @override
    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Send a chat without messages, which only loads (docs/api.md, "Load a model"), with the options of the request."""
        yield _loading(model, mapping(body.get("options")))

    @override
    def load_window(self, model: str, body: Mapping[str, Any], windows: Sequence[int]) -> Flow[int | None]:
        """Load it like `load`. A window that leaves part of the model outside of the GPU is too large, unless it is the last."""
        # `auto` starts from a computed size, which may still be too large: /api/ps then shows a part outside of the
        # GPU, and the next, smaller window is tried.
        for window in windows:
            if (yield _loading(model, {**mapping(body.get("options")), "num_ctx": window})).status == 200:
                loaded = (yield from _find(_PS, model)) or {}
                size, in_gpu = (size_of(loaded, name) for name in ("size", "size_vram"))
                if window == windows[-1] or not 0 < in_gpu < size:
                    return window
        return None

    @override
    def fitting_window(self, model: str, memory: Memory | None) -> Flow[int | None]:
        """Compute it from the sizes of the file and the cache; the memory that the model occupies now counts as free."""
        info = mapping(dig((yield Probe("POST", "/api/show", {"model": model})).json, "model_info"))
        weights = size_of((yield from _find(_TAGS, model)) or {}, "size")
        loaded = (yield from _find(_PS, model)) or {}
        trained, per_token = _trained({"model_info": info}), _cache_bytes(info)
        if memory is None or not (weights and trained and per_token):
            return None
        loaded_bytes = size_of(loaded, "size_vram") or size_of(loaded, "size")
        room = _USABLE * min(memory.free + loaded_bytes, memory.total) - weights * _WEIGHTS - _BUFFERS
        fitting = min(trained, int(room / per_token) // 1024 * 1024)
        return fitting if fitting > 0 else None

    @override
    def profile_for(self, body: Mapping[str, Any], profile: ModelProfile) -> ModelProfile:
        """Apply the request's `num_ctx`: the model is reloaded with it (server/sched.go), up to its trained window."""
        requested = tokens(dig(body, "options", "num_ctx"))
        if requested is None:
            return profile
        trained = value_of(profile.trained_window)
        window = fact(smallest((requested, trained)), "num_ctx of the request", Trust.REQUESTED)
        return replace(profile, window=window, provisional=False)

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> JsonObject:
        """Build `think` (docs/capabilities/thinking, 2026-08): off, or one of three efforts; there is no bound in tokens.

        Thinking models think by default; for others, any effort is refused.
        """
        if thinking.on is False:
            return {"think": False}
        effort = thinking.of_three if value_of(profile.thinks) else ""
        return {"think": effort} if effort else {}


def _loading(model: str, options: JsonObject) -> Probe:
    return Probe("POST", "/api/chat", {"model": model, **({"options": options} if options else {})}, loads=True)


def _canonical(name: str) -> str:
    """Normalise a model name as Ollama compares it: with its tag, in lower case."""
    tagged = name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
    return tagged.casefold()


def _find(listing: Probe, model: str) -> Flow[JsonObject | None]:
    """Find the entry of a model in one of Ollama's lists."""
    return _by_name(objects(dig((yield listing).json, "models"))).get(_canonical(model))


def _by_name(entries: list[JsonObject]) -> dict[str, JsonObject]:
    names = ((nonblank(name), entry) for entry in entries for name in (entry.get("model"), entry.get("name")))
    return by_name((_canonical(name), entry) for name, entry in names if name is not None)


def _is_own(entry: JsonObject) -> bool:
    """Return whether an entry's owner is the namespace of its name, as in Ollama's own list."""
    owner, parts = entry.get("owned_by"), entry["id"].split("/")
    return owner in (None, "ollama", parts[-2] if len(parts) > 1 else "library")


def _profile(model: str, shown: JsonObject, loaded: JsonObject | None) -> ModelProfile:
    """Read an answer of `/api/show`, or an entry of `/api/tags`, with the entry of `/api/ps` of a loaded model."""
    remote = any(nonblank(shown.get(name)) is not None for name in ("remote_model", "remote_host"))
    # Not every model that runs elsewhere says so, but one without a local file has no format.
    remote |= model.endswith((":cloud", "-cloud")) and not dig(shown, "details", "format")
    trained = _trained(shown)
    return ModelProfile(
        window=fact(tokens(dig(loaded, "context_length")), "Ollama, loaded model", Trust.LOADED)
        or (fact(trained, "Ollama, cloud model", Trust.LISTED) if remote else None)
        or _configured_window(shown, trained),
        trained_window=fact(trained, "Ollama, model file", Trust.TRAINED),
        tools=_capability(shown, "tools"),
        vision=_capability(shown, "vision"),
        thinks=_capability(shown, "thinking"),
        continuation=_continuation(shown, remote=remote),
        tokenizer=fact(_tokenizer(shown), "Ollama, model file", Trust.LISTED),
        rolls_back=rolls_back(mapping(shown.get("model_info")), "Ollama, model file"),
        provisional=loaded is None and not remote,
    )


def _configured_window(shown: JsonObject, trained: int | None) -> Fact[int] | None:
    line = _NUM_CTX.search(nonblank(shown.get("parameters")) or "")
    if line is None or (configured := tokens(line.group(1))) is None:
        return None
    return fact(smallest((configured, trained)), "Ollama, num_ctx of the model file", Trust.CONFIGURED)


def _trained(shown: JsonObject) -> int | None:
    """Read `<architecture>.context_length` of the model file; the tag list has it under `details` (0.30)."""
    info = mapping(shown.get("model_info"))
    named = tokens(info.get(f"{info.get('general.architecture')}.context_length"))
    lengths = (tokens(value) for key, value in info.items() if key.endswith(".context_length"))
    return named or smallest(lengths) or tokens(dig(shown, "details", "context_length"))


def _cache_bytes(info: JsonObject) -> int:
    """Compute the bytes of the 16-bit cache for one token; 0 if unknown.

    Too high if layers share a cache, have a sliding window or have none. `/api/show` empties longer arrays with one figure
    per layer; then all heads are counted.
    """
    name = info.get("general.architecture")

    def value(field: str) -> int:
        return tokens(info.get(f"{name}.{field}")) or 0

    layers, heads = value("block_count"), value("attention.head_count")
    heads_kv = info.get(f"{name}.attention.head_count_kv")
    cached = (
        sum(map(int, filter(tokens, heads_kv)))
        if isinstance(heads_kv, list) and heads_kv
        else (tokens(heads_kv) or heads) * layers
    )
    width = value("embedding_length") // (heads or 1)
    return 2 * cached * ((value("attention.key_length") or width) + (value("attention.value_length") or width))


def _capability(shown: JsonObject, name: str) -> Fact[bool] | None:
    return fact(contains(shown.get("capabilities"), name), "Ollama, capabilities", Trust.CONFIGURED)


def _continuation(shown: JsonObject, *, remote: bool) -> Fact[Continuation]:
    """Return the way to continue: Go templates are cut where the answer begins; only some of the built-in renderers continue."""
    if remote:
        return Fact(Continuation.QUOTE, "Ollama, cloud model", Trust.FALLBACK)
    renderer = _RENDERER.search(nonblank(shown.get("modelfile")) or "")
    if renderer is not None and not renderer.group(1).startswith(_PREFILLING):
        return Fact(Continuation.QUOTE, f"Ollama, renderer {renderer.group(1)}", Trust.CONFIGURED)
    return Fact(Continuation.TRAILING, "Ollama", Trust.FALLBACK)


def _tokenizer(shown: JsonObject) -> str | None:
    """Return the pre-tokenizer, which identifies the vocabulary (`llama-bpe`, `qwen2`) better, or else the architecture."""
    info = mapping(shown.get("model_info"))
    pre = nonblank(info.get("tokenizer.ggml.pre"))
    if pre is not None and pre != "default":
        return pre
    return nonblank(info.get("general.architecture")) or nonblank(dig(shown, "details", "family"))
