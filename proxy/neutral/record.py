"""Records that are made for every request: frozen to those who check types, and at run time as cheap as can be.

A frozen dataclass sets each field through `object.__setattr__`, which costs four times as much as setting it (Python 3.11);
a short request makes a hundred such fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, **options: Any) -> Callable[[type[T]], type[T]]:
        """`dataclass(frozen=True, …)`, but for what prevents a field from being set."""
        return dataclass(unsafe_hash=frozen and options.get("eq", True), **options)


__all__ = ["record"]
