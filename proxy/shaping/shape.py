"""Shape a request by the policy before anything else looks at it.

Fewer and shorter tools, a cap on the answer, another system prompt, a shorter guide: decided by the request and the window alone,
so that the prompt begins the same on every turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from proxy.compaction.policy import BYTES_PER_TOKEN, answer_cap_for, prune_limits
from proxy.core.history.turns import calls_of, newest_user
from proxy.core.jsontext import dumps
from proxy.core.request import Message, Request, leading_system, text_of
from proxy.core.settings import OFF, Settings
from proxy.shaping.agent import is_agent, shortened_prompt
from proxy.shaping.guide import guided
from proxy.shaping.tools import diet, diet_from, tool_name, tool_set


@dataclass(frozen=True, slots=True)
class ShapedPart:
    """One part of the prompt that the policy shortened: the request before and after it."""

    kind: Literal["guide", "system", "tools", "on_demand"]
    before: Request
    after: Request

    @property
    def removed(self) -> list[Message]:
        """Messages that are in the request before and not after it; tools as a message."""
        return _unlike(self.before, self.after)

    @property
    def added(self) -> list[Message]:
        """Messages in their place."""
        return _unlike(self.after, self.before)


def shaped(request: Request, settings: Settings, window: int | None) -> tuple[Request, list[ShapedPart]]:
    """The request as the policy has it, with the steps that were taken; the same object if that leaves it alone.

    `window` in tokens, None if it is not known.
    """
    parts = steps(request, settings, window)
    request = parts[-1].after if parts else request
    cap = None if request.max_tokens is not None else answer_cap_for(settings, window)
    return (request if cap is None else request.bounded(cap)), parts


def steps(request: Request, settings: Settings, window: int | None) -> list[ShapedPart]:
    """Parts of a prompt that the policy changes, in order; none where it leaves the prompt alone."""
    parts: list[ShapedPart] = []
    limits = None if window is None else prune_limits(settings, window)
    guide = None if limits is None else limits.guide
    if guide is not None or settings.policy == "local":  # no other has a prompt of its own, or a guide
        if (guided := _guided(request, guide)) is not request:
            parts.append(ShapedPart("guide", request, guided))
        if (prompted := _prompted(guided, settings, window)) is not guided:
            parts.append(ShapedPart("system", guided, prompted))
        request = prompted
    if fields := _tools(request, settings, None if limits is None else limits.tools):
        parts.append(ShapedPart("tools", request, request.changed(**fields)))
    return parts


def _unlike(request: Request, other: Request) -> list[Message]:
    known = set(map(id, other.messages))
    messages = [message for message in request.messages if id(message) not in known]
    tools = request.body.get("tools")
    if tools and tools != other.body.get("tools"):
        messages.append({"role": "system", "content": dumps(tools).decode()})
    return messages


def _guided(request: Request, tokens: int | None) -> Request:
    messages = guided(request.messages, tokens)
    return request if messages is request.messages else request.changed(messages=messages)


def _prompted(request: Request, settings: Settings, window: int | None) -> Request:
    text = settings.system_prompt
    if settings.policy != "local" or text == OFF:
        return request
    lead = leading_system(request.messages)
    if text is None and lead and window is not None:
        text = _of_agent(request, lead, window)
    if text is None or not lead:
        # A request without a system prompt gets none: it may be a chore of the client's own.
        return request
    system = {"role": request.messages[0]["role"], "content": text}
    return request.changed(messages=[system, *request.messages[lead:]])


def _of_agent(request: Request, lead: int, window: int) -> str | None:
    """A short prompt for a coding agent whose own, with its tools, takes too much of the window; None: it stays."""
    text = "\n\n".join(map(text_of, request.messages[:lead]))
    tools = request.body.get("tools")
    if not isinstance(tools, list) or len(text) + len(dumps(tools)) <= diet_from(window):
        return None
    return shortened_prompt(text, window) if is_agent(text, [*map(tool_name, tools)]) else None


def allows_tool(settings: Settings, name: str) -> bool:
    """Return whether a tool of this name may be offered to the model."""
    allowed = settings.tools_allowed
    return not allowed or any(fnmatchcase(name, glob) for glob in allowed)


def _tools(request: Request, settings: Settings, tokens: int | None) -> dict[str, Any]:
    """Fields with the tools as the policy has them, within so many `tokens`."""
    tools, chosen = request.body.get("tools"), request.body.get("tool_choice")
    if not isinstance(tools, list) or not tools:
        return {}
    allowed = [tool for tool in tools if allows_tool(settings, tool_name(tool))]
    if not allowed:
        return dict.fromkeys({"tools", "tool_choice", "parallel_tool_calls"} & request.body.keys())
    slim = diet(allowed) if settings.policy == "local" else allowed
    if tokens is not None:
        slim = tool_set(slim, _called(request), tokens * BYTES_PER_TOKEN)
    fields: dict[str, Any] = {"tools": slim} if slim is not allowed or len(allowed) < len(tools) else {}
    if isinstance(chosen, dict) and not allows_tool(settings, tool_name(chosen)):
        fields["tool_choice"] = "auto"
    return fields


def _called(request: Request) -> frozenset[str]:
    """Tools that were called in earlier turns: within a turn the prompt stays as it began."""
    earlier = request.messages[: newest_user(request.messages) or 0]
    return frozenset(tool_name(call) for message in earlier for call in calls_of(message))
