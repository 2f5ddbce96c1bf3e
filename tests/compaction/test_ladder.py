"""The rungs of the ladder: what each takes out, on native, text and mixed histories alike, and what every one of them keeps."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.compaction import RUNGS, compact, leave_out
from proxy.compaction.duplicates import drop_duplicates
from proxy.compaction.ladder import (
    OMITTED,
    Reduction,
    cap_results,
    cap_unread,
    cut_middles,
    cut_oversize,
    drop_oldest,
    mask_results,
    within_limits,
)
from proxy.compaction.middles import cut_message
from proxy.compaction.policy import PruneLimits
from proxy.compaction.results import NOTE, results_of, with_texts
from proxy.compaction.shorten import GAPS, HINT, characters_cut
from proxy.core.history.embedded import IMAGE_OMITTED
from proxy.core.history.marks import INSTRUCTION, NOTED, OPEN
from proxy.core.history.turns import cut_points, first_user, is_result, is_user, newest_user, unread_from
from proxy.core.request import Message, text_of
from tests.compaction.driver import BY, driven
from tests.histories import (
    FORMS,
    assistant,
    call,
    cost,
    half_written,
    histories,
    mixed_flaws,
    mixed_histories,
    reduction_of,
    tool,
    unknown,
    user,
    written,
)

LONG = "some text that is long enough to be worth a pointer in its place " * 4
LINES = "\n".join(f"line {n} of the file" for n in range(400))
WORDS = " ".join(f"word{n}" for n in range(1500))
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/" + "x" * 400}, "detail": "low"}
LIMITS = {"lines": 40, "line_characters": 200, "output_characters": 1500, "entries": 10, "result_tokens": 10_000}
forms = pytest.mark.parametrize("form", FORMS)


def step(number: int, text: Any, name: str = "read", arguments: str = "{}") -> list[Message]:
    return [assistant("Look.", tool_calls=[call(number, name, arguments)]), {**tool(number, ""), "content": text}]


def reduction(messages: Sequence[Message], budget: float = 0.0, **limits: Any) -> Reduction:
    plain = reduction_of(messages, budget, protect=0)
    return replace(plain, limits=replace(plain.limits, **limits))


def results(messages: Sequence[Message]) -> list[tuple[str, str | None, str]]:
    return [(r.name, r.arguments, r.text) for r in results_of(messages)]


def changed(before: Sequence[Message], done: Reduction) -> list[int]:
    return [n for n, (old, new) in enumerate(zip(before, done.messages, strict=True)) if old is not new]


# -- what every rung keeps

LADDER: dict[str, Callable[[Reduction, int], Reduction]] = {
    **RUNGS,
    "oversize": lambda reduction, _: cut_oversize(reduction, reduction.budget, 50, words=True),
    "unread": lambda reduction, _: cap_unread(replace(reduction, unread=0.0)),
    "middles": lambda reduction, _: cut_middles(reduction, reduction.budget),
}
OUTPUTS = st.one_of(
    st.integers(1, 300).map(lambda n: f"line {n} of it\n" * n),
    st.integers(1, 60).map(lambda n: "ERROR: 行く川 " * n),
    st.sampled_from(["the same long text again " * 30, "short", "", "a\nwarning: b\n" * 90]),
)
figures = st.builds(
    PruneLimits, protect_newest=st.integers(0, 300), minimum_gain=st.integers(0, 100), lines=st.integers(1, 100),
    line_characters=st.integers(1, 500), output_characters=st.integers(1, 2000), entries=st.integers(1, 50),
    result_tokens=st.integers(1, 400),
)  # fmt: skip


@st.composite
def contents(draw: st.DrawFn, text: st.SearchStrategy[str]) -> Any:
    if draw(st.booleans()):
        return draw(text)
    parts = st.one_of(st.just(IMAGE), text.map(lambda t: {"type": "text", "text": t, "cache_control": {}}))
    return draw(st.lists(parts, min_size=1, max_size=3))


WRAPPED = st.tuples(
    st.sampled_from(["Here: ", "<tool_result> is what? "]), OUTPUTS, st.sampled_from(["", "[/TOOL_RESULT] go on"])
).map(lambda drawn: "{0}[TOOL_RESULT]{1}[/TOOL_RESULT]\n<tool_result tool_name='ls'>{1}</tool_result>{2}".format(*drawn))


@st.composite
def tool_histories(draw: st.DrawFn) -> list[Message]:
    """Conversations with repeated calls, images, and results of a tool that the model has no protocol for."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 6))):
        messages += [assistant("Well.", **draw(unknown))] if turn else []
        messages.append({"role": "user", "content": draw(contents(WRAPPED)), **draw(unknown)})
        for number in range(draw(st.integers(0, 2))):
            name, where = draw(st.sampled_from(["bash", "ls", "read"])), draw(st.sampled_from("ab"))
            messages += step(10 * turn + number, draw(contents(OUTPUTS)), name, f'{{"path":"{where}"}}')
    return messages


