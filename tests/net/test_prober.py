from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from proxy.backends.base import Reply
from proxy.backends.profile import Continuation, Fact, ModelProfile, Trust
from proxy.net import prober as module
from proxy.net.prober import COOL_DOWN, DOUBTED, FIXED_FACTOR
from tests.backends.driver import payloads
from tests.net.probing import MODEL, TTL, Bench, lmstudio, user, vllm

pytestmark = pytest.mark.anyio


# -- the kind ------------------------------------------------------------------------------------------


async def test_kind_is_detected_once() -> None:
    bench = Bench(lmstudio(8192))
    kinds = [await bench.prober.backend() for _ in range(3)]
    assert [kind.kind if kind else None for kind in kinds] == ["lmstudio"] * 3
    assert len(bench.server.asked) == len(set(bench.server.asked))


async def test_a_configured_kind_is_taken_for_granted() -> None:
    bench = Bench({}, kind="vllm")
    bench.server.failure = httpx.ConnectError
    backend = await bench.prober.backend()
    assert backend is not None
    assert backend.kind == "vllm"
    assert bench.server.requests == []


async def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError):
        Bench({}, kind="nonsense")


async def test_a_dead_backend_is_asked_again_after_a_pause() -> None:
    bench = Bench(lmstudio(8192))
    bench.server.failure = httpx.ConnectError
    assert await bench.prober.backend() is None
    assert await bench.prober.profile(MODEL) == ModelProfile()
    assert await bench.prober.models() == []
    asked = len(bench.server.requests)
    bench.server.failure = None
    assert await bench.prober.backend() is None
    assert await bench.window() is None
    assert len(bench.server.requests) == asked, "it must not be hammered"
    bench.clock.now += COOL_DOWN
    assert await bench.prober.backend() is not None
    assert await bench.window() == 8192
    assert [listed.id for listed in await bench.prober.models()] == [MODEL]


async def test_a_server_that_is_still_starting_gets_no_verdict() -> None:
    bench = Bench(vllm(4096))
    bench.server.replies = {"/v1/models": Reply(503, {"error": "starting"})}
    backend = await bench.prober.backend()
    assert backend is not None
    assert backend.kind == "generic"
    bench.sent(vllm(4096))
    bench.clock.now += COOL_DOWN
    backend = await bench.prober.backend()
    assert backend is not None
    assert backend.kind == "vllm"


async def test_a_backend_in_trouble_keeps_its_kind_for_a_while() -> None:
    """Answers that fit nothing, for a moment, made a generic one of it for as long as the process ran."""
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    bench.sent({})
    bench.prober.forget()
    bench.clock.now += COOL_DOWN
    for later in (DOUBTED - 1, 1, TTL * FIXED_FACTOR):
        backend = await bench.prober.backend()
        assert backend is not None
        assert backend.kind == ("lmstudio" if later != TTL * FIXED_FACTOR else "generic")
        bench.clock.now += later
    bench.sent(lmstudio(8192))
    backend = await bench.prober.backend()
    assert backend is not None
    assert backend.kind == "lmstudio"


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_broken_backend_keeps_its_profile(status: int) -> None:
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    bench.sent(dict.fromkeys(lmstudio(8192), Reply(status, {"error": "broken"})))
    bench.clock.now += TTL
    assert await bench.window() == 8192


async def test_another_kind_behind_the_same_address_is_noticed() -> None:
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    bench.prober.learn(MODEL, 4096, "an error")
    bench.sent(vllm(65536))
    bench.prober.forget(MODEL)
    bench.clock.now += COOL_DOWN
    assert await bench.window() == 65536
    assert bench.prober.snapshot()["kind"] == "vllm"


# -- keeping and sharing -------------------------------------------------------------------------------


async def test_a_profile_is_believed_for_its_time() -> None:
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    asked = len(bench.server.requests)
    bench.sent(lmstudio(16384))
    bench.clock.now += TTL - 1
    assert await bench.window() == 8192
    assert len(bench.server.requests) == asked
    bench.clock.now += 1
    assert await bench.window() == 16384


async def test_where_windows_are_fixed_it_is_believed_for_longer() -> None:
    bench = Bench(vllm(8192))
    assert await bench.window() == 8192
    bench.sent(vllm(16384))
    bench.clock.now += TTL * FIXED_FACTOR - 1
    assert await bench.window() == 8192
    bench.clock.now += 1
    assert await bench.window() == 16384


