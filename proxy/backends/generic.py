"""Any other server with OpenAI's API: only the ids are sure, some servers tell a window in a field of their own."""

from __future__ import annotations

from proxy.backends.base import Flow, Listed, Probe, Usual
from proxy.backends.fields import dig, entry_of, fact, mapping, openai_models, smallest, tokens
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.core.jsontext import JsonObject

_LIST = Probe("GET", "/v1/models")
_WINDOWS = (
    *(("context_length",), ("context_window",), ("max_context_length",), ("max_model_len",)),
    *(("max_input_tokens",), ("meta", "n_ctx"), ("top_provider", "context_length")),
)
"""Fields of a list entry, seen in the wild, that hold the window."""


class Generic(Usual):
    """A server of which nothing more is known."""

    kind = "generic"
    continuations: tuple[Continuation, ...] = (Continuation.QUOTE,)
    takes_marks = True
    keeps_prompts = False
    # OpenAI's own, SGLang's, text-generation-webui's and TabbyAPI's.
    admin: tuple[str, ...] = (
        *("DELETE */models/*", "POST */unload", "POST */load_model", "POST */reset"),
        *("* */flush_cache", "* */*_memory_occupation", "POST */model/load", "POST */lora/load", "POST */download"),
    )

    def detect(self, url: str) -> Flow[bool]:
        """Look for a model list in OpenAI's shape."""
        del url
        reply = mapping((yield _LIST).json)
        return reply.get("object") == "list" and isinstance(reply.get("data"), list)

    def models(self) -> Flow[list[Listed]]:
        """The ids."""
        entries = openai_models((yield _LIST).json) or []
        return [Listed(entry["id"], entry, _profile(entry)) for entry in entries]

    def profile(self, model: str) -> Flow[ModelProfile]:
        """A window only where the list tells one: otherwise requests are not managed."""
        return _profile(entry_of(openai_models((yield _LIST).json) or [], model) or {})


def _profile(entry: JsonObject) -> ModelProfile:
    """The least of several fields: one of them may be what the model was trained for."""
    windows = [tokens(dig(entry, *path)) for path in _WINDOWS]
    return ModelProfile(
        window=fact(smallest(windows), "model list", Trust.LISTED),
        continuation=Fact(Continuation.QUOTE, "no other way is known", Trust.FALLBACK),
    )
