"""`spillway store`: look into the checkpoint store, or empty it."""

from __future__ import annotations

import time
from typing import Literal

from proxy.settings import Settings
from proxy.store.admin import run_admin

_DAY = 86_400.0


async def store(settings: Settings, action: Literal["stats", "purge", "export"], days: float | None) -> int:
    """Run one action and print its lines; `days` bounds a purge to checkpoints older than that.

    Raises:
        SettingError: there is no such store, or it can't be reached.
    """
    age = None if days is None else days * _DAY
    for line in await run_admin(settings.store, action, clock=time.time, older_than=age):  # noqa: TID251 - wall clock of a command
        print(line)  # noqa: T201 - a command line tool prints
    return 0
