from __future__ import annotations

import threading

import pytest

from proxy.store.worker import QueueFull, Worker


def test_jobs_run_in_order_on_one_other_thread() -> None:
    worker, seen = Worker("test", depth=100), list[tuple[int, str]]()
    for number in range(10):
        worker.submit(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]
    worker.stop(lambda: None).result(10)
    assert seen == [(number, "test") for number in range(10)]


def test_a_failure_is_handed_over_and_the_thread_goes_on() -> None:
    worker = Worker("test", depth=100)
    failing = worker.submit(lambda: 1 // 0)
    assert worker.submit(lambda: "fine").result(10) == "fine"
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    worker.stop(lambda: None).result(10)


def test_the_queue_of_what_nobody_waits_for_is_bounded_and_a_cancelled_job_is_left_out() -> None:
    worker, gate, ran = Worker("test", depth=3), threading.Event(), list[str]()
    started = threading.Event()
    worker.submit(started.set)
    worker.submit(lambda: gate.wait(10))
    started.wait(10)
    waiting = [worker.offer(lambda: ran.append("x")) for _ in range(3)]
    with pytest.raises(QueueFull):
        worker.offer(lambda: None)
    worker.submit(lambda: ran.append("asked for"))
    assert waiting[1].cancel()
    gate.set()
    worker.stop(lambda: ran.append("last")).result(10)
    assert ran == ["x", "x", "asked for", "last"]
