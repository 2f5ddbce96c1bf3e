"""Which vocabulary a model has: what the user says, else what the backend says, else what its name suggests."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.tokens.families import BY_ID, FAMILIES, Family
from proxy.tokens.files import family_of_file

AMBIGUOUS = frozenset({"llama", "mistral", "phi3", "gpt2", "default", "other"})
"""Architectures whose models have different vocabularies: `phi3` is Phi-4's too."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The family, None when nothing fits, and by whose word: `user`, `backend`, `name`, `none`."""

    family: Family | None
    origin: str


def resolve(model: str, hint: str | None, override: str | None) -> Resolution:
    """Find the family of a model.

    Args:
        model: its id; tried as a whole and, where it has one, without what stands before the last slash.
        hint: architecture, tokenizer name, model name or file, as the backend says.
        override: the same or a family, as the user says.
    """
    if hint is not None and hint.strip().lower() in AMBIGUOUS:
        hint = None
    for origin, word in (("user", override), ("backend", hint)):
        family = _by_word(word) if word else None
        if family is not None:
            return Resolution(family, origin)
    family = _by_name(model)
    return Resolution(family, "name" if family is not None else "none")


def _by_word(word: str) -> Family | None:
    """By the word's meaning: a file, a family, a name of an architecture; else it may be a model's name."""
    word = word.strip()
    file = family_of_file(word)
    if file is not None:
        return file
    known = word.lower()
    if known in BY_ID:
        return BY_ID[known]
    exact = next((family for family in FAMILIES if family.hints.fullmatch(known)), None)
    return exact or _by_name(word)


def _by_name(name: str) -> Family | None:
    name = name.lower()
    return next((family for family in FAMILIES if family.names.search(name)), None)
