"""What a refusal teaches of a model's abilities, how long that holds, and what stands above it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from proxy.backends.profile import Continuation, Fact, Trust
from proxy.net import prober as module
from proxy.net.lessons import LESSON_TTL
from proxy.net.prober import FIXED_FACTOR
from tests.net.probing import MODEL, Bench, lmstudio, user, vllm

pytestmark = pytest.mark.anyio

REFUSED = Fact(value=False, origin="an error", trust=Trust.LEARNED)


def ollama(capabilities: list[str] | None, window: int = 8192) -> dict[str, Any]:
    shown = {} if capabilities is None else {"capabilities": capabilities}
    loaded = {"name": f"{MODEL}:latest", "context_length": window}
    return {
        "/api/version": {"version": "0.33.0"},
        "/api/tags": {"models": [{"name": f"{MODEL}:latest", **shown}]},
        "/api/ps": {"models": [loaded]},
        "/api/show": {"model_info": {}, **shown},
        "/v1/models": {"object": "list", "data": [{"id": MODEL}]},
    }


async def tools(bench: Bench) -> Fact[bool] | None:
    return (await bench.prober.profile(MODEL)).tools


async def refused(bench: Bench) -> frozenset[Continuation]:
    told = (await bench.prober.profile(MODEL)).refused_continuations
    return told.value if told is not None else frozenset()


async def taught(replies: dict[str, Any], **options: Any) -> Bench:
    """A bench that has probed, and then learnt that the model takes no tools."""
    bench = Bench(replies, **options)
    await bench.prober.profile(MODEL)
    bench.prober.refuse_tools(MODEL, "an error")
    return bench


# -- for how long --------------------------------------------------------------------------------------


async def test_a_refusal_of_tools_holds_for_its_time() -> None:
    bench = await taught(vllm(4096))
    assert await tools(bench) == REFUSED
    bench.clock.now += LESSON_TTL - 1
    assert await tools(bench) == REFUSED
    bench.clock.now += 1
    assert await tools(bench) is None


async def test_the_time_can_be_set_and_begins_anew_with_each_refusal() -> None:
    bench = await taught(vllm(4096), lesson_ttl=10.0)
    bench.clock.now += 9
    bench.prober.refuse_tools(MODEL, "another error")
    bench.clock.now += 9
    assert await tools(bench) == Fact(value=False, origin="another error", trust=Trust.LEARNED)
    bench.clock.now += 1
    assert await tools(bench) is None


async def test_ways_to_continue_are_remembered_from_the_newest_refusal_on() -> None:
    bench = Bench(vllm(4096), lesson_ttl=10.0)
    bench.prober.refuse_continuation(MODEL, Continuation.FLAGS, "status 400")
    bench.clock.now += 5
    bench.prober.refuse_continuation(MODEL, Continuation.TRAILING, "status 422")
    bench.clock.now += 9
    profile = await bench.prober.profile(MODEL)
    both = frozenset({Continuation.FLAGS, Continuation.TRAILING})
    assert profile.refused_continuations == Fact(both, "status 422", Trust.LEARNED)
    bench.clock.now += 1
    assert await refused(bench) == frozenset()


async def test_tools_and_ways_to_continue_are_learnt_apart() -> None:
    bench = await taught(vllm(4096), lesson_ttl=10.0)
    bench.clock.now += 5
    bench.prober.refuse_continuation(MODEL, Continuation.FLAGS, "status 400")
    assert await tools(bench) == REFUSED
    bench.clock.now += 5
    assert await tools(bench) is None
    assert await refused(bench) == {Continuation.FLAGS}


async def test_other_models_are_not_concerned() -> None:
    bench = await taught(ollama(["tools"]))
    other = (await bench.prober.profile("other")).tools
    assert other is not None
    assert other.value is True


# -- what ends it early --------------------------------------------------------------------------------


async def test_a_backend_that_newly_lists_tools_is_believed() -> None:
    bench = await taught(ollama(["completion"]))
    bench.sent(ollama(["completion", "tools"]))
    bench.clock.now += 30
    told = await tools(bench)
    assert told is not None
    assert (told.value, told.trust) == (True, Trust.CONFIGURED)


async def test_a_backend_that_listed_tools_all_along_is_not() -> None:
    bench = await taught(ollama(["completion", "tools"]))
    bench.clock.now += 30
    assert await tools(bench) == REFUSED
    bench.sent(ollama(["completion"]))
    bench.clock.now += 30
    assert await tools(bench) == REFUSED
    bench.sent(ollama(["completion", "tools"]))
    bench.clock.now += 30
    told = await tools(bench)
    assert told is not None
    assert told.value is True


@pytest.mark.parametrize("which", [MODEL, None])
async def test_a_server_that_was_away_may_have_other_flags_now(which: str | None) -> None:
    bench = await taught(vllm(4096))
    bench.prober.refuse_continuation(MODEL, Continuation.FLAGS, "status 400")
    bench.prober.forget(which)
    assert await tools(bench) is None
    assert await refused(bench) == frozenset()


async def test_of_another_model_nothing_is_forgotten() -> None:
    bench = await taught(vllm(4096))
    bench.prober.forget("other")
    assert await tools(bench) == REFUSED


async def test_another_kind_of_server_has_refused_nothing() -> None:
    bench = await taught(vllm(4096))
    bench.sent(lmstudio(8192))
    bench.prober.forget("other")
    bench.clock.now += 30 * FIXED_FACTOR
    assert await bench.window() == 8192
    assert await tools(bench) is None


async def test_a_backend_that_fails_meanwhile_changes_nothing() -> None:
    bench = await taught(ollama(["completion"]))
    bench.server.failure = httpx.ConnectError
    bench.clock.now += 30
    assert await tools(bench) == REFUSED


# -- who is heard --------------------------------------------------------------------------------------


async def test_the_users_word_on_tools_stands_above_all() -> None:
    bench = await taught(ollama(["completion"]), overrides=user(tools=True))
    assert await tools(bench) == Fact(value=True, origin="settings", trust=Trust.USER)
    (listed,) = await bench.prober.models()
    assert listed.profile.tools == Fact(value=True, origin="settings", trust=Trust.USER)


async def test_a_list_of_models_tells_it_too() -> None:
    bench = await taught(lmstudio(8192))
    (listed,) = await bench.prober.models()
    assert listed.profile.tools == REFUSED


async def test_the_profile_is_the_same_object_while_nothing_changes() -> None:
    bench = await taught(vllm(4096))
    first = await bench.prober.profile(MODEL)
    assert await bench.prober.profile(MODEL) is first
    bench.prober.refuse_continuation(MODEL, Continuation.FLAGS, "status 400")
    assert await bench.prober.profile(MODEL) is not first


async def test_a_snapshot_tells_origin_and_time_left() -> None:
    bench = await taught(vllm(4096))
    bench.clock.now += 600
    bench.prober.refuse_continuation(MODEL, Continuation.FLAGS, "status 400")
    snapshot = bench.prober.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    told = snapshot["models"][MODEL]
    assert told["tools"] == {"value": False, "origin": "an error", "trust": "learned", "expires_in": 3000}
    assert told["refused_continuations"] == {
        "value": ["continue_final_message"],
        "origin": "status 400",
        "trust": "learned",
        "expires_in": 3600,
    }
    assert "expires_in" not in told["window"]
    bench.clock.now += LESSON_TTL
    told = bench.prober.snapshot()["models"][MODEL]
    assert (told["tools"], told["refused_continuations"]) == (None, None)


async def test_lessons_of_each_kind_are_forgotten_alone() -> None:
    bench = await taught(vllm(None))
    bench.prober.refuse_continuation(MODEL, Continuation.FLAGS, "status 400")
    bench.prober.learn(MODEL, 6000, "an error")
    assert bench.prober.unlearn(MODEL, "continuations")
    assert (await tools(bench), await refused(bench), await bench.window()) == (REFUSED, frozenset(), 6000)
    assert bench.prober.unlearn(MODEL, "window")
    assert not bench.prober.unlearn(MODEL, "window")
    assert (await tools(bench), await bench.window()) == (REFUSED, None)
    assert bench.prober.unlearn(MODEL, "tools")
    assert await tools(bench) is None
    assert not bench.prober.unlearn(MODEL, "all")


async def test_a_snapshot_of_what_the_user_set_tells_no_time() -> None:
    bench = await taught(vllm(4096), overrides=user(tools=True))
    told = bench.prober.snapshot()["models"][MODEL]["tools"]
    assert told == {"value": True, "origin": "settings", "trust": "user"}


async def test_remembered_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MODELS", 3)
    bench = Bench(vllm(4096))
    for number in range(10):
        bench.prober.refuse_tools(f"m{number}", "an error")
    told = [(await bench.prober.profile(f"m{number}")).tools for number in range(10)]
    assert told == [None] * 7 + [REFUSED] * 3
