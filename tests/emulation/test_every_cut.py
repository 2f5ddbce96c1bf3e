"""What a model writes is read alike wherever it is cut in two."""

import pytest

from tests.emulation.outputs import Output, scanned
from tests.emulation.test_scanner import rows

pytestmark = [pytest.mark.slow, pytest.mark.rows(20)]


@rows
def test_it_does_not_matter_where_an_output_is_cut(row: Output) -> None:
    for at in range(len(row.text)):
        assert scanned([row.text[:at], row.text[at:]], cut=row.cut) == row.found, at
