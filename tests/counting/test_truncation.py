from __future__ import annotations

import pytest

from proxy.counting.truncation import window_behind_cut


@pytest.mark.parametrize(
    ("reported", "known", "window"),
    [
        (2050, None, 4096),  # half of the window and two tokens
        (2050, 32768, 4096),
        (2043, 32768, 4096),
        (2050, 4096, None),  # known already
        (3900, None, 4096),  # the oldest messages went, the rest fits
        (3900, 32768, 4096),
        (3900, 4096, None),
        (3900, 3900, None),
        (2_000_000, None, None),  # larger than any window that people choose
    ],
)
def test_a_cut_tells_the_window_unless_it_is_known(
    reported: int, known: int | None, window: int | None
) -> None:
    assert window_behind_cut(reported, known) == window
