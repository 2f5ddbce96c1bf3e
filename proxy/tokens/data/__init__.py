"""Packed vocabularies; `build.py` makes them, THIRD_PARTY.md says whose they are."""
