"""Tool calls for models that have none: a protocol in the prompt, history as text, calls read back from the answer."""

from __future__ import annotations

from proxy.emulation.history import as_text, calls_as_text
from proxy.emulation.leaks import LeakedCalls, leaked_message
from proxy.emulation.message import EmulatedMessage, emulated_message
from proxy.emulation.offer import NO_TOOLS, Offer, Tool, offer_of
from proxy.emulation.protocol import protocol
from proxy.emulation.scanned import Call, Malformed, Scanned, Text
from proxy.emulation.scanner import CallScanner
from proxy.emulation.stream import EmulatedStream
from proxy.emulation.verdict import CallFault, FormCount, complaint, faults_of

__all__ = [
    "NO_TOOLS",
    "Call",
    "CallFault",
    "CallScanner",
    "EmulatedMessage",
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
    "emulated_message",
    "faults_of",
    "leaked_message",
    "offer_of",
    "protocol",
]
