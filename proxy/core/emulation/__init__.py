"""Tool calls for models that have none: a protocol in the prompt, history as text, calls read back from the answer."""

from __future__ import annotations

from proxy.core.emulation.history import as_text
from proxy.core.emulation.message import complaint, emulated_message
from proxy.core.emulation.offer import NO_TOOLS, Offer, Tool, offer_of
from proxy.core.emulation.protocol import protocol
from proxy.core.emulation.scanner import Call, CallScanner, Malformed, Piece, Text
from proxy.core.emulation.stream import EmulatedStream, FormCount

__all__ = [
    "NO_TOOLS",
    "Call",
    "CallScanner",
    "EmulatedStream",
    "FormCount",
    "Malformed",
    "Offer",
    "Piece",
    "Text",
    "Tool",
    "as_text",
    "complaint",
    "emulated_message",
    "offer_of",
    "protocol",
]
