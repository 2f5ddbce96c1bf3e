from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history.checkpoint import DIGEST_BYTES, RUN, chain, digests_in, entries, message_digest, overlap, run_ends
from proxy.core.history.turns import is_result
from proxy.core.request import Message
from tests.histories import assistant, call, histories, mixed_histories, tool, user


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


SAME: list[tuple[Message, Message]] = [
    (assistant("answer"), assistant("  answer\n\n")),
    (assistant("answer"), assistant("answer", reasoning_content="long thoughts", refusal=None, annotations=[])),
    (user("text"), {"role": "user", "content": parts("text")}),
    (user("one\ntwo"), {"role": "user", "content": parts("one", "two ")}),
    (assistant(None, tool_calls=[call(1)]), assistant("", tool_calls=[call(1)])),
    (assistant("", tool_calls=[]), assistant(None)),
    (assistant("", tool_calls=None), {"role": "assistant"}),
    (
        assistant("", tool_calls=[call(1)]),
        assistant(
            "", tool_calls=[{"index": 0, "function": {"arguments": '{"path":"a.py"}', "name": "read_file"}, "id": "call_1"}]
        ),
    ),
    ({"role": "user", "content": "a"}, {"content": "a", "role": "user"}),
]

DIFFERENT: list[tuple[Message, Message]] = [
    (user("a"), user("b")),
    (user("a"), assistant("a")),
    (user("a b"), user("a  b")),
    (user("a"), user("a", name="Ann")),
    (tool(1, "a"), tool(2, "a")),
    (assistant("", tool_calls=[call(1)]), assistant("", tool_calls=[call(2)])),
    (assistant("", tool_calls=[call(1)]), assistant("", tool_calls=[call(1, arguments='{"path":"b.py"}')])),
    (assistant("", tool_calls=[call(1)]), assistant("", tool_calls=[call(1), call(2)])),
    (
        assistant("", tool_calls=[{"id": "1", "type": "custom", "custom": {"input": "a"}}]),
        assistant("", tool_calls=[{"id": "1", "type": "custom", "custom": {"input": "b"}}]),
    ),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]},
    ),
    ({"role": "user", "content": parts("a")}, {"role": "user", "content": [*parts("a"), {"type": "image_url"}]}),
]


@pytest.mark.parametrize(("sent", "sent_again"), SAME)
def test_what_clients_change_when_they_send_it_again_does_not_count(sent: Message, sent_again: Message) -> None:
    assert message_digest(sent) == message_digest(sent_again)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_a_message_says_counts(one: Message, other: Message) -> None:
    assert message_digest(one) != message_digest(other)


@pytest.mark.no_cover
@given(histories(), histories())
def test_a_link_stands_for_the_whole_beginning(one: list[Message], other: list[Message]) -> None:
    links = chain(one)
    assert len(links) == len(set(links)) == len(one)
    assert all(len(link) == DIGEST_BYTES for link in links)
    assert chain([*one, *other])[: len(one)] == links
    assert chain(one[1:])[:1] != links[1:2] or len(one) < 2


def test_an_edit_changes_every_link_from_there_on() -> None:
    history = [user("a"), assistant("b"), user("c"), assistant("d")]
    edited = [user("a"), assistant("b!"), user("c"), assistant("d")]
    same = [a == b for a, b in zip(chain(history), chain(edited), strict=True)]
    assert same == [True, False, False, False]


@pytest.mark.parametrize(
    "message",
    [{}, {"role": None}, {"role": "user", "content": 5}, {"role": "user", "content": [None, 5]}, {"tool_calls": "x"},
     {"tool_calls": [None, {"function": "f"}]}, {"content": {"a": "half an emoji \ud83d"}}, {"content": float("nan")}],
)  # fmt: skip
def test_odd_messages_have_a_digest(message: Message) -> None:
    assert message_digest(message) == message_digest(dict(message))


def digests(messages: list[Message]) -> list[bytes]:
    return [*map(message_digest, messages)]


def shared(known: list[Message], sent: list[Message]) -> int | None:
    """What a history has in common with one that was answered and goes on in it, as far as that is found by its digests."""
    run, places = entries(known, digests(known)), run_ends(known, digests(known), "")
    key = max(places, key=lambda each: places[each], default=b"")
    end = run_ends(sent, digests(sent), "").get(key)
    return None if end is None else overlap(run[: places[key]], sent, digests(sent), end)


