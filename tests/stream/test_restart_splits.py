"""An answer that is gone on with is none that begins anew, wherever it was interrupted."""

import pytest

from proxy.stream.seam import RestartFilter
from tests.stream.test_restart import SIZES, STORY
from tests.stream.test_seam import PROSE, REPETITIVE, through

pytestmark = [pytest.mark.slow, pytest.mark.rows(2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", [STORY, PROSE, *REPETITIVE.values()])
def test_a_real_continuation_is_let_through_at_every_split(text: str, size: int) -> None:
    # Of a text that repeats itself from its second line on there is no precedent before.
    for at in range(1 if text in (STORY, PROSE) else len(text) // 3, len(text), 3):
        seam = RestartFilter(text[:at])
        assert through(seam, text[at:], size) == text[at:], at
        assert not seam.restarted