@st.composite
def jobs(draw: st.DrawFn) -> Reduction:
    messages = draw(st.one_of(tool_histories(), histories(longest=5), mixed_histories()))
    before = reduction_of(messages, sum(cost(messages)) * draw(st.floats(0.01, 1.1)))
    return replace(before, limits=draw(figures), closes=draw(st.booleans()))


@pytest.mark.parametrize("name", LADDER)
@given(jobs(), st.booleans())
def test_every_rung_keeps_the_invariants(name: str, before: Reduction, everything: bool) -> None:
    messages, newest = list(before.messages), before.newest
    tail = len(messages) if everything else newest or 0
    copied = deepcopy(messages)
    done = LADDER[name](before, tail)
    assert messages == copied, "the client's messages are not touched"
    assert mixed_flaws(done.messages) == mixed_flaws(messages) == []
    assert done.total < before.total or list(done.messages) == messages
    assert done.total == pytest.approx(sum(cost(done.messages)))
    for index, (old, new) in enumerate(zip(messages, done.messages, strict=True)):
        assert {**old, "content": 0} == {**new, "content": 0}, "unknown fields stay"
        assert old is new or name == "middles" or index != newest, "the newest question stays"
        assert old is new or name in ("middles", "oversize") or index >= before.floor, "the head stays"
    assert list(LADDER[name](replace(before, messages=copied), tail).messages) == list(done.messages)
    twice = LADDER[name](done, tail) if done.total > done.budget else done
    assert list(twice.messages) == list(done.messages) or name not in RUNGS


@given(tool_histories().flatmap(lambda history: st.tuples(st.just(history), figures)))
def test_results_within_limits_are_the_same_on_every_turn(drawn: tuple[list[Message], PruneLimits]) -> None:
    history, limits = drawn
    within = within_limits(history, limits)
    assert [m for m in within if not is_result(m)] == [m for m in history if not is_result(m)]
    for end in range(len(history)):
        assert list(within_limits(history[:end], limits)) == list(within[:end])
    assert list(within_limits(within, limits)) == list(within)


@given(histories(longest=5))
def test_turns_are_the_same_in_every_form(messages: list[Message]) -> None:
    for same in (written(messages), half_written(messages)):
        assert mixed_flaws(same) == []
        for look in (cut_points, newest_user, first_user, unread_from):
            assert look(same) == look(messages)


def test_a_compaction_names_the_rungs_that_it_took() -> None:
    big = [{"type": "text", "text": LINES * 5}]
    messages = [user("Read all"), *step(1, big), *step(2, "of no great length\n" * 30), assistant("Read.")]
    messages += [user("See [TOOL_RESULT]" + "same " * 60 + "[/TOOL_RESULT]"), assistant("ok")] * 2
    messages.append(user("And?"))
    for share, rungs in ((0.3, ("cap",)), (0.045, ("cap", "mask"))):
        before = reduction(messages, sum(cost(messages)) * share, lines=50, line_characters=200, result_tokens=200)
        done, asked = driven(compact(before, BY, limit=1e9), lambda _: "")
        assert (done.rungs, done.kind, asked) == (rungs, "pruned", [])


# -- cap


@forms
def test_cap_goes_by_the_tool_and_its_arguments(form: str) -> None:
    steps = [*step(1, LINES), *step(2, LINES, "bash"), *step(3, LINES, "bash", '{"command":"ls -l"}')]
    messages = [user("a"), *steps, assistant("b")]
    native = results(cap_results(reduction(messages, **LIMITS), 99).messages)
    assert [len(text.split("\n")) <= most for (_, _, text), most in zip(native, (40, 40, 11), strict=True)]
    done = cap_results(reduction(FORMS[form](messages), **LIMITS), 99)
    assert results(done.messages) == native
    assert mixed_flaws(done.messages) == []