async def test_many_callers_share_one_probe() -> None:
    bench = Bench(lmstudio(8192))
    bench.server.gate.clear()
    callers = [asyncio.ensure_future(bench.window()) for _ in range(50)]
    lists = [asyncio.ensure_future(bench.prober.models()) for _ in range(50)]
    await bench.server.reached.wait()
    bench.server.gate.set()
    assert await asyncio.gather(*callers) == [8192] * 50
    assert all(len(one) == 1 for one in await asyncio.gather(*lists))
    # Detection looks for Ollama and LM Studio, then the profile and the two lists are read once each.
    assert sorted(bench.server.asked) == ["/api/v1/models"] * 3 + ["/api/version", "/v1/models"]


async def test_a_caller_that_leaves_takes_the_probe_of_no_other_with_it() -> None:
    bench = Bench(lmstudio(8192))
    bench.server.gate.clear()
    leaver = asyncio.ensure_future(bench.window())
    stayer = asyncio.ensure_future(bench.window())
    await bench.server.reached.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    bench.server.gate.set()
    assert await stayer == 8192


async def test_the_last_good_answer_stays_while_the_backend_fails() -> None:
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    assert len(await bench.prober.models()) == 1
    for failure in (Reply(503, {"error": "busy"}), Reply(429)):
        bench.sent({"/api/v1/models": failure, "/v1/models": failure})
        bench.clock.now += TTL
        assert await bench.window() == 8192
        assert len(await bench.prober.models()) == 1
    bench.server.failure = httpx.ConnectError
    bench.clock.now += TTL
    assert await bench.window() == 8192
    bench.prober.forget()
    assert await bench.window() == 8192
    assert len(await bench.prober.models()) == 1
    assert await bench.prober.backend() is None


async def test_a_failing_backend_is_asked_again_soon() -> None:
    bench = Bench(lmstudio(8192))
    await bench.window()
    good = bench.server.replies
    bench.sent({"/api/v1/models": Reply(503)})
    bench.clock.now += TTL
    await bench.window()
    bench.sent(good | lmstudio(4096))
    assert await bench.window() == 8192
    bench.clock.now += COOL_DOWN
    assert await bench.window() == 4096


async def test_a_low_guess_is_not_made_from_questions_that_nobody_answered() -> None:
    bench = Bench({"/api/v1/models": Reply(503)}, kind="lmstudio")
    assert await bench.window() is None
    assert (await bench.prober.profile(MODEL)).continuation is not None


async def test_remembered_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MODELS", 3)
    bench = Bench(lmstudio(8192))
    for number in range(10):
        await bench.prober.profile(f"m{number}")
        bench.prober.learn(f"m{number}", 100, "an error")
    assert set(bench.prober.snapshot()["models"]) == {"m7", "m8", "m9"}


# -- loading -------------------------------------------------------------------------------------------


async def test_a_loaded_model_is_not_loaded_again() -> None:
    bench = Bench(lmstudio(8192))
    await bench.window()
    asked = len(bench.server.requests)
    await bench.prober.loaded(MODEL, {})
    assert len(bench.server.requests) == asked


async def test_requests_for_an_unloaded_model_load_it_once() -> None:
    """LM Studio loads one instance for each of several requests that come at the same time (its bug tracker, #1751)."""
    bench = Bench(lmstudio(None))
    await bench.window()
    await asyncio.gather(*(bench.prober.loaded(MODEL, {}) for _ in range(5)))
    assert bench.server.asked.count("/v1/chat/completions") == 1


async def test_a_model_whose_window_the_user_set_is_not_loaded_first() -> None:
    bench = Bench(lmstudio(None), overrides=user(window=8192))
    await bench.prober.loaded(MODEL, {})
    assert "/v1/chat/completions" not in bench.server.asked


# -- what errors and users say -------------------------------------------------------------------------


def catalogue(window: int) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": MODEL, "context_length": window}]}}


async def test_a_learned_window_outlives_many_probes() -> None:
    bench = Bench(catalogue(8192))
    await bench.window()
    bench.prober.learn(MODEL, 6000, "LM Studio error")
    for _ in range(3):
        profile = await bench.prober.profile(MODEL)
        assert profile.window == Fact(6000, "LM Studio error", Trust.LEARNED)
        bench.clock.now += TTL


