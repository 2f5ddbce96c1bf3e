"""Spillway in front of a real Open WebUI, used by a real browser: `python -m tests.openwebui`.

It needs Chromium and 0.9 GB of Python packages, so the ordinary tests leave it out; the Makefile has a target that
installs the packages. Every run starts from an empty Open WebUI and leaves screenshots in `tests/openwebui/shots`.
"""
