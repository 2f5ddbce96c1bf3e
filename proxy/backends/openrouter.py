"""OpenRouter: a catalogue whose figures differ from provider to provider of the same model.

The root is `https://openrouter.ai/api`. All endpoints used here are public. A prompt goes to a provider with a sufficient context
length among those that the request's `provider` object allows (documentation, "Provider Routing", 2026).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from typing_extensions import override

from proxy.backends.base import MODELS, Backend, Flow, Probe
from proxy.backends.fields import (
    contains,
    entries_by_name,
    fact,
    items,
    mapping,
    nonblank,
    objects,
    openai_models,
    tokens,
    windows,
)
from proxy.backends.profile import Continuation, Fact, ModelProfile, Provider, Trust, value_of
from proxy.core.jsontext import JsonObject, dig, omit
from proxy.core.request import NONE, Thinking

_SLUG = re.compile(r"~?[a-z0-9][\w.-]*/[a-z0-9][\w.:-]*", re.ASCII | re.IGNORECASE)
"""Model id of the form `author/slug`, with or without a variant, which may be put into a path unescaped."""
_NEW_TURN = re.compile(
    r"""~?(?:
        openai | google | deepseek | mistralai
        | anthropic(?!/claude-(?:[123]\b | instant | (?:opus|sonnet|haiku)-4(?:\.[0-5])?(?:$|:)))
    )/""",
    re.VERBOSE,
)
"""Vendors whose models do not continue a trailing assistant message. DeepSeek and Mistral want `prefix: true` on it
(their API documentation), Claude 4.6 and later answer 400 "This model does not support assistant message prefill",
OpenAI's and Google's begin a new turn (not documented, so rather safe than sorry)."""
_CANCELLING = re.compile(
    """anthropic|anyscale|avian|azure|chutes|cloudflare|cohere|deepinfra|deepseek|fireworks|friendli|hyperbolic
    |infermatic|lepton|liquid|mancer|nineteen|novita|octoai|openai|recursal|sfcompute|together|xai""",
    re.VERBOSE,
)
"""Providers that stop generating when a stream is closed: OpenRouter's documentation, Streaming, "Stream cancellation"."""


def cancels(provider: str) -> bool:
    """Return whether a provider stops generating, and billing, when a stream is closed; False if unknown.

    `provider` is a name (`DeepInfra`) or tag (`deepinfra/fp8`). No provider stops an answer that is not streamed.
    """
    return _CANCELLING.fullmatch(_plain(provider)) is not None


def allowed(preferences: object, providers: Iterable[Provider]) -> list[Provider]:
    """Return the providers that may serve a request with this `provider` object."""
    only, order, ignored = (items(dig(preferences, field)) for field in ("only", "order", "ignore"))
    pinned = order if dig(preferences, "allow_fallbacks") is False else []
    known = [each for each in providers if not _matches(each, ignored)]
    return [each for each in known if all(_matches(each, slugs) for slugs in (only, pinned) if slugs)]


def _matches(provider: Provider, slugs: list[Any]) -> bool:
    """Return whether a slug matches this provider: `deepinfra` all of its endpoints, `deepinfra/fp8` the one with that tag."""
    return any(
        slug.casefold() == provider.tag.casefold() if "/" in slug else _plain(slug) == _plain(provider.name)
        for slug in slugs
        if isinstance(slug, str)
    )


def _plain(provider: str) -> str:
    """Normalise names and slugs: `SambaNova`, `samba nova` and `sambanova/high` become the same."""
    return "".join(letter for letter in provider.split("/", 1)[0].casefold() if letter.isalnum())


