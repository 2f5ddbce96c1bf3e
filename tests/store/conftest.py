import pytest

from proxy import store
from tests.store.support import HandClock, redis_server

__all__ = ["redis_server"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAUSE", 0.5)
