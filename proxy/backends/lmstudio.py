"""LM Studio: its native model lists report the loaded context length, `/v1/models` only the ids.

Version 0.4 has `/api/v1/models`, 0.3.6 and later `/api/v0/models`. Unknown paths are answered with status 200 and an
`error` text, so no code here checks the status.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from typing_extensions import override

from proxy.backends.base import MODELS, Backend, Flow, Listed, Probe
from proxy.backends.fields import (
    by_name,
    contains,
    fact,
    items,
    nonblank,
    objects,
    openai_models,
    smallest,
    switch,
    tokens,
)
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust, value_of
from proxy.core.jsontext import JsonObject, dig
from proxy.core.request import NONE, Thinking

_Entry: TypeAlias = tuple[JsonObject, list[JsonObject]]
"""An entry of the native list, and those of its loaded instances to which a name refers."""
_UNKNOWN: _Entry = {}, []


class LmStudio(Backend):
    """LM Studio's server, 0.3.6 and later. Only the SDK's websocket counts prompts."""

    kind = "lmstudio"
    title = "LM Studio"
    port = 1234
    start = "start its server (Developer, Status: Running; or `lms server start`)"
    listen = 'switch on "Serve on Local Network" in its server settings (or `lms server start --bind 0.0.0.0`)'
    add_model = "download one in LM Studio, or `lms get MODEL`"
    # Newer engines repeat the prefix in the answer (LM Studio's bug tracker, #2041), as llama.cpp does in its automatic
    # mode.
    continuations = (Continuation.TRAILING, Continuation.QUOTE)
    # The overflow policy is set per model in the application, out of reach of REST; the SDK's default cuts
    # out the middle, so nothing but the window itself can be relied on.
    shifts_silently = True
    sets_windows = True
    guards_memory = True
    wider = (
        'have Spillway load it with one (SPILLWAY_MODELS=\'{"MODEL": {"window": "auto"}}\', or a number), or '
        "load it with a larger context length (in the list of models: its settings, Context Length; or "
        "`lms load MODEL --context-length 16384`)"
    )
    native = ("/api/v0/*", "/api/v1/*")
    # REST API v1 (documentation of 0.4).
    admin = ("POST */models/load", "POST */models/unload", "POST */models/download")

    @override
    def detect(self) -> Flow[bool]:
        """Look for either native model list."""
        return (yield from _native_list()) is not None

    @override
    def models(self) -> Flow[list[Listed]]:
        """List the models that can be requested (`/v1/models`), with details from the native list."""
        entries = openai_models((yield MODELS).json)
        native = _by_name((yield from _native_list()) or [])
        return [Listed(entry["id"], entry, _profile(native, entry["id"])) for entry in entries]

    @override
    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read the loaded instance's length, or the smallest of several if the model id names them all."""
        return _profile(_by_name((yield from _native_list()) or []), model)

    @override
    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Request one token, which loads the model just in time, with the time to live that the client chose.

        A model loaded by `/api/v1/models/load` counts as loaded by hand: it has no time to live, stays when another model
        is loaded, and may get other settings than a request gives it (LM Studio's bug tracker, #2051 and #1463).
        """
        ask = {"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
        ttl = {"ttl": body["ttl"]} if "ttl" in body else {}
        yield Probe("POST", "/v1/chat/completions", ask | ttl, loads=True)

    @override
    def load_window(self, model: str, body: Mapping[str, Any], windows: Sequence[int]) -> Flow[int | None]:
        """Load it by `/api/v1/models/load`, unless an instance has the window; if none is granted, with its previous one.

        Loading adds another instance, and is refused if there is no memory for two, so instances with a smaller window are
        unloaded first (nugget/thane-ai-agent, #1397).
        """
        entry, instances = _by_name((yield from _native_list()) or []).get(model, _UNKNOWN)
        previous = smallest(tokens(dig(each, "config", "context_length")) for each in instances) or 0
        if previous >= windows[0]:
            return windows[0]
        for each in instances:
            yield Probe("POST", "/api/v1/models/unload", {"instance_id": each.get("id")})
        for window in (*windows, *([previous] if previous and previous not in windows else [])):
            loading = {"model": entry.get("key", model), "context_length": window, "echo_load_config": True}
            loaded = (yield Probe("POST", "/api/v1/models/load", loading, loads=True)).json
            if nonblank(dig(loaded, "instance_id")) is not None:
                return tokens(dig(loaded, "load_config", "context_length")) or window
        return None

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> JsonObject:
        """Build one field, for models that offer the choice in the list (LM Studio's bug tracker, #2057, for 0.4.17)."""
        if not value_of(profile.thinks):
            return {}
        if thinking.on is False:
            return {"reasoning_effort": NONE}
        effort = thinking.of_three or ("medium" if thinking.on else "")
        return {"reasoning_effort": effort} if effort else {}


def _native_list() -> Flow[list[JsonObject] | None]:
    """Read `/api/v1/models`, or else `/api/v0/models` converted to its form; None if neither is a list of models."""
    models = dig((yield Probe("GET", "/api/v1/models")).json, "models")
    if isinstance(models, list):
        entries = [entry for entry in objects(models) if nonblank(entry.get("key")) is not None]
        if len(entries) == len(models):
            return entries
    older = openai_models((yield Probe("GET", "/api/v0/models")).json)
    return list(map(_converted, older)) if older and all(isinstance(one.get("state"), str) for one in older) else None


def _converted(entry: JsonObject) -> JsonObject:
    """Convert an entry of `/api/v0/models` to the form of `/api/v1/models`."""
    kind, loaded = nonblank(entry.get("type")), {"config": {"context_length": entry.get("loaded_context_length")}}
    return {
        "key": entry["id"],
        "architecture": entry.get("arch"),
        "max_context_length": entry.get("max_context_length"),
        "loaded_instances": [loaded] if entry.get("state") == "loaded" else [],
        "capabilities": {
            "trained_for_tool_use": contains(entry.get("capabilities"), "tool_use"),
            "vision": None if kind is None else kind == "vlm",
        },
    }


def _by_name(entries: list[JsonObject]) -> dict[str, _Entry]:
    """Index the entries with their loaded instances: all of them, or only the one that an instance id names."""
    loaded = [(entry, objects(entry.get("loaded_instances"))) for entry in entries]
    return by_name(
        [
            *((entry["key"], (entry, instances)) for entry, instances in loaded),
            *((one.get("id"), (entry, [one])) for entry, instances in loaded for one in instances),
            *((each[0].get("selected_variant"), each) for each in loaded),
            *((variant, each) for each in loaded for variant in items(each[0].get("variants"))),
        ]
    )


def _profile(named: Mapping[str, _Entry], model: str) -> ModelProfile:
    entry, instances = named.get(model, _UNKNOWN)
    length = smallest(tokens(dig(instance, "config", "context_length")) for instance in instances)
    capabilities = entry.get("capabilities")
    return ModelProfile(
        window=fact(length, "LM Studio, loaded instance", Trust.LOADED),
        trained_window=fact(tokens(entry.get("max_context_length")), "LM Studio, model list", Trust.TRAINED),
        continuation=Fact(Continuation.TRAILING, "LM Studio", Trust.FALLBACK),
        tools=_tools(trained=switch(dig(capabilities, "trained_for_tool_use"))),
        vision=fact(switch(dig(capabilities, "vision")), "LM Studio, model list", Trust.LISTED),
        thinks=fact(bool(dig(capabilities, "reasoning", "allowed_options")), "LM Studio, model list", Trust.LISTED),
        tokenizer=fact(nonblank(entry.get("architecture")), "LM Studio, architecture", Trust.LISTED),
        provisional=not instances,
    )


def _tools(*, trained: bool | None) -> Fact[bool] | None:
    """Return that tools are accepted, which they are for every model.

    LM Studio puts a format of its own into the prompt of a model that is not trained for tools, and parses and streams its
    calls like any other's. That support is weaker, but Spillway's own format in its place would be no better.
    """
    if trained is False:
        origin = "LM Studio, its own format: the model is not trained for tools"
        return Fact(value=True, origin=origin, trust=Trust.FALLBACK)
    return fact(trained, "LM Studio, model list", Trust.LISTED)
