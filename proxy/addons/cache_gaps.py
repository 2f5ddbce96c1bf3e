"""Gaps in llama.cpp's cache: the server moves up what follows a part that was taken out, instead of reading it again.

After the common beginning, the server looks for the prompt's next tokens further on in its cache if the request has
`n_cache_reuse` (b11549; older builds ignore the field). So leaving text out costs nothing. What was read after the gap
still reflects the text that was there: with attention alone the probabilities hardly change, but a recurrent state
would go on remembering it.
"""

from typing_extensions import override

from proxy.addon import AddOn
from proxy.backends.profile import ModelKey
from proxy.core.jsontext import JsonObject
from proxy.dialects.chat.request import SLOT
from proxy.job import Job
from proxy.tokens.cache import Cache, CacheMemory

_REUSE = "n_cache_reuse"
# Measured with SmolLM2 in a window of 1,024: turns after a recalled block read 57 instead of 109 tokens, 160 instead of
# 211 and 44 instead of 108, and a client that leaves out its oldest messages has 1 token read instead of 500. With 32, a
# first message of 30 tokens with what is left of its answer was too short, so all of 1,000 tokens after it were read
# (Qwen2.5-Coder-1.5B: the next turn waited 10.7 s instead of 1.3).
_RUN = 16
"""Fewest tokens in a row worth moving: shorter runs, such as a template's marks, may be of other messages."""


class CacheGaps(AddOn):
    """Makes the server close gaps between consecutive prompts of a conversation, also of one that has a slot of its own."""

    def __init__(self, memory: CacheMemory) -> None:
        self._newest = Cache[ModelKey, tuple[str, frozenset[bytes | str], bool, bool]](memory)
        """Scope and parts of the prompt that each model read last (the client's messages, the checkpoint it begins with, recalled
        blocks), whether the messages were sent unchanged, and whether ahead of time."""

    @override
    async def place(self, job: Job, beside: JsonObject | None = None) -> None:
        """Request it, unless the client or a setting decides otherwise, or another conversation's prompt was read last."""
        await self._place(job, beside)

    @override
    async def before_resuming(self, job: Job) -> None:
        """Request it for the rest of an answer too: a pause may have left out a part of the prompt."""
        await self._place(job, None, paused=True)

    async def _place(self, job: Job, beside: JsonObject | None, *, paused: bool = False) -> None:
        if not job.closes_gaps:
            return
        prompt = job.prompt
        chooses = not job.route.known.has_places and SLOT not in prompt.request.body
        scope, before, same_bytes, ahead = self._newest.get(job.key) or ("", frozenset(), False, False)
        prompt.fields.pop(_REUSE, None)
        if chooses:
            prompt.fields.pop(SLOT, None)
        blocks = (block.text for block in prompt.recalled.blocks.values())
        # A transcript is in the cache after a request beside the prompt.
        now = frozenset[bytes | str](() if beside else (*prompt.digests, prompt.beginning, *blocks))
        self._newest.put(job.key, (job.scope, now, prompt.untouched, job.ahead is not None), 96 * len(now))
        if beside is not None:
            return
        same, gone = scope == job.scope and 2 * len(before & now) > max(len(before), len(now)), bool(before - now)
        if job.progress.own_slot is not None:
            same = gone = job.progress.own_slot or paused
        # A client's prompt that only grew has no gap, so it can still be forwarded byte for byte.
        if not same or not (gone or not (same_bytes and prompt.untouched)) or _REUSE in prompt.request.body:
            return
        prompt.fields[_REUSE] = _RUN
        # The server finds the slot of a prompt that only grew.
        if (gone or paused) and chooses and (slot := await _read_last(job, cancelled=paused or ahead)) is not None:
            prompt.fields[SLOT] = slot


# Of several slots, the server's default, it chooses one whose prompt begins alike for at least a tenth, else the one that was idle
# longest: then four of five compactions were read whole (window of 2,048, four slots).
async def _read_last(job: Job, *, cancelled: bool) -> int | None:
    """Return the number of the slot with the newest task; None if there is only one slot, or somebody else's task runs there.

    `cancelled`: the conversation's own task was, so the server may not have ended it yet.
    """
    slots = await job.route.prober.runner.run(job.known_backend.slots(job.route.model))
    newest = max(range(len(slots)), key=lambda number: slots[number].task, default=0)
    busy = [number for number, slot in enumerate(slots) if slot.busy]
    return newest if len(slots) > 1 and (newest not in busy or (cancelled and busy == [newest])) else None
