"""`<function=NAME>{…}</function>` (Llama 3.1), and with `<parameter=NAME>` tags, where Qwen3-Coder forgets the outer tag."""

from __future__ import annotations

from proxy.emulation.forms.base import Form
from proxy.emulation.forms.tagged import FUNCTION as OPENING
from proxy.emulation.forms.tagged import read_function

FUNCTION = Form("function", (OPENING,), read_function)