@pytest.mark.parametrize(
    ("name", "arguments", "lines"),
    [
        *((name, "{}", 11) for name in ("list_dir", "LS", "listFiles", "directory_tree")),
        ("bash", '{"command":"ls -la /tmp"}', 11),
        ("bash", '{"command":"find . -name x"}', 11),
        ("bash", '{"command":"ls | wc -l"}', 35),
        ("bash", '{"command":"lsof"}', 35),
        ("search_directory", "{}", 35),
        ("read_file", "{}", 35),
    ],
)
def test_directories_show_so_many_entries(name: str, arguments: str, lines: int) -> None:
    text = "\n".join(f"directory/file{n}.txt" for n in range(35))
    done = cap_results(reduction([user("a"), *step(1, text, name, arguments), assistant("b")], **LIMITS), 99)
    assert len(results(done.messages)[0][2].removesuffix(HINT).split("\n")) == lines


def test_results_are_capped_as_far_as_needed_the_oldest_first() -> None:
    messages = [user("a"), *step(1, LINES), *step(2, LINES), *step(3, LINES), assistant("b")]
    total, size = sum(cost(messages)), cost(messages)[2]
    done = cap_results(reduction(messages, total - size * 1.3, **LIMITS), 99)
    shares = [done.costs[index] / size for index in (2, 4, 6)]
    assert shares[0] < 0.2, "down to the limits"
    assert 0.3 < shares[1] < 0.6, "as far as needed"
    assert changed(messages, done) == [2, 4]
    assert total - size * 1.45 < done.total <= total - size * 1.3


def test_what_the_model_has_not_read_is_shortened_last_and_no_more_than_it_must_be() -> None:
    batch = assistant(None, tool_calls=[call(2), call(3)])
    messages = [user("a"), *step(1, LINES), batch, tool(2, LINES), tool(3, "short\n" * 90)]
    total, size = sum(cost(messages)), cost(messages)[4]
    for share in (0.7, 0.1):
        assert changed(messages, cap_results(reduction(messages, total * share, **LIMITS), 99)) == [2]
    plain = reduction(messages, total * 0.1)
    for unread in (1e9, size * 2):
        ample = replace(plain, unread=unread)
        assert cap_unread(ample) is ample, "as much of it as this is never cut"
    half = cap_unread(replace(plain, unread=size * 0.6))
    assert changed(messages, half) == [4], "the largest first"
    assert 0.4 * size < half.costs[4] + half.costs[5] <= 0.6 * size
    assert half.messages[4]["content"].startswith("line 0 of the file\n")
    assert half.messages[4]["content"].endswith("\nline 399 of the file" + HINT)
    roomy = cap_unread(replace(plain, unread=size * 0.2, enough=total - size * 0.3))
    assert 0.85 * (total - size * 0.3) < roomy.total <= total - size * 0.3


@pytest.mark.parametrize("text", ["\n".join(["some words in a row, " * 20] * 1500), "flags:\n" + "0110 " * 90_000])
def test_a_result_larger_than_the_window_fills_what_is_left_of_it(text: str) -> None:
    before = replace(reduction([user("a"), *step(1, text)]), enough=5000, unread=0.0)
    assert before.total > 80_000
    assert 4000 < cap_unread(before).total <= 5000


# -- mask


@forms
def test_mask_begins_with_the_oldest_and_leaves_the_newest_and_the_unread(form: str) -> None:
    steps = [m for n in range(6) for m in step(n, f"line {n} " * 200)]
    messages = FORMS[form]([user("a"), *steps])
    size = reduction(messages).costs[2]
    # So much that the last result, which is unread, and the two before it are protected.
    done = mask_results(reduction(messages, protect_newest=int(3.5 * size)), 99)
    assert changed(messages, done) == [2, 4, 6]
    assert results(done.messages)[0][2].startswith(f"{NOTE} to save room: read, 1400 characters. It began: line 0 line 0")
    assert mixed_flaws(done.messages) == []
    assert changed(messages, mask_results(reduction(messages), 99)) == [2, 4, 6, 8, 10]
    assert changed(messages, mask_results(reduction(messages), 5)) == [2, 4]
    assert changed(messages, mask_results(reduction(messages, reduction(messages).total - size / 2), 99)) == [2]
    assert changed(messages, mask_results(reduction(messages, minimum_gain=10**6), 99)) == [], "not worth the cache"


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "tool_call_id": "gone", "content": "x " * 900},
        {"role": "tool", "content": [{"type": "text", "text": "x " * 900}, {"type": "image_url"}]},
        {"role": "tool", "name": 5, "tool_call_id": None, "content": "x " * 900},
    ],
)
def test_odd_results_are_masked_too(result: Message) -> None:
    messages = [user("a"), result, assistant("b", tool_calls=[None, 5, {"function": 7}]), user("c")]
    done = mask_results(reduction(messages), 3)
    assert text_of(done.messages[1]).startswith(NOTE)
    assert {**done.messages[1], "content": 0} == {**result, "content": 0}


