"""What is kept of the bodies of a conversation's requests."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from proxy.addons.live.bodies import LEAST, NEAR, Bodies, beginning
from tests.addons.live.test_conversations import gauge
from tests.fakes import LlamaCppFake, scripted
from tests.proxying import running_proxy


def body(turns: int, *, note: str = "") -> bytes:
    """A conversation of so many turns of 2 kB."""
    said = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 400} for n in range(2 * turns + 1)]
    return orjson.dumps({"model": "m", "messages": said, "stream": True, "metadata": {"note": note}})


def kept(*asked: bytes) -> list[Bodies]:
    """Bodies of requests that came one after the other, each sent as it came."""
    made: list[Bodies] = []
    for data in asked:
        new = Bodies(data, len(data))
        new.forward(data)
        if made:
            made[-1].lean_on(new)
        made.append(new)
    return made


def test_turns_take_no_more_room_than_the_last_and_what_each_ends_with() -> None:
    asked = [body(turns) for turns in range(10, 40)]
    bodies = kept(*asked)
    assert [each.received for each in bodies] == asked
    assert [each.forwarded for each in bodies] == asked
    assert all(each.same for each in bodies)
    assert sum(each.size for each in bodies) < 1.5 * len(asked[-1]) < sum(map(len, asked)) / 10


def test_what_was_sent_instead_is_kept_beside_what_was_asked() -> None:
    first, second = Bodies(body(20), 0), Bodies(body(21), 0)
    first.forward(body(12, note="short"))
    second.forward(body(13, note="short"))
    whole = first.size
    freed = first.lean_on(second)
    assert (freed, first.size) == (whole - first.size, whole - freed)
    assert first.size < whole / 20
    assert (first.received, first.forwarded, first.same) == (body(20), body(12, note="short"), False)
    assert Bodies(b"{}", 2).forwarded == b""


def test_bodies_with_little_in_common_and_short_ones_stay_whole() -> None:
    other = orjson.dumps({"messages": [{"role": "user", "content": "else " * 9000}]})
    assert [each.size for each in kept(body(20), other)] == [len(body(20)), len(other)]
    short = body(1)[: LEAST - 1]
    assert [each.size for each in kept(short, short + b" ")] == [len(short), len(short) + 1]


@given(
    st.integers(0, 40_000), st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 30_000)), min_size=1, max_size=8)
)
def test_every_body_comes_back_as_it_was(first: int, edits: list[tuple[int, int]]) -> None:
    asked = [b"".join(b"%d," % n for n in range(first // 5))]
    for number, (cut, more) in enumerate(edits):
        asked.append(asked[-1][:cut] + b"".join(b"%d;" % (n + number) for n in range(more // 5)))
    assert [each.received for each in kept(*asked)] == asked


@given(st.binary(max_size=3 * NEAR), st.binary(max_size=40), st.binary(max_size=9 * NEAR), st.sampled_from([1, 7, 60]))
def test_what_both_begin_with_is_found_but_for_a_little(same: bytes, one: bytes, other: bytes, times: int) -> None:
    same *= times
    first, second = same + b"\x00" + one, same + b"\x01" + other
    assert len(same) - NEAR <= beginning(first, second) <= len(same)
    assert len(same) - NEAR <= beginning(second, first) <= len(same)


def test_long_conversations_take_little_of_the_room_and_each_turn_can_be_looked_at() -> None:
    turns, said = 12, []
    with LlamaCppFake(brain=scripted(["fine"] * turns), window=200_000) as fake, running_proxy(fake) as proxy:
        for number in range(turns):
            said.append({"role": "user", "content": f"{number}: " + "word " * 4000})
            assert proxy.chat({"model": "m", "messages": said}).status_code == 200
            said.append({"role": "assistant", "content": "fine"})
        size = len(orjson.dumps(said))
        assert gauge(proxy, "spillway_live_bytes") < 1.5 * size
        told = proxy.client.get("/spillway/outcomes").json()["outcomes"]
        for number, outcome in enumerate(reversed(told)):
            rows = proxy.client.get(f"/spillway/requests/{outcome['id']}/diff").json()["rows"]
            assert len(rows) == 2 * number + 1
            assert rows[-1]["after"].startswith(f"{number}: word")
