"""Regular expressions that are compiled when they are first used.

The long ones take Python 5 to 20 ms each, and many a process never meets a text that they are for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as lazy
else:

    class lazy:  # noqa: N801 - it stands in for the function `re.compile`
        """`re.compile(…)`, later."""

        def __init__(self, text: Any, flags: int = 0) -> None:
            self._asked = text, flags

        def __getattr__(self, name: str) -> Any:
            compiled = re.compile(*self._asked)
            for each in (
                "pattern",
                "search",
                "match",
                "fullmatch",
                "findall",
                "finditer",
                "split",
                "sub",
                "subn",
            ):
                setattr(self, each, getattr(compiled, each))
            return getattr(compiled, name)


__all__ = ["lazy"]