@pytest.mark.parametrize("rung", [mask_results, cap_results])
@forms
def test_where_gaps_cost_nothing_results_lose_their_middles_without_a_mark(
    rung: Callable[[Reduction, int], Reduction], form: str
) -> None:
    """The newest result that was read says so, once: what it is in front of has not been read yet."""
    messages = FORMS[form]([user("a"), *(m for n in range(6) for m in step(n, f"{LINES}\nERROR {n}\n$ "))])
    before = replace(reduction(messages, minimum_gain=0, result_tokens=300), closes=True)
    some = rung(replace(before, budget=before.total - 1.5 * before.costs[2]), 99)
    assert changed(messages, some) == [2, 4, 10]
    assert results(some.messages)[4][2] == results(messages)[4][2] + GAPS
    done = rung(replace(some, budget=0.0), 99)
    for (*_, old), (*_, new) in zip(results(messages)[:4], results(done.messages), strict=False):
        begin, end = new.removesuffix(GAPS).split("\n", 1)[0], new.removesuffix(GAPS)[-10:]
        assert old.startswith(begin)
        assert old.endswith(end)
        assert "ERROR" in end
        assert len(new) < len(old) / 3
    assert str(done.messages).count(GAPS.strip()) == 1
    assert changed(done.messages, rung(done, 99)) == [], "twice is as once"


@given(jobs())
def test_gaps_take_characters_out_and_put_none_in(before: Reduction) -> None:
    for rung in (mask_results, cap_results):
        done = rung(replace(before, closes=True), 99)
        for old, new in zip(results_of(before.messages), results_of(done.messages), strict=True):
            if old.text != new.text and not new.is_note and old not in before.kept:
                left = new.text.removesuffix(GAPS)
                begun = next((at for at, (a, b) in enumerate(zip(left, old.text, strict=False)) if a != b), len(left))
                assert old.text.removesuffix(GAPS).endswith(left[begun:])


@pytest.mark.parametrize(
    "text", ["short", "\u5b57" * 900, "x" * 2000, "x: error\n" + "\n".join(f"n {n} abcd" for n in range(26))]
)
def test_of_gaps_is_told_once_and_only_of_those_in_results_that_were_read(text: str) -> None:
    """Not of an unread one that was shortened, which says so itself; nor does a result lose that text with its own."""
    for messages in ([user("a"), *step(1, LINES)], [user("a"), *step(0, text), *step(1, LINES)]):
        before = replace(reduction(messages, minimum_gain=0), closes=True, unread=0.0)
        assert changed(messages, cap_unread(before)) == [len(messages) - 1]
    messages = [user("a"), *step(0, LINES), *step(1, text + GAPS), *step(2, "unread")]
    done = mask_results(replace(reduction(messages, minimum_gain=0), closes=True), 99)
    told = [each.text.removesuffix(GAPS) for each in results_of(done.messages) if each.text.endswith(GAPS)]
    assert str(done.messages).count(GAPS.strip()) == len(told) == 1
    assert len(told[0]) <= len(text), "nothing is doubled"
    forged = step(0, LINES + GAPS)
    assert within_limits(forged, reduction(forged, result_tokens=300).limits) is not forged


# -- duplicates


def read(number: int, word: str, arguments: str, name: str = "read") -> list[Message]:
    return step(number, f"{word} {LONG}", name, arguments)


READ = '{"p":1}'
OTHER = '{"p":2}'
SEEN = f"See <tool_result tool_name='x'>{LONG}</tool_result> ok"


