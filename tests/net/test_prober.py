"""The backend: its kind, its list, when it is asked, and who shares the answer."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from proxy.backends.base import Reply
from proxy.backends.profile import Continuation, ModelProfile
from proxy.net import prober as module
from proxy.net.prober import COOL_DOWN, FIXED_FACTOR
from tests.net.probing import MODEL, TTL, Bench, lmstudio, user, vllm

pytestmark = pytest.mark.anyio

STARTING = {"/v1/models": Reply(503, {"error": "starting"})}


# -- the kind


async def test_kind_is_detected_once() -> None:
    bench = Bench(lmstudio(8192))
    assert [await bench.kind() for _ in range(3)] == ["lmstudio"] * 3
    assert len(bench.server.asked) == len(set(bench.server.asked))


async def test_a_configured_kind_is_taken_for_granted() -> None:
    bench = Bench({}, kind="vllm")
    bench.server.failure = httpx.ConnectError
    bench.prober.forget()
    assert await bench.kind() == "vllm"
    assert bench.server.requests == []
    with pytest.raises(KeyError):
        Bench({}, kind="nonsense")


async def test_a_dead_backend_is_asked_again_after_a_pause() -> None:
    bench = Bench(lmstudio(8192))
    bench.server.failure = httpx.ConnectError
    assert await bench.kind() == "unknown"
    assert await bench.model.profile() == ModelProfile()
    assert await bench.prober.models() == []
    assert await bench.prober.count({}) is None
    asked, bench.server.failure = bench.asked, None
    bench.prober.forget()
    assert await bench.kind() == "unknown"
    assert bench.asked == asked, "it must not be hammered"
    assert await bench.later(COOL_DOWN) == 8192
    assert [listed.id for listed in await bench.prober.models()] == [MODEL]


@pytest.mark.parametrize("first", [vllm(4096), lmstudio(4096), {}])
async def test_a_server_that_is_starting_gets_no_verdict(first: dict[str, Any]) -> None:
    bench = Bench(first)
    kind = await bench.kind()
    bench.server.replies = STARTING
    bench.prober.forget()
    bench.clock.now += TTL * FIXED_FACTOR
    assert await bench.kind() == kind
    await bench.later(COOL_DOWN, vllm(4096))
    assert await bench.kind() == "vllm"


async def test_a_backend_in_trouble_keeps_its_kind() -> None:
    """Answers that fit nothing, for a moment, made a generic one of it for as long as the process ran."""
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    bench.prober.forget()
    await bench.later(COOL_DOWN, {})
    assert await bench.kind() == "lmstudio"
    assert await bench.later(TTL * FIXED_FACTOR, lmstudio(4096)) == 4096


async def test_another_kind_behind_the_same_address_is_noticed_and_nothing_learned_holds_for_it() -> None:
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    bench.model.learn("window", 4096, "an error")
    bench.model.learn("tools", False, "an error")
    bench.prober.forget()
    assert await bench.later(COOL_DOWN, vllm(65536)) == 65536
    assert await bench.value("tools") is None
    assert bench.prober.snapshot()["kind"] == "vllm"


# -- keeping and sharing


@pytest.mark.parametrize(("kind", "seconds"), [(lmstudio, TTL), (vllm, TTL * FIXED_FACTOR)])
async def test_a_profile_is_believed_for_its_time(kind: Any, seconds: float) -> None:
    """For longer where windows are fixed."""
    bench = Bench(kind(8192))
    assert await bench.window() == 8192
    asked = bench.asked
    assert await bench.later(seconds - 1, kind(16384)) == 8192
    assert bench.asked == asked
    assert await bench.later(1) == 16384


async def test_a_fresh_profile_is_of_this_moment() -> None:
    bench = Bench(vllm(4096))
    await bench.window()
    bench.server.replies = vllm(16_384)
    assert (await bench.model.profile(fresh=True)).window == (await bench.model.profile()).window
    assert await bench.later(COOL_DOWN) == 4096
    await bench.model.profile(fresh=True)
    assert await bench.window() == 16_384


async def test_many_callers_share_one_probe_and_one_that_leaves_takes_it_from_no_other() -> None:
    bench = Bench(lmstudio(8192))
    bench.server.gate.clear()
    leaver, *callers = [asyncio.ensure_future(bench.window()) for _ in range(50)]
    lists = [asyncio.ensure_future(bench.prober.models()) for _ in range(50)]
    await bench.server.reached.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    bench.server.gate.set()
    assert await asyncio.gather(*callers) == [8192] * 49
    assert all(len(one) == 1 for one in await asyncio.gather(*lists))
    # Detection looks for Ollama and LM Studio, then the profile and the two lists are read once each.
    assert sorted(bench.server.asked) == ["/api/v1/models"] * 3 + ["/api/version", "/v1/models"]


async def test_the_last_good_answer_stays_while_the_backend_fails() -> None:
    bench = Bench(lmstudio(8192))
    assert await bench.window() == 8192
    assert len(await bench.prober.models()) == 1
    for failure in (Reply(503, {"error": "busy"}), Reply(500), Reply(429)):
        assert await bench.later(TTL, dict.fromkeys(lmstudio(8192), failure)) == 8192
        assert len(await bench.prober.models()) == 1
    bench.server.failure = httpx.ConnectError
    assert await bench.later(TTL) == 8192
    bench.prober.forget()
    assert await bench.window() == 8192
    assert len(await bench.prober.models()) == 1
    assert await bench.kind() == "unknown"


async def test_a_failing_backend_is_asked_again_soon() -> None:
    bench = Bench(lmstudio(8192))
    await bench.window()
    await bench.later(TTL, {"/api/v1/models": Reply(503)})
    assert await bench.later(0, lmstudio(4096)) == 8192
    assert await bench.later(COOL_DOWN) == 4096


async def test_remembered_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MODELS", 3)
    bench = Bench(lmstudio(8192))
    for number in range(10):
        await bench.prober.known(f"m{number}").profile()
    assert set(bench.prober.snapshot()["models"]) == {"m7", "m8", "m9"}
    listed = (await bench.prober.models())[0].id
    bench.prober.known(listed).learn("tools", False, "a refusal")
    for number in range(10):
        bench.prober.known(f"made up {number}")
    assert bench.prober.known(listed).expires_in()


# -- loading


async def test_requests_for_an_unloaded_model_load_it_once() -> None:
    """LM Studio loads one instance for each of several requests that come at the same time (its bug tracker, #1751)."""
    bench = Bench(lmstudio(None))
    await bench.window()
    await asyncio.gather(*(bench.model.loaded({}) for _ in range(5)))
    assert bench.server.asked.count("/v1/chat/completions") == 1


@pytest.mark.parametrize(("replies", "overrides"), [(lmstudio(8192), user()), (lmstudio(None), user(window=8192))])
async def test_a_model_whose_window_is_known_is_not_loaded_first(replies: Any, overrides: Any) -> None:
    bench = Bench(replies, overrides=overrides)
    assert not (await bench.model.loaded({})).provisional
    assert "/v1/chat/completions" not in bench.server.asked


async def test_a_model_that_was_loaded_for_one_request_is_none_that_is_loaded() -> None:
    bench = Bench(lmstudio(2048))
    bench.model.requested_window = 2048
    assert await bench.window() is None
    await bench.model.loaded({})
    assert await bench.window() == 2048


# -- lists, counts, snapshots


async def test_listed_models_carry_all_that_is_known() -> None:
    bench = Bench(lmstudio(None), overrides=user(continuation=Continuation.QUOTE))
    await bench.window()
    bench.model.learn("window", 6000, "an error")
    (listed,) = await bench.prober.models()
    assert listed.raw == {"id": MODEL, "object": "model"}
    assert listed.profile.window is not None
    assert listed.profile.window.value == 6000
    assert listed.profile.continuation is not None
    assert listed.profile.continuation.value is Continuation.QUOTE


async def test_the_list_is_believed_for_its_time() -> None:
    bench = Bench(lmstudio(8192))
    first, asked = await bench.prober.listed(), bench.asked
    assert await bench.prober.listed() is first
    assert bench.asked == asked
    bench.clock.now += TTL
    bench.server.replies["/v1/models"] = {"object": "list", "data": []}
    assert await bench.prober.models() == []


async def test_a_snapshot_tells_value_origin_trust_and_time_left_without_asking() -> None:
    bench = Bench(lmstudio(8192), overrides=user(continuation=Continuation.QUOTE))
    assert bench.prober.snapshot() == {"kind": None, "models": {}}
    await bench.window()
    await bench.prober.models()
    bench.model.learn("refused_continuations", frozenset({Continuation.FLAGS}), "status 400")
    bench.clock.now += 600
    asked = bench.asked
    snapshot = bench.prober.snapshot()
    assert bench.asked == asked
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["kind"] == "lmstudio"
    told = snapshot["models"][MODEL]
    assert told["window"] == {"value": 8192, "origin": "LM Studio, loaded instance", "trust": "loaded"}
    assert told["continuation"] == {"value": "user_turn", "origin": "settings", "trust": "user"}
    assert told["refused_continuations"] == {
        "value": ["continue_final_message"], "origin": "status 400", "trust": "learned", "expires_in": 3000,
    }  # fmt: skip
    assert (told["tools"], told["provisional"]) == (None, False)
