"""Tool calls for models that have none: a protocol in the prompt, history as text, calls read back from the answer."""

from __future__ import annotations

from proxy.emulation.forms import Call, CallFault, CallSpan
from proxy.emulation.offer import NO_TOOLS, Offer, faults_of, offer_of
from proxy.emulation.prompt import as_text, calls_as_text, protocol
from proxy.emulation.reader import WrittenCallReader
from proxy.emulation.scanner import CallScanner

__all__ = [
    "NO_TOOLS",
    "Call",
    "CallFault",
    "CallScanner",
    "CallSpan",
    "Offer",
    "WrittenCallReader",
    "as_text",
    "calls_as_text",
    "faults_of",
    "offer_of",
    "protocol",
]
