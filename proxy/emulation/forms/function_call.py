"""`<function_call>{…}</function_call>`."""

from __future__ import annotations

from proxy.emulation.forms.base import Form
from proxy.emulation.forms.tagged import reads_json

FUNCTION_CALL = Form("function_call", ("<function_call>",), reads_json("</function_call>"))