@st.composite
def changed(draw: st.DrawFn, messages: list[Message]) -> list[Message]:
    """A history with messages left out, edited, put in, moved or replaced by notes, wherever that may be."""
    done = list(messages)
    for _ in range(draw(st.integers(0, 3))):
        at, to = sorted(draw(st.tuples(*[st.integers(0, max(1, len(done) - RUN - 2))] * 2)))
        what = draw(st.sampled_from(["left out", "edited", "put in", "moved", "cleared"]))
        if what == "left out":
            del done[draw(st.sampled_from([0, 1, at])) : to]
        elif what == "cleared":
            note = draw(st.sampled_from(["[cleared]", "x" * 500]))
            done[at:to] = [{**each, "content": note} if is_result(each) else each for each in done[at:to]]
        elif what == "edited":
            done[at:to] = [{**each, "content": "edited"} for each in done[at:to]]
        elif what == "put in":
            done.insert(at, user("put in"))
        else:
            done[at:to] = done[at:to][::-1]
    return done


@given(mixed_histories(), st.data())
def test_a_history_goes_on_with_another_only_where_it_holds_the_same_run(known: list[Message], data: st.DataObject) -> None:
    known = [*known, assistant("telling " * 30), user("a"), assistant("b"), user("Go on.")]
    sent = data.draw(changed([*known, assistant("Yes."), user("And now?")]))
    first = shared(known, sent)
    if first is None:
        return
    run, end = digests(known), max(at for at, each in enumerate(digests(sent)) if each == message_digest(known[-1])) + 1
    gap = len(run) - end
    assert gap >= 0
    assert digests(sent)[:first] == run[:first]
    for at in range(first, end):
        same = message_digest(sent[at]) == run[at + gap]
        assert same or (is_result(sent[at]) and (at == first or is_result(known[at + gap])))
    spoken = [at for at in range(end) if not is_result(sent[at])][-RUN:]
    assert [message_digest(sent[at]) for at in spoken] == [run[at + gap] for at in spoken]
    assert sent[end].get("role") == "assistant"


LONG = "the file says this " * 20
READ = [assistant("I read it. " * 20, tool_calls=[call(1)]), tool(1, LONG)]
DONE = [assistant("It says this."), user("And b.py?"), assistant("Wait.", tool_calls=[call(2)]), tool(2, LONG)]
KNOWN = [user("Read a.py."), *READ, *DONE]
NEXT = [assistant("It says that."), user("Compare.")]
CLEARED = tool(1, "[cleared]")
TINY = [user("Read."), READ[0], tool(1, "ok"), *DONE[:2], assistant("", tool_calls=[call(3)]), tool(3, LONG), *DONE[2:]]


@pytest.mark.parametrize(
    ("known", "sent", "first"),
    [
        (KNOWN, [*KNOWN, *NEXT], 0),
        (KNOWN, [*KNOWN[1:], *NEXT], 0),
        (KNOWN, [*KNOWN[2:], *NEXT], None),  # its answers tell too little
        (KNOWN, [KNOWN[0], CLEARED, *KNOWN[1:], *NEXT], None),
        (KNOWN, [user("Read."), *KNOWN[1:], *NEXT], None),
        (KNOWN, [KNOWN[0], READ[0], CLEARED, *DONE, *NEXT], 0),
        (KNOWN, [READ[0], CLEARED, *DONE[:3], tool(2, "[cleared]"), *NEXT], 0),
        (KNOWN, [KNOWN[0], READ[0], tool(1, LONG[:-9]), *DONE, *NEXT], None),  # edited, not replaced
        (KNOWN, [KNOWN[0], READ[0], tool(1, LONG * 2), *DONE, *NEXT], None),
        (KNOWN, [*KNOWN, NEXT[1]], None),  # it was not answered here
        ([*KNOWN[:2], tool(1, "a secret"), *DONE], [*KNOWN[:2], tool(1, "a"), *DONE, *NEXT], None),
        (TINY, [*TINY[:2], CLEARED, *TINY[3:6], tool(3, "[cleared]"), *DONE[2:], *NEXT], 0),
        (TINY, [*TINY[:2], CLEARED, *TINY[3:], *NEXT], None),
        ([user("a"), assistant("b"), *KNOWN], [user("a"), *KNOWN[1:], *NEXT], 1),
        ([user("a"), *READ, *KNOWN], [user("a"), READ[1], *KNOWN, *NEXT], 1),
    ],
)  # fmt: skip
def test_what_a_history_shares_with_one_that_it_goes_on_with(
    known: list[Message], sent: list[Message], first: int | None
) -> None:
    assert shared(known, sent) == first


def test_a_run_is_its_owners() -> None:
    ends = [run_ends(KNOWN, digests(KNOWN), whose) for whose in ("one", "other", "half an emoji \ud83d")]
    assert not set(ends[0]) & set(ends[1])
    assert [*ends[0].values()] == [*ends[2].values()] == [5, 6]
    assert digests_in(entries(KNOWN, digests(KNOWN))) == digests(KNOWN)