async def test_a_learned_window_falls_after_a_reconnect() -> None:
    bench = Bench(catalogue(8192))
    await bench.window()
    bench.prober.learn(MODEL, 6000, "an error")
    assert await bench.window() == 6000
    bench.prober.forget(MODEL)
    assert await bench.window() == 8192


async def test_a_learned_window_holds_until_the_reconnected_backend_says_otherwise() -> None:
    bench = Bench(lmstudio(8192))
    bench.prober.learn(MODEL, 6000, "an error")
    bench.prober.forget()
    bench.server.failure = httpx.ConnectError
    assert await bench.window() == 6000
    bench.server.failure = None
    bench.clock.now += COOL_DOWN
    assert await bench.window() == 8192


async def test_an_error_that_disagrees_has_the_model_read_again() -> None:
    """The model was loaded anew with less, between two probes: the fresh number is the loaded one."""
    bench = Bench(lmstudio(8192))
    await bench.window()
    bench.sent(lmstudio(4096))
    bench.prober.learn(MODEL, 4096, "an error")
    assert await bench.prober.loaded_window(MODEL) == await bench.window() == 4096


@pytest.mark.parametrize(("learned", "expected"), [(2000, 2000), (9000, 5000)])
async def test_the_user_gives_way_only_to_a_smaller_learned_window(learned: int, expected: int) -> None:
    bench = Bench(catalogue(8192), overrides=user(window=5000, tools=False))
    assert await bench.window() == 5000
    bench.prober.learn(MODEL, learned, "an error")
    profile = await bench.prober.profile(MODEL)
    assert profile.window is not None
    assert profile.window.value == expected
    assert profile.tools == Fact(value=False, origin="settings", trust=Trust.USER)


async def test_the_user_is_heard_even_of_a_dead_backend() -> None:
    bench = Bench({}, overrides=user(window=5000))
    bench.server.failure = httpx.ConnectError
    assert await bench.window() == 5000


# -- lists, counts, snapshots --------------------------------------------------------------------------


async def test_listed_models_carry_all_that_is_known() -> None:
    bench = Bench(lmstudio(None), overrides=user(continuation=Continuation.QUOTE))
    await bench.window()
    bench.prober.learn(MODEL, 6000, "an error")
    (listed,) = await bench.prober.models()
    assert listed.raw == {"id": MODEL, "object": "model"}
    assert listed.profile.window is not None
    assert listed.profile.window.value == 6000
    assert listed.profile.continuation is not None
    assert listed.profile.continuation.value is Continuation.QUOTE


async def test_the_list_is_believed_for_its_time() -> None:
    bench = Bench(lmstudio(8192))
    await bench.prober.models()
    asked = len(bench.server.requests)
    await bench.prober.models()
    assert len(bench.server.requests) == asked
    bench.clock.now += TTL
    bench.server.replies["/v1/models"] = {"object": "list", "data": []}
    assert await bench.prober.models() == []


async def test_counting_where_the_backend_counts() -> None:
    recorded = payloads("vllm")
    bench = Bench({"/v1/models": recorded["models"], "/tokenize": recorded["tokenize"]})
    assert await bench.prober.count({"model": "qwen", "messages": []}) == 27
    bench.server.failure = httpx.ConnectError
    assert await bench.prober.count({"model": "qwen", "messages": []}) is None


async def test_a_dead_backend_counts_nothing() -> None:
    bench = Bench({})
    bench.server.failure = httpx.ConnectError
    assert await bench.prober.count({"model": "qwen", "messages": []}) is None


async def test_a_snapshot_tells_value_origin_and_trust_without_asking() -> None:
    bench = Bench(lmstudio(8192), overrides=user(continuation=Continuation.QUOTE))
    assert bench.prober.snapshot() == {"kind": None, "models": {}}
    await bench.window()
    await bench.prober.models()
    asked = len(bench.server.requests)
    snapshot = bench.prober.snapshot()
    assert len(bench.server.requests) == asked
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["kind"] == "lmstudio"
    told = snapshot["models"][MODEL]
    assert told["window"] == {"value": 8192, "origin": "LM Studio, loaded instance", "trust": "loaded"}
    assert told["continuation"] == {"value": "user_turn", "origin": "settings", "trust": "user"}
    assert told["tools"] is None
    assert told["provisional"] is False
