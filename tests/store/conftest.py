from __future__ import annotations

import pytest

from tests.store.support import HandClock, redis_server

__all__ = ["redis_server"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()