@pytest.mark.parametrize(
    ("messages", "dropped"),
    [
        ([*step(1, LONG, "read", READ), *step(2, LONG, "cat"), *step(3, "new " + LONG), *step(4, LONG, "ls")], [2, 4]),
        ([*read(1, "old", READ), *read(2, "b", OTHER), *read(3, "c", READ, "stat"), *read(4, "new", READ)], [2]),
        # What equals a superseded result is not dropped for it: a pointer never leads to a result that is gone.
        (
            [*read(1, "one", READ), *read(2, "two", OTHER), *read(3, "two", READ), *read(4, "three", READ), assistant("b")],
            [2, 6],
        ),
        ([assistant(None, tool_calls=[call(1), call(2)]), tool(1, "one " + LONG), tool(2, "two " + LONG)], []),
        ([*step(1, "ok", "read", READ), *step(2, "ok"), *step(3, NOTE + "]"), *step(4, NOTE + "]")], []),
        # Nor to an image that is gone.
        ([*read(1, "one", READ), *step(2, IMAGE_OMITTED, "read", READ), assistant("b")], []),
        # Without known arguments only equals; and the newest message stays.
        ([m for text in (SEEN, SEEN.replace("some", "any"), SEEN, SEEN) for m in (user(text), assistant("b"))], [1, 5]),
    ],
)
@forms
def test_repeated_results_and_superseded_reads_leave_pointers(form: str, messages: list[Message], dropped: list[int]) -> None:
    messages = FORMS[form]([user("a"), *messages])
    done = drop_duplicates(reduction(messages), 99)
    assert changed(messages, done) == dropped
    assert mixed_flaws(done.messages) == mixed_flaws(messages)
    for index in dropped:
        assert NOTE in str(done.messages[index]["content"])


@forms
def test_all_but_the_newest_images_leave_a_note(form: str) -> None:
    steps = [m for n in range(5) for m in step(n, [{"type": "text", "text": "A picture."}, IMAGE])]
    messages = FORMS[form]([user("a"), *steps, assistant("b"), {"role": "user", "content": [IMAGE] * 2}])
    done = drop_duplicates(reduction(messages), 99)
    assert changed(messages, done) == [2, 4, 6, 8]
    assert sum("example.org" in str(m["content"]) for m in done.messages) == 2
    assert "[An image was here and was left out to save room.]" in str(done.messages[2]["content"])
    assert mixed_flaws(done.messages) == []
    assert newest_user(done.messages) == len(messages) - 1
    assert cut_points(done.messages) == cut_points(messages)


# -- oversize


def test_a_long_opening_loses_its_middle_as_far_as_needed() -> None:
    opening = user(f"A demonstration. {WORDS} The end of it.")
    messages = [opening, user("Now solve this one."), *step(1, "ok"), assistant("Done."), user("And now?")]
    total = sum(cost(messages))
    done = cut_oversize(reduction(messages), total / 2, 200, words=True)
    text = done.messages[0]["content"]
    assert text.startswith("A demonstration. word0 ")
    assert text.endswith(" The end of it.")
    assert changed(messages, done) == [0]
    assert total * 0.4 < done.total <= total / 2
    twice = cut_oversize(done, total / 4, 100, words=True).messages[0]["content"]
    assert len(twice) + characters_cut(twice) == pytest.approx(len(opening["content"]) + 37, abs=4)
    assert 150 < cut_oversize(reduction(messages), 0, 200, words=True).costs[0] <= 200
    assert changed(messages, cut_oversize(reduction(messages), 0, 200, words=False)) == []
    newest = [user("Short."), assistant(WORDS), user(WORDS)]
    assert changed(newest, cut_oversize(reduction(newest), 0, 200, words=True)) == []


def test_of_stale_system_messages_less_is_left_than_of_the_last_one() -> None:
    for stale in ({"role": "system", "content": WORDS}, user(f"{INSTRUCTION}\n{WORDS}")):
        messages = [user("One"), assistant("Done."), stale, user("Two"), assistant("Done."), dict(stale), user("Three")]
        done = cut_oversize(reduction(messages), 0, 400, words=True)
        assert done.costs[2] <= 130
        assert 300 < done.costs[5] <= 400


BLOCKS = st.builds(
    "<{0}>\n{1}\n</{0}>\n".format,
    st.sampled_from(["system-reminder", "file", "environment_details"]),
    st.sampled_from(["x", "a line of it\n" * 90, "<file>\ny\n</file>\n" * 50, "z" * 9000]),
)


