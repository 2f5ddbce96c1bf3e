"""What the real engine reads again after a part of the prompt has gone."""

import json
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from tests.engine.fixtures import StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway, Spillway, StartSpillway
from tests.engine.tap import tapped
from tests.engine.walking import after, spoken, user
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.engine

OF_A_TURN = 200
"""Tokens of a message, of the answer before it, and of what a template puts around them."""
KEPT = 400
"""Fewest tokens behind the gap."""


@pytest.mark.parametrize(
    ("whose", "fields", "settings", "closed"),
    [
        ("own", {}, {}, True), ("own", {"n_cache_reuse": 0}, {}, False), ("own", {}, {"stabilise": False}, False),
        ("other", {}, {}, False),
    ],
    ids=("closed", "declined", "off", "other"),
)  # fmt: skip
def test_behind_a_gap_nothing_is_read_again_in_one_conversation(
    walk_engine: Engine,
    proxy_of: SharedSpillway,
    spillway: StartSpillway,
    whose: str,
    fields: dict[str, Any],
    settings: dict[str, Any],
    closed: bool,
) -> None:
    """The client leaves its oldest messages out; `whose`: the prompt that the proxy sent last was of this conversation."""
    proxy = spillway([walk_engine.url], **settings) if settings else proxy_of(walk_engine)
    talk = [{"role": "system", "content": f"You walk on, {whose} {fields} {settings}."}]
    for turn in range(6):
        said = " ".join(walk_engine.words[turn * 97 : turn * 97 + 60])
        talk += [{"role": "user", "content": f"{turn}: {said}"}, {"role": "assistant", "content": f"So {said}"}]
    talk.append(after(walk_engine.words[0]))
    body = {"model": walk_engine.model, "max_tokens": 4, **fields}
    proxy.chat(talk if whose == "own" else talk[-1:], **body)
    walk_engine.chat(talk, max_tokens=4)  # so that it is in the cache in any case
    answer = proxy.chat([talk[0], *talk[3:]], **body)
    assert answer.usage is not None
    read = answer.usage["prompt_tokens"] - answer.cached
    assert read < 8 if closed else read > KEPT


@pytest.fixture(params=[1, 4])
def slots_engine(request: pytest.FixtureRequest, engine: StartEngine) -> Engine:
    """One slot, or four that share a window, which is the server's default."""
    return engine(ModelSpec(mode="walk"), parallel=request.param, unified=request.param > 1)


def test_a_compaction_has_its_summary_read_and_the_newest_message(slots_engine: Engine, spillway: StartSpillway) -> None:
    """Nothing of what is kept: neither the beginning nor the newest turns, because the summary follows them."""
    take_turns(spillway([slots_engine.url], strategy="mask", recall="off"), slots_engine, talks=1, turns=48)


def test_a_conversation_that_gave_its_slot_to_another_has_no_more_read(
    engine: StartEngine, spillway: StartSpillway, tmp_path: Path
) -> None:
    served = engine(ModelSpec(mode="walk"), cache_ram=0, slot_save_path=f"{tmp_path}/")
    with tapped(served.url) as tap:
        take_turns(spillway([tap.url], strategy="mask", recall="off"), served, talks=2, turns=30)
        asked = [b"n_cache_reuse" in each.asked for each in tap.chats()]
    assert 2 < asked.index(True) < 12, "only once a restored prompt was seen not to be read again"
    assert all(asked[12:])


def take_turns(proxy: Spillway, engine: Engine, talks: int, turns: int) -> None:
    """Have conversations take turns; where one is compacted, less than half of the prompt is read."""
    histories: list[list[dict[str, Any]]] = [[] for _ in range(talks)]
    compactions = list[tuple[int, int]]()
    for turn in range(turns):
        for number, talk in enumerate(histories):
            said = " ".join(engine.words[turn * 11 + number * 500 :][:40])
            talk.append({"role": "user", "content": f"{turn}: I like {said}."})
            answer = proxy.chat(talk, model=engine.model, max_tokens=40)
            talk.append({"role": "assistant", "content": answer.text})
            assert answer.usage is not None
            if answer.action == "compacted":
                compactions.append((answer.usage["prompt_tokens"] - answer.cached, answer.usage["prompt_tokens"]))
    assert len(compactions) >= 2
    assert all(2 * read < prompt for read, prompt in compactions), compactions


