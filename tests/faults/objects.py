"""Looking through everything there is, without anybody else noticing."""

from __future__ import annotations

import gc
import sys
import time
from typing import TypeVar

T = TypeVar("T")


def all_of(kind: type[T]) -> list[T]:
    """Every object of this very type.

    Hardly anybody else runs meanwhile: a tuple that is just being made must be held by nobody but who makes it, or that fails
    with a SystemError (CPython, `_PyTuple_Resize`).
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.5)
    try:
        time.sleep(0)  # who waits to run waits as long from now on
        # By its type alone: to ask half a million objects of what they are instances takes a second.
        return [thing for thing in gc.get_objects() if type(thing) is kind]
    finally:
        sys.setswitchinterval(usual)
