"""What is learned of a model: what teaches it, how long it holds, what ends it early, and what stands above it."""

from typing import Any

import httpx
import pytest

from proxy.backends.profile import Continuation, Fact, Trust
from proxy.backends.windows import CutSeen
from proxy.net.prober import FIXED_FACTOR, HELD_FOR, LESSON_TTL, MOST_SEEN
from tests.net.probing import MODEL, TTL, Bench, lmstudio, ollama, user, vllm

pytestmark = pytest.mark.anyio

NOTHING: dict[str, Any] = {"/v1/models": {"object": "list", "data": [{"id": MODEL}]}}
CUT = CutSeen(6500, 1990, b"a")
LONGER = CutSeen(9000, 2040, b"b")
FLAGS, TRAILING = frozenset({Continuation.FLAGS}), frozenset({Continuation.TRAILING})


async def probed(replies: dict[str, Any], **options: Any) -> Bench:
    bench = Bench(replies, **options)
    await bench.window()
    return bench


async def taught(replies: dict[str, Any], field: str = "tools", value: Any = False, **options: Any) -> Bench:
    """A bench that has probed, and then learned this from an error."""
    bench = await probed(replies, **options)
    bench.model.learn(field, value, "an error")
    return bench


# -- for how long


@pytest.mark.parametrize(("field", "value"), [("window", 6000), ("tools", False), ("refused_continuations", FLAGS)])
async def test_a_lesson_holds_for_its_time_and_is_forgotten_alone(field: str, value: Any) -> None:
    bench = await taught(NOTHING, field, value)
    assert getattr(await bench.model.profile(), field) == Fact(value, "an error", Trust.LEARNED)
    await bench.later(LESSON_TTL - 1)
    assert await bench.value(field) == value
    await bench.later(1)
    assert await bench.value(field) is None
    fields = {"window": 6000, "tools": False, "refused_continuations": FLAGS}
    for name, each in fields.items():
        bench.model.learn(name, each, "an error")
    assert bench.model.unlearn(field)
    assert not bench.model.unlearn(field)
    for name, each in fields.items():
        assert await bench.value(name) == (None if name == field else each)
    assert bench.model.unlearn(*fields)


async def test_ways_to_continue_add_up_and_are_remembered_from_the_newest_refusal_on() -> None:
    bench = await taught(vllm(4096), "refused_continuations", FLAGS)
    bench.clock.now += LESSON_TTL / 2
    bench.model.learn("refused_continuations", TRAILING, "status 422")
    await bench.later(LESSON_TTL - 1)
    both = (await bench.model.profile()).refused_continuations
    assert both == Fact(FLAGS | TRAILING, "status 422", Trust.LEARNED)
    await bench.later(1)
    assert await bench.value("refused_continuations") is None


async def test_the_profile_is_the_same_object_while_nothing_changes() -> None:
    bench = await taught(vllm(4096))
    first = await bench.model.profile()
    assert await bench.model.profile() is first
    bench.model.learn("refused_continuations", FLAGS, "status 400")
    assert await bench.model.profile() is not first


# -- what ends it early


@pytest.mark.parametrize(("learned", "then", "expected"), [(6000, 32_768, 32_768), (6000, 8192, 8192), (65_536, 8192, 8192)])
async def test_a_loaded_instance_is_believed_over_any_error(learned: int, then: int, expected: int) -> None:
    bench = await taught(lmstudio(None), "window", learned)
    assert await bench.window() == learned
    assert await bench.later(TTL, lmstudio(then)) == expected


async def test_a_backend_that_newly_lists_tools_is_believed_but_not_one_that_did_all_along() -> None:
    bench = await taught(ollama("completion", "tools"))
    seen = []
    for capabilities in (("completion", "tools"), ("completion",), ("completion", "tools")):
        await bench.later(TTL, ollama(*capabilities))
        seen.append(await bench.value("tools"))
    assert seen == [False, False, True]


async def test_a_server_that_was_away_may_be_another_one() -> None:
    bench = await taught(NOTHING)
    bench.model.learn("window", 6000, "an error")
    bench.model.learn("refused_continuations", FLAGS, "status 400")
    bench.prober.forget()
    profile = await bench.model.profile()
    assert (profile.tools, profile.window, profile.refused_continuations) == (None, None, None)


async def test_another_model_behind_the_same_name_has_taught_nothing() -> None:
    bench = await taught(NOTHING)
    bench.prober.known("other").learn("tools", False, "an error")
    for name, tools in (("a", False), ("a", False), ("b", None)):
        bench.model.answered_as(name)
        assert await bench.value("tools") is tools
    other = (await bench.prober.known("other").profile()).tools
    assert other is not None


