"""Requests of tools for models that have none, in which they become text."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.backends.profile import ModelProfile
from proxy.core.request import Message, Request
from proxy.core.settings import Settings
from proxy.emulation.offer import NO_TOOLS, Offer, offer_of
from proxy.emulation.prompt import as_text

_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


def offer_to_emulate(request: Request, profile: ModelProfile, settings: Settings, *, now: bool) -> Offer | None:
    """Build the offer of tools for a model that has none of its own; None where nothing is to be emulated.

    `now`: the backend has just refused them. A history of calls is rewritten although none is offered any more.
    """
    lacks = now or (profile.tools is not None and not profile.tools.value)
    if not lacks or settings.tool_mode == "native":
        return None
    offer = offer_of(request.body)
    if offer is None and any(message.get("tool_calls") or message["role"] == "tool" for message in request.messages):
        return NO_TOOLS
    return offer


def emulated(request: Request, offer: Offer, messages: Sequence[Message], *, system: bool) -> Request:
    """The request with its tools, and the calls and results in these messages, as text.

    `system`: the model's template may know the role, so that a system message may be added.
    """
    gone = {name: None for name in _FIELDS if name in request.body}
    return request.changed(messages=as_text(messages, offer, system=system), **gone)