@given(
    st.lists(BLOCKS, max_size=3),
    st.sampled_from(["Mend the door.", "Where is it? " * 60, "今日は " * 300]),
    st.lists(BLOCKS, max_size=3),
    st.booleans(),
    st.floats(0, 1.2),
    st.booleans(),
)
def test_words_between_blocks_are_cut_last(
    before: list[str], words: str, behind: list[str], parts: bool, share: float, cut_words: bool
) -> None:
    texts = ["".join(before), words, "\n" + "".join(behind)]
    content = [{"type": "text", "text": text, "x": 1} for text in texts] if parts else "".join(texts)
    message: Message = {"role": "user", "content": content}
    (size,) = cost([message])
    done, after = cut_message(message, size * (1 - share), cost, words=cut_words)
    assert after < size if done is not message else after == size
    assert (characters_cut(text_of(done)) > 0) is (done is not message)
    assert words in text_of(done) or (cut_words and "z" * 400 not in text_of(done))


def test_a_picture_that_comes_with_each_message_stays_once() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 50}}
    messages = [user("a"), *(m for _ in range(3) for m in (assistant("b"), {**user(""), "content": [picture]}))]
    done = drop_duplicates(reduction(messages), 99)
    assert [str(m).count("iVBOR") > 0 for m in done.messages if m["role"] == "user"] == [False, False, False, True]
    assert [len(m["content"]) for m in done.messages[2::2]] == [1, 1, 1]


# -- trim


@given(histories(), st.floats(0.01, 1.2))
def test_whole_turns_are_dropped_between_head_and_tail(messages: list[Message], share: float) -> None:
    before, tail = reduction_of(messages, 0), newest_user(messages) or 0
    done = drop_oldest(before, before.total * share, before.floor, tail)
    assert mixed_flaws(done.messages) == []
    assert list(done.costs) == cost(done.messages)
    assert done is before or done.total < before.total
    assert list(done.messages[: before.floor]) == messages[: before.floor]
    rest = [m for m in done.messages if OMITTED not in text_of(m) and m.get("content") != NOTED]
    told = [m for m in done.messages if OMITTED in text_of(m)]
    assert len(told) == (done is not before), "the note is always there"
    later = [m for m in done.messages[before.floor :] if any(m is each for each in messages)]
    dropped = any(is_user(m) and all(m is not each for each in rest) for m in messages)
    assert not (dropped and later and later[0]["role"] == "assistant"), "no answer without its question"
    assert all(any(m is original for original in messages) for m in rest)
    if before.floor <= tail:
        assert list(done.messages[len(done.messages) - len(messages) + tail :]) == messages[tail:]


@forms
def test_no_more_is_dropped_than_it_takes(form: str) -> None:
    pairs = [(call(n), call(n + 1), n) for n in range(0, 12, 2)]
    steps = [m for a, b, n in pairs for m in (assistant(None, tool_calls=[a, b]), tool(n, LONG), tool(n + 1, LONG))]
    messages = FORMS[form]([user("a"), *steps, assistant("b"), user("c")])
    remaining = []
    for budget in range(0, int(reduction(messages).total), 60):
        done = drop_oldest(reduction(messages), budget, 1, len(messages) - 1).messages
        assert mixed_flaws(done) == []
        assert (done[0], done[-1]) == (messages[0], messages[-1])
        remaining.append(len(results_of(done)))
    assert set(remaining) == {0, 2, 4, 6, 8, 10}
    small = reduction([user("a"), assistant("b"), user("c")])
    assert drop_oldest(small, 0, 1, 2) is small, "the note would be longer than what it stands for"


def test_what_is_left_without_a_question_begins_with_the_user() -> None:
    """Chat templates refuse a conversation that the assistant begins; a result as text is no question."""
    steps = written([m for n in range(6) for m in step(n, LONG)])
    done = drop_oldest(reduction(steps), 200, 0, len(steps) - 2)
    assert [m["role"] for m in done.messages] == ["user", "assistant", "user"]
    assert list(done.messages[1:]) == steps[-2:]


# -- middles


def test_the_largest_is_cut_first_and_the_pinned_ones_last() -> None:
    messages = [user("first " * 400), assistant("long " * 600), assistant("short " * 100), user("newest " * 700)]
    before = reduction(messages)
    assert changed(messages, cut_middles(before, before.total - 300)) == [1]
    assert all(len(m["content"]) < 600 for m in cut_middles(before, 10).messages)


