"""A bound on thinking, in tokens: the backend enforces it if it has a field for one, and Spillway watches over it everywhere.

The bound is the setting `thinking_budget` or the client's own budget, whichever is lower; if the client sets an effort, only a share
of the setting counts. When thinking reaches the bound, Spillway ends it and asks for the answer (`proxy.attempts.resuming`). It also
asks if the model stops after thinking without an answer, with or without a bound.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from proxy.addon import AddOn
from proxy.backends.fields import nonblank, smallest, tokens
from proxy.core.jsontext import dig
from proxy.core.request import EFFORTS, NONE, Thinking
from proxy.job import Job
from proxy.stream.watch import UNBOUND

_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5}
"""Shares of the bound by effort, as OpenRouter documents them ("Reasoning tokens", 2026); any other effort gets all of it."""
_BUDGETS = (("reasoning", "max_tokens"), ("thinking_budget_tokens",), ("thinking_token_budget",))
_WORDS = (("reasoning", "effort"), ("reasoning_effort",), ("think",))
_SWITCHES = (("think",), ("chat_template_kwargs", "enable_thinking"))
"""Fields by which clients of chat completions limit thinking: OpenRouter's, llama.cpp's, vLLM's, OpenAI's and Ollama's."""
_SLACK, _SLACK_SHARE = 64, 4
"""Tokens, and divisor of the bound: the larger of the two is how far a backend that ends thinking itself may exceed the bound."""


class ThinkingBudget(AddOn):
    """Bounds a model's thinking before it answers."""

    @override
    def before_sending(self, job: Job, *, again: bool) -> None:
        """Put the bound into the prompt's options, and have the answer watched for it."""
        if job.settings.thinking_budget is None and job.request.thinking is None:
            return
        bound = _bound(job)
        if bound is None:
            return
        request = bounded = job.prompt.request
        fields = job.known_backend.thinking_bound(bound, request.body, job.profile)
        if fields:
            bounded = request.changed(**fields)
            bound = bound + max(_SLACK, bound // _SLACK_SHARE) if job.cancels else UNBOUND
        elif not request.stream and request.choices == 1 and job.streams:
            # An answer that comes in one piece cannot be stopped while the model is thinking.
            bounded = replace(request.changed(stream=True), stream=True)
        bound = bound if request.choices == 1 else UNBOUND
        job.prompt = replace(job.prompt, request=bounded, thinking_bound=bound)


def _bound(job: Job) -> int | None:
    """Return the tokens that this request may think, or None if there is no bound or the client switched thinking off."""
    limit, body = job.settings.thinking_budget, job.request.body
    client = job.request.thinking or (None if limit is None else _thinking_in(body))
    if client is None:
        return limit
    if client.on is False:
        return None
    share = 1 if limit is None else max(1, int(limit * _SHARES.get(client.effort, 1)))
    return smallest((limit and share, client.budget))


def _thinking_in(body: Mapping[str, Any]) -> Thinking:
    """Read how much a client of chat completions wants the model to think."""
    word = next(filter(None, (nonblank(dig(body, *path)) for path in _WORDS)), "")
    off = word == NONE or any(dig(body, *path) is False for path in _SWITCHES)
    budget = smallest(tokens(dig(body, *path)) for path in _BUDGETS)
    return Thinking(on=False if off else None, effort=word if word in EFFORTS else "", budget=budget)
