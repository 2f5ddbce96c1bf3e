"""What is known of a model, as JSON for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from proxy.backends.profile import Fact, ModelProfile, Trust


def as_json(profile: ModelProfile, seconds_left: Mapping[str, float]) -> dict[str, Any]:
    """A profile as JSON: per field value, origin and trust, and in how many seconds what was learned expires."""
    told: dict[str, Any] = {"provisional": profile.provisional}
    for field in fields(ModelProfile):
        fact = getattr(profile, field.name)
        if isinstance(fact, Fact):
            told[field.name] = {
                "value": _plain(fact.value),
                "origin": fact.origin,
                "trust": fact.trust.name.lower(),
            }
            if fact.trust is Trust.LEARNED and field.name in seconds_left:
                told[field.name]["expires_in"] = round(seconds_left[field.name])
        elif field.name not in told:
            told[field.name] = None
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, tuple):
        return [each._asdict() for each in value]
    return str(value) if isinstance(value, str) else value
