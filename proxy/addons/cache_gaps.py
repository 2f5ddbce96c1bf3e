"""Gaps in llama.cpp's cache: what follows a part that was taken out of a prompt is moved up, and not read again.

Behind the common beginning, the server looks for the prompt's next tokens further on in its cache, if the request has
`n_cache_reuse` (b11549; older builds ignore the field). So leaving out costs nothing. What was read behind the gap still reflects
what stood there: with attention alone the probabilities hardly change, but a recurrent state would go on remembering it.
"""

from typing_extensions import override

from proxy.addon import AddOn
from proxy.backends.profile import ModelKey
from proxy.core.jsontext import JsonObject
from proxy.job import Job
from proxy.tokens.cache import Cache, CacheMemory

_REUSE = "n_cache_reuse"
_RUN = 32
"""Fewest tokens in a row worth moving: shorter runs, such as a template's marks, may be of other messages."""


class CacheGaps(AddOn):
    """Has the server close gaps between prompts that it reads one after the other, if most of their messages are the same."""

    def __init__(self, memory: CacheMemory) -> None:
        self._newest = Cache[ModelKey, tuple[str, frozenset[bytes], bool]](memory)
        """Scope and client's messages of the prompt that each model read last, and whether they were sent as they came."""

    @override
    async def place(self, job: Job, beside: JsonObject | None = None) -> None:
        """Ask for it, unless the client or the settings say otherwise, or another conversation's prompt was read last."""
        prompt, kept = job.prompt, job.profile.rolls_back
        if job.known_backend.kind != "llamacpp" or kept is None or not kept.value:
            return
        scope, before, same_bytes = self._newest.get(job.key) or ("", frozenset(), False)
        prompt.fields.pop(_REUSE, None)
        now = frozenset(prompt.digests if beside is None else ())  # a transcript is in the cache then
        self._newest.put(job.key, (job.scope, now, prompt.untouched), 96 * len(now))
        if beside is not None:
            return
        same = scope == job.scope and 2 * len(before & now) > max(len(before), len(now))
        # Where a client's prompt only grows there is no gap, and it passes byte for byte.
        gap = before - now or not (same_bytes and prompt.untouched)
        if same and gap and job.settings.stabilise and _REUSE not in prompt.request.body:
            prompt.fields[_REUSE] = _RUN
