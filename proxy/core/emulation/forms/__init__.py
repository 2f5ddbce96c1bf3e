"""The forms in which models write calls. A form is one file here and one line below."""

from __future__ import annotations

from proxy.core.emulation.forms.bare import BARE
from proxy.core.emulation.forms.base import Form
from proxy.core.emulation.forms.fenced import FENCED
from proxy.core.emulation.forms.function import FUNCTION
from proxy.core.emulation.forms.function_call import FUNCTION_CALL
from proxy.core.emulation.forms.mistral import MISTRAL
from proxy.core.emulation.forms.tool_call import TOOL_CALL

FORMS: tuple[Form, ...] = (TOOL_CALL, FUNCTION_CALL, FUNCTION, FENCED, BARE, MISTRAL)
