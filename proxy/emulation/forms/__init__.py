"""The forms in which models write calls. A form is one file here, or an entry in one, and a name below."""

from __future__ import annotations

from proxy.emulation.forms.bare import BARE
from proxy.emulation.forms.base import CallForm
from proxy.emulation.forms.fenced import FENCED
from proxy.emulation.forms.mistral import MISTRAL
from proxy.emulation.forms.pythonic import PYTHON_TAG
from proxy.emulation.forms.tagged import FUNCTION, FUNCTION_CALL, TOOL_CALL

FORMS: tuple[CallForm, ...] = (TOOL_CALL, FUNCTION_CALL, FUNCTION, FENCED, BARE, MISTRAL, PYTHON_TAG)
