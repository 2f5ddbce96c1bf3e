"""How much of a prompt the next one begins with."""

from typing import TypeVar

Text = TypeVar("Text", str, bytes)


def common(before: Text, after: Text) -> int:
    """Length of what both begin with. Compared in halves: as bytes one by one it would take longer than the session."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[:middle] == after[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
