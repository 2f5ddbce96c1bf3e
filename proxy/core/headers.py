"""Headers as they are on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names, in lower case where they were read or are sent to a backend, and values."""
