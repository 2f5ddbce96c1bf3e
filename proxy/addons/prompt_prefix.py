"""Prompt prefixes, for which backends reuse their cache: kept stable between requests, and measured."""

from bisect import bisect_left
from typing import Any, Literal

from typing_extensions import override

from proxy.addon import AddOn
from proxy.core.history.checkpoint import CACHE_MARK, without_cache_marks
from proxy.core.request import SYSTEM_ROLES, Message, Request, is_text_part
from proxy.core.settings import Settings
from proxy.job import Job
from proxy.outcome import Outcome
from proxy.routing import Route
from proxy.tokens.cache import Cache
from proxy.tokens.meter import Estimate, Meter

_ESTIMATE, _DIGEST = 800, 64
"""Approximate bytes of an estimate, and of each digest in it."""
_BILLING_HEADER = "x-anthropic-billing-header:"
"""First words of Claude Code's (2.1) system prompt. The line holds no instruction and differs between conversations, in older
versions even between requests (`cc_version`, `cch`), so a backend could reuse nothing of its cached prompt after it."""
_EPHEMERAL = {"type": "ephemeral"}
_MARK_BYTES = CACHE_MARK.encode()


class PromptPrefix(AddOn):
    """Keeps prompt prefixes stable, and compares each prompt with the previous one of its conversation. For one thread."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._newest = Cache[tuple[str, str, bytes], Estimate](meter.memory)

    @override
    def shape(self, request: Request, route: Route, settings: Settings, outcome: Outcome) -> Request:
        """Strip billing lines, and cache marks if the backend takes none; set a mark where the service caches nothing without one."""
        if not settings.stabilise:
            return request
        backend = route.prober.known_backend
        request, kinds = stabilised(request, takes_marks=backend.hosted)
        if place := backend.cache_marks.get(route.model.removeprefix("~").partition("/")[0]):
            unmarked, request = request, with_cache_mark(request, place)
            kinds += ["marked"] if request is not unmarked else []
        if kinds:
            outcome.add("stabilised", kinds=tuple(kinds))
        return request

    @override
    def before_sending(self, job: Job, *, again: bool) -> None:
        """Record how much of the previous prompt is repeated, and remember this one."""
        links, prompt = job.prompt.links, job.estimate
        if not links:
            return
        # The first message is not enough: conversations of an agent may begin alike, with a description of its environment.
        key = (job.scope, job.outcome.conversation, links[0])
        previous = self._newest.get(key)
        if not again:
            tokens, why = (0, "first") if previous is None else self._repeated(job, previous, prompt)
            job.outcome.sent.repeated, job.outcome.sent.unlike = tokens, why
            job.outcome.add("repeated", tokens=tokens, prompt=prompt.tokens, why=why)
        self._newest.put(key, prompt, _ESTIMATE + _DIGEST * len(prompt.digests))

    def _repeated(self, job: Job, previous: Estimate, prompt: Estimate) -> tuple[int, str]:
        """Return the tokens repeated, and why there are not more; the reason is empty if all of the previous prompt is repeated."""
        if previous.scope != prompt.scope:
            return 0, "tools"
        if previous.system_digest != prompt.system_digest:
            return 0, "system"
        known, digests = previous.digests, prompt.digests
        # Digests form a chain: after the first that differs, all differ. So comparing the last is enough, and bisection works.
        if not known or (len(known) <= len(digests) and known[-1] == digests[len(known) - 1]):
            return min(previous.tokens, prompt.tokens), ""
        common = bisect_left(range(min(len(known), len(digests))), True, key=lambda at: known[at] != digests[at])
        costs = self._meter.costs(job.key, job.prompt.messages)
        same = prompt.tokens - sum(costs[len(costs) - len(digests) + common :])
        return max(0, round(same)), "edited" if job.prompt.checkpoint is None else "shortened"


def stabilised(request: Request, *, takes_marks: bool) -> tuple[Request, list[str]]:
    """Return the request without billing lines and unwanted cache marks, and the kinds found; the same object if none were.

    `takes_marks`: the backend understands cache marks, so they are left in.
    """
    messages = _without_billing(request.messages)
    fields: dict[str, Any] = {} if messages is None else {"messages": messages}
    found = [] if messages is None else ["billing"]
    if not takes_marks and (request.raw is None or _MARK_BYTES in request.raw):
        marked = {"messages": fields.get("messages", request.messages), "tools": request.body.get("tools")}
        bare = {name: without_cache_marks(value) for name, value in marked.items() if isinstance(value, list)}
        changed = {name: value for name, value in bare.items() if value is not marked[name]}
        fields |= changed
        found += ["marks"] if changed else []
    return (request.changed(**fields) if fields else request), found


def with_cache_mark(request: Request, place: Literal["request", "message"]) -> Request:
    """Return the request with one cache mark at its end; the same object on a first turn, or if the client set any mark.

    A first turn is not marked: writing a cache costs more than reading the prompt, and it may remain the only one.
    """
    messages, tools = request.messages, request.body.get("tools")
    if CACHE_MARK in request.body or not any(each.get("role") == "assistant" for each in messages):
        return request
    if any(isinstance(each, list) and without_cache_marks(each) is not each for each in (messages, tools)):
        return request
    if place == "request":
        return request.changed(cache_control=_EPHEMERAL)
    last, content = messages[-1], messages[-1].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
    if not (isinstance(parts, list) and parts and is_text_part(parts[-1])):
        return request
    marked = [*parts[:-1], {**parts[-1], CACHE_MARK: _EPHEMERAL}]
    return request.changed(messages=[*messages[:-1], {**last, "content": marked}])


def _without_billing(messages: list[Message]) -> list[Message] | None:
    """Return the messages without the billing line at their front, or None if there is no such line."""
    if not messages or messages[0].get("role") not in SYSTEM_ROLES:
        return None
    first = messages[0]
    content: Any = first.get("content")
    if isinstance(content, str) and content.startswith(_BILLING_HEADER):
        content = content.partition("\n")[2].lstrip("\n")
    elif isinstance(content, list) and content and _is_billing(content[0]):
        content = content[1:]
    else:
        return None
    return [{**first, "content": content}, *messages[1:]] if content else messages[1:]


def _is_billing(part: Any) -> bool:
    """Return whether a part of a message consists of a billing line alone."""
    text = part.get("text") if isinstance(part, dict) else None
    return isinstance(text, str) and text.startswith(_BILLING_HEADER) and "\n" not in text.strip()
