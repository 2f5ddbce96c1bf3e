"""vLLM: `max_model_len` in the model list is the window, for as long as the server runs."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from proxy.backends.base import Backend, Flow, Probe
from proxy.backends.fields import fact, nonblank, tokens, window
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust, value_of
from proxy.core.jsontext import JsonObject, dig
from proxy.core.request import Thinking

_COUNTED = (
    *("model", "messages", "tools", "add_generation_prompt", "continue_final_message"),
    *("add_special_tokens", "chat_template", "chat_template_kwargs"),
)
"""Fields of a chat body that change its prompt and that `/tokenize` knows (vLLM 0.33)."""


class Vllm(Backend):
    """vLLM's OpenAI-compatible server."""

    kind = owner = "vllm"
    title = "vLLM"
    port = 8000
    start = "start it: `vllm serve MODEL`"
    listen = "start it with `--host 0.0.0.0`"
    unauthorized = ({"error": "Unauthorized"},)  # 0.33; in the replies of others `error` is an object
    wider = "start it with a larger `--max-model-len`"
    # A trailing assistant message alone is closed, and the model begins a new turn.
    continuations = (Continuation.FLAGS, Continuation.QUOTE)
    # `continuous_usage_stats` has no effect without `include_usage`.
    ask_running_counts: Mapping[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    # `--max-model-len` is fixed for the life of the process.
    fixed_windows = True
    refuses_long_answers = True  # seen on 0.32; a bound within the window is lowered to the room left beside the prompt
    native = (
        *("/version", "/ping", "/load", "/sleep", "/wake_up", "/is_sleeping", "/reset_*_cache", "/server_info"),
        *("/collective_rpc", "/pooling", "/classify", "/score", "/v1/score", "/v1/*_lora_adapter"),
    )
    # `entrypoints/serve`, 2026-11: vLLM asks for its own key only below `/v1`, and for none here.
    admin = (
        *("POST */load_lora_adapter", "POST */unload_lora_adapter", "POST */sleep", "POST */wake_up"),
        *("POST */reset_*_cache", "POST */pause", "POST */resume", "POST */abort_requests", "POST */collective_rpc"),
        *("POST */*_weight_transfer_engine", "POST */*_weight_update", "POST */update_weight*"),
        *("POST */weight_checker", "POST */scale_elastic_ep", "POST */start_profile", "POST */stop_profile"),
    )

    @override
    def listed_profile(self, entry: JsonObject, named: Mapping[str, JsonObject]) -> ModelProfile:
        """Read a base model, or a LoRA adapter, whose length is that of the base model named as its `parent`."""
        base = named.get(nonblank(entry.get("parent")) or "", {})
        lengths = (window(each, "vLLM, max_model_len", Trust.LOADED) for each in (entry, base))
        root = nonblank(base.get("root")) or nonblank(entry.get("root"))
        return ModelProfile(
            window=next(filter(None, lengths), None),
            continuation=Fact(Continuation.FLAGS, "vLLM", Trust.FALLBACK),
            tokenizer=fact(root, "vLLM, model path", Trust.LISTED),
        )

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> JsonObject:
        """Build the switch of most templates, and the effort (documentation of 0.26, "Reasoning outputs").

        The bound is separate (`thinking_bound`), because it may be refused.
        """
        options: JsonObject = {} if thinking.on is None else {"chat_template_kwargs": {"enable_thinking": thinking.on}}
        return {**options, "reasoning_effort": effort} if (effort := thinking.of_three) else options

    @override
    def thinking_bound(self, tokens: int, body: Mapping[str, Any], profile: ModelProfile) -> JsonObject:
        """Build the bound, unless it was refused: servers whose reasoning parser names no marks do (0.26, `input_processor.py`)."""
        return {} if value_of(profile.thinks) is False else {"thinking_token_budget": tokens}

    @override
    def count(self, body: JsonObject) -> Flow[int | None]:
        """Count exactly, chat template and tools included."""
        question = {name: body[name] for name in _COUNTED if name in body}
        return tokens(dig((yield Probe("POST", "/tokenize", question)).json, "count"))