@forms
def test_middles_are_cut_inside_of_results_and_around_calls(form: str) -> None:
    arguments = '{"text":"' + "y" * 3000 + '"}'
    calls = assistant("Thus: " + "because " * 300, tool_calls=[call(1, "write", arguments)])
    messages = [user("a"), calls, tool(1, "x" * 9000), *step(2, "short")]
    done = cut_middles(reduction(FORMS[form](messages)), 1400)
    assert mixed_flaws(done.messages) == []
    assert done.total <= 1400
    (_, intact, cut), (_, _, short) = results(done.messages)
    assert (intact, short) == (arguments, "short")
    assert "characters left out here" in cut
    assert (cut[:100], cut[-100:]) == ("x" * 100, "x" * 100)


def test_several_results_and_parts_of_one_message_are_cut_each_for_itself() -> None:
    one = "<tool_result tool_name='read'>" + "a" * 5000 + "</tool_result>"
    messages = [user("q"), *written(step(1, "x"))[:1], user(f"{one}\n\n{one}")]
    done = cut_middles(reduction(messages), 600)
    assert done.total <= 600
    assert ["left out here" in text and len(text) < 2000 for _, _, text in results(done.messages)] == [True, True]
    parts = [{"type": "text", "text": "a " * 3000, "x": 1}, IMAGE, "odd", {"type": "text", "text": "b " * 3000}]
    done = cut_middles(reduction([user("q"), {"role": "user", "content": parts}]), 1000)
    first, image, odd, last = done.messages[1]["content"]
    assert (image, odd, first["x"]) == (IMAGE, "odd", 1)
    assert len(first["text"]) < 3000 > len(last["text"])


def test_what_has_no_text_is_left_alone() -> None:
    odd: Message = {"role": "assistant", "content": {"odd": "z" * 5000}}
    messages = [user("q"), assistant(None, tool_calls=[call(1, arguments="x" * 5000)]), tool(1, "y" * 300), odd]
    assert changed(messages, cut_middles(reduction(messages), 100)) == []


def test_texts_of_results_alone_are_replaced() -> None:
    messages = [user("See <tool_result tool_name='x'>" + LINES + "</tool_result>"), assistant("b"), user("c")]
    done = cap_results(replace(reduction(messages, **LIMITS), floor=0), 99)
    assert done.messages[0]["content"].startswith("See <tool_result tool_name='x'>line 0 of the file\n")
    assert done.messages[0]["content"].endswith(f"line 399 of the file{HINT}</tool_result>")
    assert with_texts(messages[0], {}) is messages[0]


# -- turns left out at a pause


@given(mixed_histories(), st.floats(0.2, 0.9), st.floats(1.0, 2.0), st.integers(0, 40))
def test_of_what_is_left_out_no_trace_stays_of_the_rest_everything(
    messages: list[Message], share: float, more: float, place: int
) -> None:
    whole = reduction(messages)
    whole = replace(whole, budget=whole.total * share, enough=whole.total * share * more)
    found = leave_out(whole, place)
    if found is None:
        return
    done, kept = found
    assert done.messages == [messages[at] for at in kept]
    assert done.after <= whole.enough
    assert mixed_flaws(done.messages) == mixed_flaws(messages)
    assert newest_user(messages) in kept
    assert set(range(whole.floor)) <= set(kept)


@pytest.mark.parametrize(("place", "text", "left"), [(7, f"{OPEN}\n", [5, 6, 7]), (8, f"{OPEN}\n", [5, 6, 7]), (7, "So.", [])])
def test_a_turn_stays_in_which_or_after_which_there_is_the_summary(place: int, text: str, left: list[int]) -> None:
    turns = [m for n in range(4) for m in (user(f"q{n}"), *step(n, LINES))]
    found = leave_out(replace(reduction([user("task"), assistant(text), *turns, user("now")]), enough=1e9), place)
    assert found is not None
    assert found[1] == [0, 1, *left, 14]


RULED = [user("Hello."), assistant("Hello."), user("Always answer in French."), assistant("Oui."), user("And now?")]


@pytest.mark.parametrize(("messages", "left"), [(RULED, None), ([*RULED[:2], user("And then?"), *RULED[3:]], [0, 1, 4])])
def test_a_rule_is_not_left_out(messages: list[Message], left: list[int] | None) -> None:
    least = reduction(messages).total - 1
    found = leave_out(replace(reduction(messages), budget=least, enough=least), 0)
    assert (found and found[1]) == left
