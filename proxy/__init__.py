"""Spillway keeps long conversations alive past a model's context window."""

__version__ = "0.1.0"
