"""Packed vocabularies; `tests/tokens/make_vocabularies.py` makes them, THIRD_PARTY.md says whose they are."""