class OpenRouter(Backend):
    """OpenRouter's API. Native counts come with the usage."""

    kind = "openrouter"
    title = "OpenRouter"
    domains = (".openrouter.ai",)
    bills_tokens = True
    start = "look at this machine's way to the internet, and at HTTPS_PROXY"
    listen = ""
    continuations = (Continuation.TRAILING, Continuation.QUOTE)
    fixed_windows = True
    reports_usage = True
    # By default, endpoints with a window of at most 8,192 compress prompts ("middle-out").
    fits_answer = True
    """Only for a small window is the prompt shortened, until `max_tokens` fits too ("Context compression", 2026)."""
    hosted = True
    # Clients of chat completions hardly ever set marks, so every turn of a long conversation was paid in full.
    cache_marks: Mapping[str, Literal["request", "message"]] = {"anthropic": "request", "qwen": "message"}
    """"Prompt Caching" (documentation, 2026): a cached prompt costs a tenth to read, and a quarter more to write."""
    native = ("/v1/credits", "/v1/key", "/v1/keys", "/v1/keys/*", "/v1/generation", "/v1/providers")
    # The account's keys, and buying credits (API reference, 2026-08).
    admin = ("POST */keys", "PATCH */keys/*", "DELETE */keys/*", "POST */credits/*")

    @override
    def detect(self) -> Flow[bool]:
        """Detect it by the form of the catalogue's entries, which is unique."""
        known = [entry for entry in openai_models((yield MODELS).json) if "context_length" in entry]
        shapes = ((entry.get("top_provider"), entry.get("supported_parameters")) for entry in known)
        return any(isinstance(provider, dict) and isinstance(parameters, list) for provider, parameters in shapes)

    @override
    def profile(self, model: str) -> Flow[ModelProfile]:
        """Read the endpoints of the model, and its entry in the catalogue."""
        serving: JsonObject = {}
        entry: JsonObject = {}
        if _SLUG.fullmatch(model):
            serving = mapping(dig((yield Probe("GET", f"/v1/models/{model}/endpoints")).json, "data"))
            entry = mapping(dig((yield Probe("GET", f"/v1/model/{model}")).json, "data"))
        if entry.get("id") is None or "context_length" not in entry:
            named = entries_by_name(openai_models((yield MODELS).json))
            entry = named.get(model) or named.get(model.rsplit(":", 1)[0], {})
        return _profile(model, entry, serving)

    @override
    def listed_profile(self, entry: JsonObject, named: Mapping[str, JsonObject]) -> ModelProfile:
        """Read an entry of the catalogue."""
        return _profile(entry.get("id", ""), entry, {})

    @override
    def stops_on_disconnect(self, body: Mapping[str, Any], profile: ModelProfile) -> bool:
        """Return whether every provider that may serve the request stops; True if none is known."""
        providers = value_of(profile.providers) or ()
        return all(cancels(each.name) for each in allowed(body.get("provider"), providers) or providers)

    @override
    def profile_for(self, body: Mapping[str, Any], profile: ModelProfile) -> ModelProfile:
        """Lower the window to the largest among the providers that the request allows, unless the user has set one."""
        # The largest, because OpenRouter routes a prompt to a provider that has room for it. With the smallest, a chat
        # was compacted at 8k where a provider with 131k would have taken it.
        window, providers = profile.window, profile.providers
        if "provider" not in body or window is None or providers is None or window.trust is Trust.USER:
            return profile
        largest = _largest(allowed(body["provider"], providers.value)) or window.value
        if largest < window.value:
            window = Fact(largest, "OpenRouter, largest of the allowed providers", Trust.LISTED)
        return replace(profile, window=window)

    @override
    def thinking_options(self, thinking: Thinking, profile: ModelProfile) -> JsonObject:
        """Build one object for all its models: an effort or a bound, not both (documentation, "Reasoning tokens", 2026)."""
        if value_of(profile.thinks) is False:
            return {}
        if thinking.on is False:
            return {"reasoning": {"effort": NONE}}
        if thinking.budget is not None:
            return self.thinking_bound(thinking.budget, {}, profile)
        if thinking.effort:
            return {"reasoning": {"effort": thinking.effort}}
        return {"reasoning": {"enabled": True}} if thinking.on else {}

    @override
    def thinking_bound(self, tokens: int, body: Mapping[str, Any], profile: ModelProfile) -> JsonObject:
        """Build a bound that replaces the effort, as both together are refused; OpenRouter maps it to an effort where needed."""
        if value_of(profile.thinks) is False:
            return {}
        reasoning = {**omit(mapping(body.get("reasoning")), "effort"), "max_tokens": tokens}
        return {"reasoning": reasoning, **dict.fromkeys({"reasoning_effort"} & body.keys())}


def _profile(model: str, entry: JsonObject, serving: JsonObject) -> ModelProfile:
    endpoints = objects(serving.get("endpoints"))
    # A status below zero: out of service or ranked down. If that leaves none, all count, since any may come back.
    active = [one for one in endpoints if not _is_down(one)] or endpoints
    providers = tuple(dict.fromkeys(map(_provider, active)))
    listed = windows(entry).get(Trust.LISTED)
    answer = tokens(dig(entry, "top_provider", "max_completion_tokens"))
    parameters = entry.get("supported_parameters")
    architecture = entry.get("architecture") or serving.get("architecture")
    return ModelProfile(
        window=fact(_largest(providers) or listed, "OpenRouter, largest of its providers", Trust.LISTED),
        max_output=fact(answer, "OpenRouter, top provider", Trust.LISTED),
        # The union over providers, and that is what counts: a request with tools is routed by it.
        tools=fact(contains(parameters, "tools"), "OpenRouter, supported parameters", Trust.LISTED),
        vision=fact(contains(dig(architecture, "input_modalities"), "image"), "OpenRouter, modalities", Trust.LISTED),
        thinks=fact(contains(parameters, "reasoning"), "OpenRouter, supported parameters", Trust.LISTED),
        continuation=_continuation(model),
        tokenizer=fact(nonblank(dig(architecture, "tokenizer")), "OpenRouter, tokenizer", Trust.LISTED),
        providers=fact(providers or None, "OpenRouter, endpoints", Trust.LISTED),
    )


def _provider(endpoint: JsonObject) -> Provider:
    name, tag = (nonblank(endpoint.get(field)) or "" for field in ("provider_name", "tag"))
    return Provider(name, tag, windows(endpoint).get(Trust.LISTED))


def _largest(providers: Iterable[Provider]) -> int | None:
    return max((each.window for each in providers if each.window is not None), default=None)


def _is_down(endpoint: JsonObject) -> bool:
    status = endpoint.get("status")
    return isinstance(status, int | float) and status < 0


def _continuation(model: str) -> Fact[Continuation]:
    if _NEW_TURN.match(model):
        return Fact(Continuation.QUOTE, "OpenRouter, vendor", Trust.LISTED)
    return Fact(Continuation.TRAILING, "OpenRouter", Trust.FALLBACK)
