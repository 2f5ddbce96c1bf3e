"""The real engine, for the tests of its own harness."""

from __future__ import annotations

from tests.engine.fixtures import echo_engine, engine, walk_engine

__all__ = ["echo_engine", "engine", "walk_engine"]
