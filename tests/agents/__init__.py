"""Coding agents, as they are, in front of a scripted model with a small window; not part of the ordinary tests."""
