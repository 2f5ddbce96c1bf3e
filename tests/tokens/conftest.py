"""Vocabularies loaded once for each test process."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import pytest

from proxy.tokens.counter import Vocabulary
from proxy.tokens.families import VOCABULARIES

Shipped: TypeAlias = Callable[[str], Vocabulary]


@cache
def loaded(name: str) -> Vocabulary:
    return VOCABULARIES[name]()


@pytest.fixture(scope="session")
def shipped() -> Shipped:
    return loaded
