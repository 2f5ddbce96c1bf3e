"""Tool calls for models that have none: a protocol in the prompt, history as text, calls read back from the answer."""

from __future__ import annotations

from proxy.emulation.calls import Call, CallFault, FormCount, Malformed, Scanned, Text, texts_joined
from proxy.emulation.history import as_text, calls_as_text
from proxy.emulation.leaks import LeakedCalls
from proxy.emulation.offer import NO_TOOLS, Offer, Tool, faults_of, offer_of
from proxy.emulation.protocol import complaint, protocol
from proxy.emulation.scanner import CallScanner
from proxy.emulation.stream import EmulatedStream

__all__ = [
    "NO_TOOLS",
    "Call",
    "CallFault",
    "CallScanner",
    "EmulatedStream",
    "FormCount",
    "LeakedCalls",
    "Malformed",
    "Offer",
    "Scanned",
    "Text",
    "Tool",
    "as_text",
    "calls_as_text",
    "complaint",
    "faults_of",
    "offer_of",
    "protocol",
    "texts_joined",
]
