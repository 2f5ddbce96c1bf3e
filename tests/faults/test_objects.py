from __future__ import annotations

import asyncio
import threading

from tests.faults.objects import all_of


def test_what_is_being_made_meanwhile_is_not_disturbed() -> None:
    found: list[BaseException] = []
    enough = threading.Event()

    def make() -> None:
        try:
            while not enough.is_set():
                tuple(number for number in range(20_000))
        except SystemError as error:
            found.append(error)

    maker = threading.Thread(target=make)
    maker.start()
    lock = asyncio.Lock()
    for _ in range(4):
        assert lock in all_of(asyncio.Lock)
    enough.set()
    maker.join(20)
    assert not found
