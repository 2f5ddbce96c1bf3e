"""Windows that were learned: what teaches them, what ends them, when the backend is asked again."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.backends.profile import Fact, Trust
from proxy.backends.windows import CutSeen, Filled
from proxy.net import prober as module
from proxy.net.lessons import HELD_FOR, LESSON_TTL, MOST_SEEN
from proxy.net.prober import COOL_DOWN, FIXED_FACTOR
from tests.net.probing import MODEL, TTL, Bench, lmstudio, user, vllm

pytestmark = pytest.mark.anyio

NOTHING: dict[str, Any] = {"/v1/models": {"object": "list", "data": [{"id": MODEL}]}}
CUT = CutSeen(6500, 1990, b"a")
LONGER = CutSeen(9000, 2040, b"b")


async def probed(replies: dict[str, Any], **options: Any) -> Bench:
    bench = Bench(replies, **options)
    await bench.window()
    return bench


# -- what an error named -------------------------------------------------------------------------------


async def test_a_window_that_an_error_named_expires() -> None:
    bench = await probed(NOTHING)
    bench.prober.learn(MODEL, 6000, "an error")
    bench.clock.now += LESSON_TTL - 1
    assert await bench.window() == 6000
    assert bench.prober.snapshot()["models"][MODEL]["window"]["expires_in"] == 1
    bench.clock.now += 1
    assert await bench.window() is None


async def test_one_that_was_learned_before_anything_was_loaded_yields_to_what_is_loaded_then() -> None:
    bench = await probed(lmstudio(None))
    bench.prober.learn(MODEL, 6000, "an error")
    assert await bench.window() == 6000
    bench.sent(lmstudio(32_768))
    bench.clock.now += TTL
    assert await bench.window() == 32_768


@pytest.mark.parametrize("named", [6000, 65_536])
async def test_the_loaded_instance_is_believed_over_any_error(named: int) -> None:
    bench = await probed(lmstudio(8192))
    bench.prober.learn(MODEL, named, "an error")
    assert await bench.window() == 8192


async def test_what_the_backend_held_is_remembered_for_some_minutes() -> None:
    bench = await probed(NOTHING)
    assert bench.prober.lessons.held(MODEL) == 0
    for tokens in (3000, 5000, 4000):
        bench.prober.answered(MODEL, tokens)
    assert bench.prober.lessons.held(MODEL) == 5000
    bench.clock.now += HELD_FOR
    assert bench.prober.lessons.held(MODEL) == 0
    bench.prober.answered(MODEL, 4000)
    assert bench.prober.lessons.held(MODEL) == 4000
    bench.prober.forget(MODEL)
    assert bench.prober.lessons.held(MODEL) == 0


# -- what was cut --------------------------------------------------------------------------------------


async def test_one_cut_prompt_is_no_proof() -> None:
    bench = await probed(NOTHING)
    assert bench.prober.learn_cut(MODEL, CUT) is None
    assert bench.prober.learn_cut(MODEL, CUT) is None
    assert await bench.window() is None
    assert bench.prober.learn_cut(MODEL, LONGER) == 2048
    assert (await bench.prober.profile(MODEL)).window == Fact(2048, "silent cut", Trust.LEARNED)
    assert bench.prober.learn_cut(MODEL, LONGER) is None, "nothing new"


async def test_of_several_cuts_the_one_that_left_most_is_nearest_to_the_window() -> None:
    bench = await probed(NOTHING)
    bench.prober.learn_cut(MODEL, CutSeen(6500, 3900, b"a"))
    assert bench.prober.learn_cut(MODEL, CutSeen(9000, 1500, b"b")) == 4096


async def test_what_the_loaded_instance_says_too_is_believed_at_once_against_the_user() -> None:
    bench = await probed(lmstudio(2048), overrides=user(window=16_384))
    assert await bench.window() == 16_384
    assert bench.prober.learn_cut(MODEL, CUT) == 2048
    assert await bench.window() == 2048


async def test_against_the_loaded_instance_no_cut_is_evidence() -> None:
    bench = await probed(lmstudio(4096), overrides=user(window=16_384))
    assert bench.prober.learn_cut(MODEL, CUT) is None
    assert bench.prober.learn_cut(MODEL, LONGER) is None
    assert await bench.window() == 16_384


async def test_the_second_must_come_in_time() -> None:
    bench = await probed(NOTHING)
    bench.prober.learn_cut(MODEL, CUT)
    bench.clock.now += LESSON_TTL
    assert bench.prober.learn_cut(MODEL, LONGER) is None
    bench.prober.forget()
    assert bench.prober.learn_cut(MODEL, CUT) is None


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MODELS", 3)
    bench = await probed(NOTHING)
    for number in range(10):
        bench.prober.learn_cut(f"m{number}", CUT)
    assert bench.prober.learn_cut("m0", LONGER) is None
    assert bench.prober.learn_cut("m9", LONGER) == 2048
    for number in range(MOST_SEEN):
        assert bench.prober.learn_cut("m8", CutSeen(6500, 1990 + number, b"a")) is None
    bench.prober.learn_cut("m7", CUT)
    for number in range(MOST_SEEN):
        bench.prober.learn_cut("m7", CutSeen(1000, 300 + number, b"a"))
    assert bench.prober.learn_cut("m7", CutSeen(1000, 300, b"c")) is None


async def test_a_window_behind_no_cut_is_not_invented() -> None:
    bench = await probed(NOTHING)
    assert bench.prober.learn_cut(MODEL, CutSeen(2**22, 2**21, b"a")) is None


# -- what was filled -----------------------------------------------------------------------------------


async def test_two_unbounded_answers_that_end_for_their_length_tell_the_window() -> None:
    bench = await probed(NOTHING)
    assert bench.prober.learn_filled(MODEL, Filled(1000, 7192)) is None
    assert bench.prober.learn_filled(MODEL, Filled(1100, 7092)) == 8192
    assert (await bench.prober.profile(MODEL)).window == Fact(8192, "filled", Trust.LEARNED)


async def test_a_total_that_looks_like_no_window_has_to_be_seen_twice() -> None:
    bench = await probed(NOTHING)
    assert bench.prober.learn_filled(MODEL, Filled(1000, 5000)) is None
    assert bench.prober.learn_filled(MODEL, Filled(2000, 5000)) is None
    assert await bench.window() is None
    assert bench.prober.learn_filled(MODEL, Filled(3000, 4000)) == 7000
    assert await bench.window() == 7000


# -- asking again --------------------------------------------------------------------------------------


async def test_a_window_that_was_exceeded_is_read_again_once() -> None:
    bench = await probed(vllm(4096))
    bench.sent(vllm(16_384))
    assert await bench.window() == 4096
    bench.prober.answered(MODEL, 4096)
    assert await bench.window() == 4096
    bench.prober.answered(MODEL, 5000)
    assert await bench.window() == 16_384
    asked = len(bench.server.requests)
    for _ in range(3):  # it insists: then it is not asked more often than usual
        bench.prober.answered(MODEL, 20_000)
        await bench.window()
    assert len(bench.server.requests) == asked + 1
    bench.clock.now += TTL * FIXED_FACTOR
    await bench.window()
    bench.prober.answered(MODEL, 20_000)
    await bench.window()
    assert len(bench.server.requests) == asked + 3


async def test_a_fresh_profile_is_of_this_moment() -> None:
    bench = await probed(vllm(4096))
    bench.sent(vllm(16_384))
    fresh = await bench.prober.profile(MODEL, fresh=True)
    assert fresh.window is not None
    assert fresh.window.value == 4096
    bench.clock.now += COOL_DOWN
    assert await bench.window() == 4096
    fresh = await bench.prober.profile(MODEL, fresh=True)
    assert fresh.window is not None
    assert fresh.window.value == 16_384
    assert await bench.window() == 16_384


async def test_only_what_the_backend_said_itself_is_reported() -> None:
    bench = Bench(lmstudio(None), overrides=user(window=5000))
    assert bench.prober.reported_window(MODEL) is None
    await bench.window()
    assert bench.prober.reported_window(MODEL) is None, "a guess is none"
    bench.sent(lmstudio(8192))
    bench.clock.now += TTL
    await bench.window()
    bench.prober.learn(MODEL, 2048, "an error")
    reported = bench.prober.reported_window(MODEL)
    assert reported is not None
    assert (reported.value, reported.trust) == (8192, Trust.LOADED)
