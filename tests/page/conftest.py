"""The browser that the tests of the page look with."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.page.stage import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running
