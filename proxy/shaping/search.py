"""Whether a request gets a tool of Spillway's own, with which the model searches the conversation."""

from __future__ import annotations

from proxy.backends.profile import ModelProfile
from proxy.neutral.request import Request
from proxy.recall.tool import definition, name_beside
from proxy.shaping.shape import tool_name


def with_search(request: Request, profile: ModelProfile, *, alone: bool) -> tuple[Request, str]:
    """A request with the search among its tools, and the name of that; as it was, and nothing, where none is offered.

    What decides is the same on every turn of a conversation, and so the tools are with which its prompts begin: no
    chores, whose answers have nothing written into them, no formats, and one choice. `alone`: a model that has tools of
    its own gets the search although the client offers none.
    """
    if profile.window is None:
        return request, ""
    body = request.body
    tools = body.get("tools") or []
    able = bool(tools) or (alone and profile.tools is not None and profile.tools.value)
    if not able or not isinstance(tools, list):
        return request, ""
    begun = request.continues or not request.messages or request.messages[-1].get("role") == "assistant"
    odd = request.structured or begun or body.get("logprobs") or body.get("functions")
    if odd or request.background or request.choices > 1:
        return request, ""
    name = name_beside([tool_name(tool) for tool in tools])
    return request.changed(tools=[*tools, definition(name)]), name
