"""Vocabularies loaded once for each test process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import pytest

from proxy.tokens.families import BY_ID
from proxy.tokens.vocabulary import Vocabulary

Shipped: TypeAlias = Callable[[str], Vocabulary]


@cache
def loaded(name: str) -> Vocabulary:
    load = BY_ID[name].load
    assert load is not None
    return load()


@pytest.fixture(scope="session")
def shipped() -> Shipped:
    return loaded
