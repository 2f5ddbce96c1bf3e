"""Spillway keeps long conversations alive past a model's context window."""

__version__ = "1.0.0rc1"
