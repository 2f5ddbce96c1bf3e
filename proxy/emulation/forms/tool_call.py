"""`<tool_call>{…}</tool_call>` (Hermes, Qwen 2.5 and 3; the form that is taught), or tags inside (Qwen3-Coder)."""

from __future__ import annotations

from proxy.emulation.forms.base import Form
from proxy.emulation.forms.tagged import reads_json

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
TOOL_CALL = Form("tool_call", (OPENING,), reads_json(CLOSING))
