"""Thinking has an end: a bound in tokens, held by the backend where it has a field for one, and by Spillway everywhere.

The bound is the user's (`thinking_budget`) or the client's own, the lower of them. An effort of the client's makes it a part
of the user's. Of a thought that is as long as its bound the answer is asked for (`proxy.attempts.resuming`), and so it is of
one that ended without a word, bound or not.
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
"""Parts of the bound by effort, as OpenRouter has them ("Reasoning tokens", 2026); any other has all of it."""
_BUDGETS = (("reasoning", "max_tokens"), ("thinking_budget_tokens",), ("thinking_token_budget",))
_WORDS = (("reasoning", "effort"), ("reasoning_effort",), ("think",))
_SWITCHES = (("think",), ("chat_template_kwargs", "enable_thinking"))
"""Where clients of chat completions say how much: OpenRouter's, llama.cpp's, vLLM's, OpenAI's and Ollama's."""
_SLACK, _SLACK_SHARE = 64, 4
"""Tokens, and part of the bound, that a backend's own end of a thought may come late."""


class ThinkingBudget(AddOn):
    """Bounds what a model thinks before it answers."""

    @override
    def before_sending(self, job: Job, *, again: bool) -> None:
        """Put the bound into the prompt's options, and have the answer watched for it."""
        if job.settings.thinking_budget is None and job.request.thinking is None:
            return
        bound = _bound(job)
        if bound is None:
            return
        request = job.prompt.request
        fields = job.known_backend.thinking_bound(bound, request.body, job.profile)
        if fields:
            job.prompt.request = request.changed(**fields)
            bound = bound + max(_SLACK, bound // _SLACK_SHARE) if job.cancels else UNBOUND
        elif not request.stream and request.choices == 1 and job.streams:
            # Nobody can be stopped whose answer comes in one piece.
            job.prompt.request = replace(request.changed(stream=True), stream=True)
        job.state.thinking_bound = bound if request.choices == 1 else UNBOUND


def _bound(job: Job) -> int | None:
    """Tokens that this request may think; None: as many as it likes, or it is not to think at all."""
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
