"""What goes wrong with backends as a whole while clients talk to them, and when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from time import monotonic

from tests.faults.backend import Faulty
from tests.faults.table import Fault, Plan, Point

FAIR, SPELL = (1.0, 6.0), (0.1, 0.6)
"""Seconds between two spells, and seconds that one lasts."""
LOOK = 0.05
"""Seconds between two looks at all of them."""
AFTERMATH = 3.0
"""Seconds in which a proxy may still believe what it was told last."""


class Weather:
    """Changes what holds for all clients of a backend, one backend after the other."""

    def __init__(self, backends: Sequence[Faulty], chance: Random) -> None:
        self._backends, self._chance = backends, chance
        self._bad: dict[str, float] = {}
        """When a backend was last seen in trouble."""
        self._heals: dict[str, float] = {}
        """When one that is will be healed."""

    def note(self, backend: Faulty) -> None:
        """It is in trouble now, whoever brought it there."""
        self._bad[backend.kind] = monotonic()

    def was_bad(self, backend: Faulty, since: float) -> bool:
        """Whether a backend was in trouble after that time, or shortly before."""
        return backend.in_trouble or self._bad.get(backend.kind, 0.0) > since - AFTERMATH

    async def run(self, going: asyncio.Event) -> None:
        """Go on until cancelled; nothing is begun while `going` is not set."""
        begins = monotonic()
        while True:
            await asyncio.sleep(LOOK)
            for backend in self._backends:
                self._care(backend)
            if going.is_set() and monotonic() > begins:
                begins = monotonic() + self._chance.uniform(*FAIR)
                self._worsen(self._chance.choice(self._backends), self._chance.choice(list(Fault)))

    def _care(self, backend: Faulty) -> None:
        """Heal who has been in trouble for long enough, by the weather or by a client's own fault."""
        if not backend.in_trouble:
            return
        self.note(backend)
        if monotonic() > self._heals.setdefault(backend.kind, monotonic() + self._chance.uniform(*SPELL)):
            del self._heals[backend.kind]
            backend.recover()

    def _worsen(self, backend: Faulty, fault: Fault) -> None:
        self.note(backend)
        if fault is Fault.REFUSED:
            backend.go_down()
        else:
            backend.plans[""] = Plan(Point.PROBING, fault, self._chance.randint(1, 8))