async def test_a_backend_that_fails_meanwhile_changes_nothing() -> None:
    bench = await taught(ollama("completion"))
    bench.server.failure = httpx.ConnectError
    await bench.later(TTL)
    assert await bench.value("tools") is False


# -- who is heard


@pytest.mark.parametrize(("learned", "expected"), [(2000, 2000), (9000, 5000)])
async def test_the_user_gives_way_only_to_a_smaller_learned_window(learned: int, expected: int) -> None:
    bench = await taught(NOTHING, overrides=user(window=5000, tools=True))
    bench.model.learn("window", learned, "an error")
    assert await bench.window() == expected
    assert (await bench.model.profile()).tools == Fact(value=True, origin="settings", trust=Trust.USER)
    (listed,) = await bench.prober.models()
    assert listed.profile.tools == Fact(value=True, origin="settings", trust=Trust.USER)


async def test_only_what_the_backend_said_itself_is_reported() -> None:
    bench = Bench(lmstudio(None), overrides=user(window=5000))
    await bench.window()
    assert bench.model.reported_window is None, "a guess is none"
    await bench.later(TTL, lmstudio(8192))
    bench.model.learn("window", 2048, "an error")
    assert bench.model.reported_window == Fact(8192, "LM Studio, loaded instance", Trust.LOADED)


# -- what was cut and held


async def test_one_cut_prompt_is_no_proof() -> None:
    bench = await probed(NOTHING)
    assert bench.model.learn_cut(CUT) is None
    assert bench.model.learn_cut(CUT) is None
    assert await bench.window() is None
    assert bench.model.learn_cut(LONGER) == 2048
    assert (await bench.model.profile()).window == Fact(2048, "silent cut", Trust.LEARNED)
    assert bench.model.learn_cut(LONGER) is None, "nothing new"


async def test_the_second_must_come_in_time_and_from_the_same_server() -> None:
    bench = await probed(NOTHING)
    bench.model.learn_cut(CUT)
    bench.clock.now += LESSON_TTL
    assert bench.model.learn_cut(LONGER) is None
    bench.prober.forget()
    assert bench.model.learn_cut(CUT) is None
    for number in range(MOST_SEEN):
        bench.model.learn_cut(CutSeen(1000, 300 + number, b"a"))
    assert bench.model.learn_cut(LONGER) is None


@pytest.mark.parametrize(("loaded", "windows"), [(2048, [2048, None]), (4096, [None, None])])
async def test_what_the_loaded_instance_says_decides_on_a_cut(loaded: int, windows: list[int | None]) -> None:
    """Believed at once against the user where it says the same, and against it no cut is evidence."""
    bench = await probed(lmstudio(loaded), overrides=user(window=16_384))
    assert await bench.window() == 16_384
    assert [bench.model.learn_cut(seen) for seen in (CUT, LONGER)] == windows
    assert await bench.window() == (windows[0] or 16_384)


async def test_what_the_backend_held_is_remembered_for_some_minutes() -> None:
    bench = await probed(NOTHING)
    for tokens, held in ((0, 0), (3000, 3000), (5000, 5000), (4000, 5000)):
        bench.model.answered(tokens)
        assert bench.model.held == held
    bench.clock.now += HELD_FOR
    assert bench.model.held == 0
    bench.model.answered(4000)
    assert bench.model.held == 4000
    bench.model.forget()
    assert bench.model.held == 0


async def test_what_was_held_disproves_a_smaller_lesson() -> None:
    bench = await taught(NOTHING, "window", 6000)
    assert bench.model.answered(6000) is None
    assert bench.model.answered(6001) == 6000
    assert await bench.window() is None


@pytest.mark.parametrize(("tokens", "ended"), [(5000, False), (2000, True)])
async def test_a_window_that_was_contradicted_is_read_again_once(tokens: int, ended: bool) -> None:
    bench = await probed(vllm(4096))
    for harmless in (False, True):
        bench.model.answered(4096, ended=harmless)
    assert await bench.later(0, vllm(8192)) == 4096
    bench.model.answered(tokens, ended=ended)
    assert await bench.window() == 8192
    asked = bench.asked
    for _ in range(3):  # it insists: then it is not asked more often than usual
        bench.model.answered(20_000)
        await bench.window()
    assert bench.asked == asked + 1
    await bench.later(TTL * FIXED_FACTOR)
    assert bench.asked == asked + 2