def test_an_agents_steps_have_what_is_new_read(slots_engine: Engine, spillway: StartSpillway) -> None:
    """In the middle of a loop, results lose their middles; at last a summary comes in front of the newest result."""
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
    talk = [user("Go through the files.")]
    reductions = list[tuple[str, int]]()
    with tapped(slots_engine.url) as tap:
        proxy = spillway([tap.url], strategy="mask", recall="off")
        for step in range(24):
            called = {"id": f"c{step}", "type": "function", "function": {"name": "read", "arguments": f'{{"path": "{step}"}}'}}
            lines = [" ".join(slots_engine.words[step * 31 + at :][:4]) for at in range(30)]
            talk.append({"role": "assistant", "content": "", "tool_calls": [called]})
            talk.append({"role": "tool", "tool_call_id": f"c{step}", "content": "\n".join(lines)})
            answer = proxy.chat(talk, model=slots_engine.model, max_tokens=4, tools=[tool])
            assert answer.usage is not None
            if answer.action in ("pruned", "compacted"):
                reductions.append((answer.action, answer.usage["prompt_tokens"] - answer.cached))
    assert {action for action, _ in reductions} == {"pruned", "compacted"}
    assert all(read < (1.5 if action == "pruned" else 3) * OF_A_TURN for action, read in reductions), reductions
    asked = sum(each.path == "/slots" for each in tap.seen)
    assert asked <= 2 * len(reductions), "the server finds the slot of a prompt that only grew"


def test_a_slot_in_which_somebody_else_is_answered_is_not_waited_for(engine: StartEngine, spillway: StartSpillway) -> None:
    shared = engine(ModelSpec(mode="walk"), parallel=4, unified=True, ctx=16384)
    other = {"model": "walk", "messages": [after(shared.words[0])], "max_tokens": 15000, "stream": True}
    with tapped(shared.url) as tap:
        proxy = spillway([tap.url], recall="off")
        talk = [user(f"{turn}: {' '.join(shared.words[turn * 97 :][:60])}") for turn in range(5)]
        body = {"model": "walk", "max_tokens": 4}
        proxy.chat(talk, **body)
        with httpx.stream("POST", f"{shared.url}/v1/chat/completions", json=other, trust_env=False, timeout=60) as running:
            answering = running.iter_raw()
            next(answering)
            proxy.chat(talk[1:], **body)
        wait_until(lambda: not any(slot["is_processing"] for slot in shared.slots()), 20)
        proxy.chat(talk[2:], **body)
    first, beside, after_it = (json.loads(chat.asked) for chat in tap.chats())
    assert ("id_slot" in first, "id_slot" in beside, "id_slot" in after_it) == (False, False, True)
    assert "n_cache_reuse" in beside


@pytest.mark.parametrize("compactions", [0, 1, 5])
def test_at_a_pause_nothing_is_read(slots_engine: Engine, spillway: StartSpillway, compactions: int) -> None:
    """The oldest turns go without a note, so the answer goes on at once, also after earlier compactions."""
    with tapped(slots_engine.url) as tap:
        proxy = spillway([tap.url], strategy="mask", recall="off")
        talk: list[dict[str, Any]] = []
        turn = size = 0
        while compactions > 0 or size < 1300:
            said = " ".join(slots_engine.words[turn * 11 : turn * 11 + 40])
            answer = proxy.chat([*talk, user(f"{turn}: I like {said}.")], model="walk", max_tokens=40)
            talk += [user(f"{turn}: I like {said}."), {"role": "assistant", "content": answer.text}]
            assert answer.usage is not None
            turn, size = turn + 1, answer.usage["prompt_tokens"]
            compactions -= answer.action == "compacted"
        last = slots_engine.words[5]
        asked = len(tap.chats())
        answer = proxy.chat([*talk, after(last)], model="walk", max_tokens=900, stream=True)
        tap.wait_for(asked + 1)
        resumed = tap.chats()[-1]
        talk += [after(last), {"role": "assistant", "content": answer.text}, after(last)]
        again = proxy.chat(talk, model="walk", max_tokens=8)
    assert answer.text == spoken(slots_engine.words, last, 900)
    timings = [json.loads(line[6:])["timings"] for line in resumed.answered.split(b"\n") if b'"timings"' in line]
    assert timings[-1]["prompt_n"] < 8 < timings[-1]["cache_n"], "only the end of the answer so far"
    assert again.action == "compacted"


@pytest.mark.parametrize("mode", ["gemma3", "mamba2"])
def test_a_cache_that_cannot_be_moved_is_read_on_from_its_end(
    mode: Literal["gemma3", "mamba2"], engine: StartEngine, spillway: StartSpillway
) -> None:
    """With a sliding window or a state: every turn reads what it adds, but for one after which the prompt begins anew."""
    served = engine(ModelSpec(mode=mode))
    with tapped(served.url) as tap:
        proxy = spillway([tap.url], strategy="mask", recall="off")
        talk: list[dict[str, Any]] = []
        turns = list[tuple[str, int, int]]()
        for turn in range(36):
            words = " ".join(f"word{turn}x{i}" for i in range(14))
            talk.append({"role": "user", "content": f"{turn}: I like {words}."})
            answer = proxy.chat(talk, model=served.model, max_tokens=30)
            talk.append({"role": "assistant", "content": answer.text.strip() or "So."})
            assert answer.usage is not None
            turns.append((answer.action, answer.usage["prompt_tokens"] - answer.cached, answer.usage["prompt_tokens"]))
        assert not [each for each in tap.chats() if b"n_cache_reuse" in each.asked]
    compacted = [read for action, read, _ in turns if action == "compacted"]
    assert 2 <= len(compacted) <= 6
    assert max(read for action, read, _ in turns if action != "compacted") < OF_A_TURN
