"""Whether a call in the text of a model with tools of its own is meant to be made, or only shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.emulation.calls import Call
from proxy.emulation.forms import FORMS

ANNOUNCED = 200
"""Characters that a few words have at most."""
BEFORE = 300
"""Characters before a call that are looked at."""
_MARKED = frozenset(form.name for form in FORMS if form.marked)
_SENTENCE_END = re.compile(r"[.!?)\u2026\u3002\uff01\uff1f\U0001f000-\U0001ffff]\s*\Z")
_SHOWS = re.compile(
    r"\b(?:examples?|e\.g|for instance|such as|like (?:this|so)|looks? like|would|could|should look|syntax|formats?|templates?"
    r"|illustrat\w+|demonstrat\w+|samples?|hypothetical\w*|never|instead of|don't|do not|how to|you (?:can|may|should|must|need)"
    r"|show|explain|describe|tell you|here(?:['\u2019]s| is| are)"
    r"|beispiel\w*|z\. ?b|würde|könnte|exemples?|ejemplos?|esempi\w*|exemplos?)\b|例|示例|格式|пример",
    re.IGNORECASE,
)
"""Words of those who show something."""
_ANNOUNCES = re.compile(
    r"\b(?:I['\u2019]ll|I will|I['\u2019]m going to|I am going to|I need to|I have to|I['\u2019]m \w+ing|let me|let['\u2019]s|now I|first, I"
    r"|(?:calling|checking|looking|searching|reading|running|fetching|opening|writing|creating|updating)\b"
    r"|ich werde|ich rufe|ich prüfe|ich sehe|ich schaue|ich suche|ich lese|lass mich|je vais|laissez-moi|voy a|déjame|vou|deixe-me)\b"
    r"|让我|我来|我将|我会|我需要",
    re.IGNORECASE,
)
"""Words of those who are about to do something."""


def is_intended(calls: Sequence[Call], before: str, answered: int, *, showing: bool) -> bool:
    """Return whether calls at the end of an answer can't be an example, by what is said before them.

    `answered` counts the characters before them without thoughts; `showing`: the answer has shown a call before.
    """
    if not (answered or showing):
        return True
    paragraph = before.rstrip().rpartition("\n\n")[2]
    if _SHOWS.search(paragraph):
        return False
    if all(call.form in _MARKED for call in calls):
        return before.endswith("\n") or bool(_SENTENCE_END.search(before))
    short = answered <= ANNOUNCED and not showing and "\n\n" not in before.strip()
    return short and bool(_ANNOUNCES.search(paragraph))
