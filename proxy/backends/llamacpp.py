"""llama.cpp's llama-server: `/props` reports the window of a slot, and it counts complete chat bodies exactly.

In router mode (started without a model) each model has its own child process; asking about a model would load it without
`autoload=false`. A server with one model ignores that parameter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from proxy.backends.base import MODELS, Backend, Flow, Probe, SlotAction, SlotDone, SlotState
from proxy.backends.fields import (
    contains,
    entries_by_name,
    fact,
    mapping,
    nonblank,
    objects,
    openai_models,
    rolls_back,
    switch,
    tokens,
    trained,
    window,
)
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.backends.refusals import template_rules
from proxy.core.jsontext import JsonObject, dig
from proxy.core.request import Thinking

_RUNNING = frozenset({"loaded", "sleeping"})


class LlamaCpp(Backend):
    """llama-server, with one model or as a router."""

    kind = "llamacpp"
    closes_gaps = True
    title = "llama-server"
    port = 8080
    start = "start it: `llama-server -m MODEL.gguf`"
    listen = "start it with `--host 0.0.0.0`"
    wider = "start llama-server with `-c 16384` (its slots, `--parallel`, share that), or `-c 0` for all that the model was made for"
    # Flags before the plain trailing message: in that automatic mode the server (from about May 2026) repeats the
    # prefix at the start of the answer.
    continuations = (Continuation.FLAGS, Continuation.TRAILING, Continuation.QUOTE)
    ask_running_counts: Mapping[str, Any] = {"timings_per_token": True}
    # Context shift is off unless the server was started with `--context-shift`; then the answer ends with `length`.
    ends_at_window = True
    continues_reasoning = True
    repeats_prefill = True
    native = (
        *("/props", "/slots", "/slots/*", "/lora-adapters", "/tokenize", "/detokenize", "/apply-template", "/infill"),
        *("/completion", "/embedding", "/models/*", "/v1/stream/*", "/v1/streams", "/tools", "/cors-proxy"),
    )
    # Routes of `tools/server/server.cpp`, 2026-10: a router's models, slots on disk, adapters, other people's streams, and
    # two routes for the web UI: tools that run on the server, and a proxy to anywhere.
    admin = (
        *("POST */models", "DELETE */models", "POST */models/load", "POST */models/unload"),
        *("POST */slots/*", "POST */props", "POST */lora-adapters"),
        *("* */v1/stream/*", "* */v1/streams", "* */cors-proxy", "POST */tools"),
    )

    @override
    def detect(self) -> Flow[bool]:
        """Look for server properties; while it loads, every path answers with the same error."""
        props = mapping((yield Probe("GET", "/props")).json)
        if isinstance(props.get("default_generation_settings"), dict) or props.get("role") == "router":
            return True
        error = mapping(props.get("error"))
        return error.get("type") == "unavailable_error" and error.get("message") == "Loading model"

    @override
    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read the window of a slot; with a unified KV cache, all slots together hold no more than that."""
        props = mapping((yield _props(model)).json)
        entries = openai_models((yield MODELS).json)
        entry = entries_by_name(entries).get(model)
        if entry is None and len(entries) == 1 and "status" not in entries[0]:
            entry = entries[0]  # a server with one model answers to any name
        listed, caps = self.listed_profile(entry or {}, {}), mapping(props.get("chat_template_caps"))
        # Without `-np` the server has four slots that share one pool: each reports all of `n_ctx`, but together they
        # hold no more.
        slot = window(props.get("default_generation_settings"), "llama.cpp, slot", Trust.LOADED)
        vision = switch(dig(props, "modalities", "vision"))
        path = nonblank(props.get("model_path"))
        head = nonblank((yield Probe("FILE", path)).json) if path is not None else None
        return replace(
            listed,
            window=slot or listed.window,
            tools=_tools(caps),
            template_rules=_template_rules(nonblank(props.get("chat_template"))),
            vision=fact(vision, "llama.cpp, modalities", Trust.LOADED) or listed.vision,
            # The whole path: if the file is readable here, its own vocabulary is used; otherwise its name gives the family.
            tokenizer=fact(path, "llama.cpp, model file", Trust.LISTED),
            rolls_back=rolls_back(head or "", "llama.cpp, model file"),
        )

    @override
    def listed_profile(self, entry: JsonObject, named: Mapping[str, JsonObject]) -> ModelProfile:
        """Read an entry of the list; a router also lists models that are not loaded."""
        status = nonblank(dig(entry, "status", "value"))
        running = status is None or status in _RUNNING
        seen = contains(dig(entry, "architecture", "input_modalities"), "image")
        return ModelProfile(
            window=window(entry, "llama.cpp, model list", Trust.LOADED) if running else None,
            trained_window=trained(entry, "llama.cpp, model file"),
            vision=fact(seen, "llama.cpp, model list", Trust.LISTED) if running else None,
            continuation=Fact(Continuation.FLAGS, "llama.cpp", Trust.FALLBACK),
            provisional=not running,
        )

    @override
    def load(self, model: str, body: Mapping[str, Any]) -> Flow[None]:
        """Ask a router for the model's properties, which loads the model unless `autoload` is off even for requests."""
        yield Probe("GET", f"/props?model={quote(model, safe='', errors='replace')}", loads=True)

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> JsonObject:
        """Build options for the template, which ignores those that it does not know, and the bound for the sampler.

        Server's README, "chat_template_kwargs"; b11549 passes `reasoning_effort` to templates unchanged, and its own
        Messages API turns Anthropic's budget into `thinking_budget_tokens`.
        """
        options: JsonObject = {} if thinking.on is None else {"chat_template_kwargs": {"enable_thinking": thinking.on}}
        if thinking.effort:
            options["reasoning_effort"] = thinking.effort
        if thinking.budget is not None:
            options |= self.thinking_bound(thinking.budget, {}, profile)
        return options

    @override
    def thinking_bound(self, tokens: int, body: Mapping[str, Any], profile: ModelProfile) -> JsonObject:
        """Build the bound for the sampler, which knows the end mark if the template has one (measured, b11549)."""
        return {"thinking_budget_tokens": tokens}

    @override
    def busy(self, model: str) -> Flow[bool]:
        """Ask whether a slot is processing; `/slots` can be switched off (`--no-slots`)."""
        return any(slot.busy for slot in (yield from self.slots(model)))

    @override
    def slots(self, model: str) -> Flow[Sequence[SlotState]]:
        """Read the slots. Idle ones also report their tokens (b11549); one not used since the start has no task."""
        slots = objects((yield Probe("GET", f"/slots?{_unloaded(model)}")).json)
        return [
            SlotState(
                each.get("is_processing") is True,
                tokens(each.get("n_prompt_tokens")) or 0,
                count if isinstance(count := each.get("id_task"), int) else -1,
            )
            for each in slots
        ]

    @override
    def saves_slots(self, model: str) -> Flow[bool | None]:
        """Try to save without a file name, which is refused with 501 without `--slot-save-path`, and else with 400 (b11549)."""
        status = (yield Probe("POST", "/slots/0?action=save", {"model": model})).status
        return None if status in (0, 503) else status == 400

    @override
    def use_slot(self, model: str, action: SlotAction, slot: int, file: str = "") -> Flow[SlotDone | None]:
        """Act on a slot with a file in the server's `--slot-save-path`; this takes as long as the disk needs."""
        reply = yield Probe("POST", f"/slots/{slot}?action={action}", {"model": model, "filename": file}, loads=True)
        if reply.status != 200:
            return None
        done, took = mapping(reply.json), dig(reply.json, "timings", f"{action}_ms")
        held = tokens(done.get("n_saved")) or tokens(done.get("n_restored")) or 0
        size = tokens(done.get("n_written")) or tokens(done.get("n_read")) or 0
        return SlotDone(held, size, took / 1000 if isinstance(took, int | float) else 0.0)

    @override
    def count(self, body: JsonObject) -> Flow[int | None]:
        """Count exactly, template and tools included; None for a model that is asleep or not loaded."""
        props = mapping((yield _props(nonblank(body.get("model")) or "")).json)
        if props.get("is_sleeping") is True or "default_generation_settings" not in props:
            return None
        reply = yield Probe("POST", "/v1/chat/completions/input_tokens?autoload=false", body)
        return tokens(dig(reply.json, "input_tokens"))


def _props(model: str) -> Probe:
    return Probe("GET", f"/props?{_unloaded(model)}")


def _unloaded(model: str) -> str:
    """Build the query that asks a router about a model without loading it."""
    return f"model={quote(model, safe='', errors='replace')}&autoload=false"


def _tools(caps: JsonObject) -> Fact[bool] | None:
    """Return whether the chat template shows the model the tools, and its own earlier calls.

    If it does not, the server silently accepts `tools` all the same. Without the first, the model never sees the tools;
    without the second, calls come back as text and vanish from the history, and not even `tool_choice: "required"` changes
    that (measured, b11549).
    """
    flags = [switch(caps.get(name)) for name in ("supports_tools", "supports_tool_calls")]
    known = [each for each in flags if each is not None]
    return fact(all(known) if known else None, "llama.cpp, chat template", Trust.LOADED)


def _template_rules(template: str | None) -> Fact[frozenset[str]] | None:
    """Read the template's demands that the server does not meet by itself.

    For a template that needs it, the server turns `developer` into a system message, and the first system message into the
    beginning of the user's (measured, b11549).
    """
    rules = None if template is None else template_rules(template) - {"no_system", "no_developer"}
    return fact(rules, "llama.cpp, chat template", Trust.LOADED)
