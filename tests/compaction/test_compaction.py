from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction import summary
from proxy.compaction.asking import Summariser, SummaryAsk
from proxy.compaction.compaction import Compaction, compact
from proxy.compaction.ladder import Reduction
from proxy.compaction.progress import TASK
from proxy.core.history import marks
from proxy.core.history.marks import is_summary
from proxy.core.history.turns import cut_points
from proxy.core.request import Message, text_of
from tests.compaction.driver import driven
from tests.histories import assistant, call, cost, flaws, histories, reduction_of, tool, user

GOOD = "The user builds a house of words and wants it blue. The roof is still missing."
BY = Summariser(window=4000, tokens=60, overhead=0.0, same_model=True)


def run(
    reduction: Reduction, replies: Iterable[str] = (), by: Summariser = BY, limit: float = 1e9
) -> tuple[Compaction, list[SummaryAsk]]:
    """Drive a compaction; after the given replies every further one is a good summary."""
    answers = iter(replies)
    return driven(compact(reduction, by, limit=limit), lambda _: next(answers, GOOD))


def total(messages: Sequence[Message]) -> float:
    return sum(cost(messages))


def chat(turns: int, words: int = 60) -> list[Message]:
    messages: list[Message] = []
    for n in range(turns):
        messages += [user(f"Question {n}: " + "why " * words), assistant(f"Answer {n}: " + "so " * words)]
    return [*messages, user("And now?")]


def agent(steps: int, words: int = 60) -> list[Message]:
    messages = [user("Fix the bug in a.py")]
    for n in range(steps):
        messages += [assistant(None, tool_calls=[call(n)]), tool(n, f"line {n} " * words)]
    return messages


# -- the invariants, over random histories


def assert_mapping(messages: Sequence[Message], done: Compaction) -> None:
    """The new history is the replacement and then the very messages that are not covered."""
    rest = messages[done.covered :]
    assert len(done.messages) == done.replaced + len(rest)
    assert all(a is b for a, b in zip(done.messages[done.replaced :], rest, strict=True))
    assert done.covered in cut_points(messages)


@given(histories(), st.floats(0.05, 1.1))
def test_unknown_fields_survive(messages: list[Message], share: float) -> None:
    done, _ = run(reduction_of(messages, total(messages) * share), limit=total(messages) * share)
    fields = {frozenset(m) - {"content"} for m in done.messages}
    known = {frozenset(m) - {"content"} for m in messages}
    assert fields <= known | {frozenset({"role"})}


# -- what a rewrite looks like


def test_below_the_budget_nothing_happens() -> None:
    messages = chat(3)
    done, asked = run(reduction_of(messages, 1e9))
    assert (done.covered, done.replaced, done.rungs, asked) == (0, 0, (), [])
    assert list(done.messages) == messages


def test_a_rewrite_inside_a_batch_covers_the_whole_batch() -> None:
    messages = [
        user("Read both"), assistant(None, tool_calls=[call(0), call(1)]), tool(0, "long " * 300), tool(1, "short"),
        assistant("Read."), user("Thanks"),
    ]  # fmt: skip
    done, _ = run(reduction_of(messages, total(messages) - 100, protect=0))
    assert done.kind == "pruned"
    assert done.covered == done.replaced == 4


def test_the_summary_stands_between_the_first_question_and_the_tail() -> None:
    messages = chat(8)
    done, asked = run(reduction_of(messages, total(messages) * 0.5))
    assert (done.kind, done.rungs) == ("compacted", ("summarise",))
    assert done.messages[0] is messages[0]
    block = done.messages[1]
    assert block["role"] == "assistant"
    assert is_summary(block)
    assert GOOD in block["content"]
    assert done.messages[-1] is messages[-1]
    assert len(asked) == 1


def test_the_instruction_is_appended_to_the_live_prompt() -> None:
    """The same messages that the backend has seen, so that its cache serves them."""
    messages = chat(8)
    _, asked = run(reduction_of(messages, total(messages) * 0.5))
    assert asked[0].append
    assert asked[0].max_tokens == BY.tokens
    *live, instruction = asked[0].messages
    assert live
    assert all(a is b for a, b in zip(live, messages, strict=False))
    assert instruction["role"] == "user"


def test_the_summariser_sees_nothing_that_is_not_covered() -> None:
    """A client may edit what comes after the covered part."""
    messages = chat(8)
    done, asked = run(reduction_of(messages, total(messages) * 0.5))
    shown = str(asked[0].messages)
    for message in messages[done.covered :]:
        assert str(message["content"]) not in shown


@pytest.mark.parametrize("by", [{"same_model": False}, {"window": 800}, {"overhead": 3900.0}])
def test_else_a_fenced_transcript_is_sent(by: dict[str, float]) -> None:
    messages = chat(8)
    other = Summariser(**{"window": 4000, "tokens": 60, "overhead": 0.0, "same_model": True, **by})  # type: ignore[arg-type] # a table of fields
    _, asked = run(reduction_of(messages, total(messages) * 0.5), by=other)
    assert not asked[0].append
    assert len(asked[0].messages) == 1
    assert "USER: Question 1" in asked[0].messages[0]["content"]


def test_a_transcript_larger_than_the_window_is_read_in_pieces() -> None:
    """Each piece goes on from the summary of those before it, and fits the window, whatever the script."""
    messages = [*chat(20, words=100), assistant("漢" * 3000), user("So?")]
    by = Summariser(window=900, tokens=60, overhead=0.0, same_model=False)
    replies = [f"Summary number {n} of the pieces that were read so far." for n in range(50)]
    done, asked = run(reduction_of(messages, 500), replies, by=by)
    assert len(asked) > 5
    assert all(total(ask.messages) + ask.max_tokens <= by.window for ask in asked)
    assert all(replies[n - 1] in asked[n].messages[0]["content"] for n in range(1, len(asked)))
    assert replies[len(asked) - 1] in str(done.messages[1]["content"])


def test_a_failed_summary_is_asked_for_once_more_and_then_made_by_code() -> None:
    messages = chat(8)
    done, asked = run(reduction_of(messages, total(messages) * 0.5), ["", ""])
    assert [ask.append for ask in asked] == [True, False]
    assert (done.rungs, done.kind) == (("extract",), "compacted")
    text = text_of(done.messages[1])
    assert marks.QUOTES in text
    assert "Question" in text


def test_an_earlier_block_stays_frozen() -> None:
    first, _ = run(reduction_of(chat(8), total(chat(8)) * 0.5))
    frozen = first.messages[1]["content"]
    grown = [*first.messages, *[m for n in range(5) for m in (assistant("ha " * 90), user("ho " * 90))]]
    second, _ = run(reduction_of(grown, total(grown) * 0.5), ["A second summary, of the rest of it all."])
    content = second.messages[1]["content"]
    assert content.startswith(frozen)
    assert content.count(marks.OPEN) == 2


def test_what_was_done_for_a_later_task_does_not_stand_under_the_first() -> None:
    by = replace(BY, tokens=400)
    first, _ = run(reduction_of(agent(30), total(agent(30)) * 0.5), by=by)
    grown = [*first.messages, user("Write docs."), *agent(30)[1:]]
    second, _ = run(reduction_of(grown, total(grown) * 0.6), by=by)
    content = text_of(second.messages[1])
    assert (content.count(marks.OPEN), content.count("Task: Fix the bug in a.py")) == (2, 1)


def test_blocks_that_outgrow_their_budget_are_summarised_with_the_rest() -> None:
    block = assistant(summary.block("fact " * 200, [], limit=0))
    messages = [user("Task"), block, user(marks.BRIDGE), *chat(6)[1:]]
    done, asked = run(reduction_of(messages, total(messages) * 0.4))
    assert "so far" in asked[0].messages[-1]["content"]
    assert "fact fact" not in str(done.messages)
    assert sum(map(is_summary, done.messages)) == 1
    assert flaws(done.messages) == []


@pytest.mark.parametrize(
    ("later", "pinned"), [("Go on, please.", True), ("Build a red boat, and show me how it swims on the lake.", False)]
)
def test_a_task_stays_until_another_as_large_is_set(later: str, pinned: bool) -> None:
    task = user("Build a blue shed behind the house, with a door to the south and one window in the roof.")
    messages = [task, assistant(summary.block("fact " * 200, [], limit=0)), user(later), *agent(6)[1:]]
    done, _ = run(reduction_of(messages, total(messages) * 0.4))
    assert "fact fact" not in str(done.messages), "it was merged"
    assert (task in done.messages) == pinned
    assert flaws(done.messages) == []


def test_a_merged_block_is_read_whole() -> None:
    """Other long messages lose their middle in a transcript; an earlier summary must not."""
    block = assistant(summary.block("The code is 4711. " * 400 + "The door is green." + " x" * 3000, [], limit=0))
    messages = [user("Task"), block, *chat(6)]
    by = Summariser(window=100_000, tokens=60, overhead=0.0, same_model=False)
    _, asked = run(reduction_of(messages, total(messages) * 0.2), by=by)
    assert "The door is green." in asked[0].messages[0]["content"]


# -- how deep, and by whom


def limited(messages: Sequence[Message], share: float, *, enough: float = 0.0, **limits: float) -> Reduction:
    plain = reduction_of(messages, total(messages) * share)
    return replace(
        plain,
        enough=total(messages) * max(share, enough),
        limits=replace(plain.limits, **limits),  # type: ignore[arg-type]
    )


def test_no_model_is_asked_where_masking_is_enough() -> None:
    messages = [*agent(12), assistant("Done."), user("And now?")]
    done, asked = run(limited(messages, 0.3, enough=0.6, protect_newest=10_000))
    assert (done.kind, asked) == ("pruned", [])
    assert done.after <= total(messages) * 0.6
    _, asked = run(limited(messages, 0.1, enough=0.15, protect_newest=10_000))
    assert len(asked) == 1


def test_what_is_not_worth_a_summary_is_put_in_short_by_code_behind_the_block_that_there_is() -> None:
    messages = chat(8)
    done, asked = run(limited(messages, 0.4, enough=0.6, worth=10_000.0))
    assert (asked, done.rungs, done.kind) == ([], ("extract",), "compacted")
    block = text_of(done.messages[1])
    assert block.startswith(f"{marks.OPEN}\n{marks.EXTRACT}\n{marks.QUOTES}\n- ")
    grown = [*done.messages[:-1], *chat(6)[2:]]
    again, asked = run(limited(grown, 0.6, enough=0.8, worth=10_000.0))
    assert asked == []
    assert text_of(again.messages[1]).startswith(block)


def test_earlier_blocks_are_summarised_too_where_another_would_be_too_much() -> None:
    done, _ = run(limited(chat(12), 0.3, enough=0.5))
    messages = [*done.messages[:-1], *chat(5)[2:]]
    tight = total(done.messages[:2]) + 30
    again, _ = run(reduction_of(messages, tight))
    (block,) = (message for message in again.messages if is_summary(message))
    assert text_of(block).count(marks.OPEN) == 1
    roomy, _ = run(reduction_of(messages, total(messages) * 0.75))
    assert text_of(roomy.messages[1]).startswith(text_of(done.messages[1]))


@pytest.mark.parametrize(("form", "asks"), [("<files>\n{}\n</files>\nLook.", 0), ("Notes: {}", 1)])
def test_a_program_s_block_gives_way_before_a_model_is_asked_and_words_do_not(form: str, asks: int) -> None:
    messages = [user(form.format("so it goes " * 900)), user("Task"), *agent(3)[1:], assistant("ok"), user("?")]
    done, asked = run(limited(messages, 0.4, enough=0.5, message=200.0))
    assert bool(asked) is bool(asks)
    assert (done.rungs[-1] == "oversize") is not bool(asks)
    assert asks or "left out here" in text_of(done.messages[0])


# -- where the newest turn takes what room there is


def task_after(steps: int, *, opening: str = "Old task: the code is CX-4711.", words: int = 300) -> list[Message]:
    """A loop for an old task, and a new one with a large result."""
    old = [user(opening), *agent(steps, 20)[1:], assistant("Done.")]
    new = [user("New task: rename ZETA-99."), assistant(None, tool_calls=[call(90)]), tool(90, "row " * words)]
    return [*old, *new]


def squeezed(messages: Sequence[Message], **limits: float) -> Reduction:
    """With room for the newest turn and little else."""
    return replace(limited(messages, 1.0, **limits), budget=total(messages[-3:]), enough=total(messages[-3:]) + 40)


def test_a_block_tells_nothing_of_a_message_that_stays_whole_behind_it() -> None:
    new = agent(12)
    new[0] = user("The code is CX-4711. Always answer in verse.")
    messages = [*agent(3), assistant("Done."), *new]
    done, _ = run(reduction_of(messages, total(messages) * 0.4), ["", ""])
    block = next(text_of(message) for message in done.messages if is_summary(message))
    assert new[0] in done.messages
    assert marks.carried_statements(assistant(block)) == []
    assert block.count("CX-4711") == block.count(f"- {TASK}The code is CX-4711.") == 1
    assert marks.HEADING not in block


def test_the_opening_becomes_part_of_the_block_where_the_newest_turn_leaves_it_no_room() -> None:
    messages = task_after(8)
    roomy, _ = run(limited(messages, 0.9))
    assert roomy.messages[0] is messages[0]
    done, _ = run(squeezed(messages))
    assert messages[0] not in done.messages
    assert "CX-4711" in text_of(next(m for m in done.messages if is_summary(m)))
    assert list(done.messages[-3:]) == messages[-3:]
    assert flaws(done.messages) == []
    grown = [*done.messages, assistant("Done, too."), user("And?")]
    assert "CX-4711" in str(run(reduction_of(grown, total(grown) * 0.6))[0].messages)


def test_of_the_opening_as_much_stays_as_has_room() -> None:
    """A file that the session is about is cut, not dropped, where some of it has room."""
    file = "shop.py\n```\n" + "".join(f"def f{n}(x): return x*{n}\n" for n in range(60)) + "```"
    messages = [user(file), assistant("Ok."), *task_after(8)]
    room = total(messages[-3:]) + 300
    done, _ = run(replace(squeezed(messages), budget=room, enough=room))
    first = text_of(done.messages[0])
    assert first.startswith("shop.py\n```\ndef f0")
    assert "left out here" in first
    assert done.after <= room
    assert flaws(done.messages) == []


def test_extracts_behind_one_another_become_one_where_there_is_no_room() -> None:
    done, _ = run(squeezed(task_after(8), worth=10_000.0), by=replace(BY, tokens=30))
    messages = list(done.messages)
    for task in range(3):
        messages += [assistant("Ready."), *task_after(4)[-3:]]
        messages[-3] = user(f"Task {task}: rename ETA-{task}0.")
        done, asked = run(squeezed(messages, worth=10_000.0), by=replace(BY, tokens=30))
        messages = list(done.messages)
        assert asked == []
        assert text_of(next(m for m in messages if is_summary(m))).count(marks.OPEN) == 1
        assert flaws(messages) == []


def test_a_summary_leaves_room_for_what_comes_next() -> None:
    messages = task_after(12)
    by = replace(BY, tokens=200)
    _, asked = run(replace(squeezed(messages), enough=total(messages[-3:]) + 240), by=by)
    assert [ask.max_tokens for ask in asked] == [120]
    _, asked = run(limited(messages, 0.9), by=by)
    assert [ask.max_tokens for ask in asked] == [200]


def test_no_model_is_asked_to_tell_much_in_next_to_nothing() -> None:
    done, asked = run(squeezed(task_after(12)), by=replace(BY, tokens=400))
    assert (asked, done.rungs[:1]) == ([], ("extract",))


# -- shapes of conversations that have no obvious answer


def test_one_message_alone_is_cut_in_its_middle_only_when_it_must_be() -> None:
    messages = [user("start " + "word " * 2000 + " end")]
    kept, _ = run(reduction_of(messages, 500), limit=1e9)
    assert kept.covered == 0
    cut, _ = run(reduction_of(messages, 500), limit=1000)
    content = cut.messages[0]["content"]
    assert cut.kind == "trimmed"
    assert cut.after <= 1000
    assert content.startswith("start word")
    assert content.endswith("word  end")
    assert "characters left out here" in content


def test_a_tool_result_larger_than_the_window_is_cut_before_the_question() -> None:
    messages = [user("Read it. " * 100), assistant(None, tool_calls=[call(0)]), tool(0, "x" * 40_000)]
    done, _ = run(reduction_of(messages, 500), limit=900)
    assert done.after <= 900
    assert done.messages[0] is messages[0]
    assert flaws(done.messages) == []


def test_what_can_not_be_made_to_fit_is_made_as_short_as_it_goes() -> None:
    messages = [user("a" * 9000), assistant("b" * 9000), user("c" * 9000)]
    done, _ = run(reduction_of(messages, 10), limit=20)
    assert done.after > 20, "the caller sees that it does not fit"
    assert done.after < done.before / 4
    assert flaws(done.messages) == []


def test_without_any_user_message_the_summary_is_the_user() -> None:
    messages = [assistant(f"Thought {n} " * 50) for n in range(10)]
    done, _ = run(reduction_of(messages, total(messages) * 0.5))
    assert done.messages[0]["role"] == "user"
    assert is_summary(done.messages[0])
    grown = [*done.messages, user("Hello? " * 200), assistant("Yes. " * 200), user("Go on")]
    again, _ = run(reduction_of(grown, total(grown) * 0.3))
    assert again.messages[0]["role"] == "user"


def test_a_greeting_before_the_first_question_stays() -> None:
    messages = [assistant("Hello, I am your assistant."), *chat(8)]
    done, _ = run(reduction_of(messages, total(messages) * 0.5))
    assert list(done.messages[:2]) == messages[:2]
    assert flaws(done.messages) == []


ODD: list[list[Message]] = [
    [{"role": "user"}],
    [{"role": "tool", "content": "x " * 500}],
    [{"role": "tool", "tool_call_id": "gone", "content": "x " * 500}, user("a"), assistant("b"), user("c " * 300)],
    [user("a"), tool(1, "x " * 500), tool(2, "y " * 500)],
    [user("a " * 300), user("b " * 300), user("c " * 300)],
    [user("a"), assistant("x " * 300, tool_calls=[call(1)]), user("never mind " * 100), assistant("ok " * 300), user("d")],
    [user("a"), {"role": "assistant", "content": None, "tool_calls": 5}, user("b " * 500)],
    [user("a"), {"role": "assistant", "content": {"odd": "x " * 900}}, user("b"), assistant("c"), user("d")],
    [user("a"), {"role": "assistant", "content": 7, "tool_calls": [None, {"function": None}]}, user("b " * 500)],
    [user("a"), {"role": "system", "content": "s " * 500}, assistant("b " * 300), user("c")],
    [{"role": "tool", "name": "f", "content": "x " * 900}, user("a"), assistant("b"), user("c")],
    [user("a"), {"role": "critic", "content": "x " * 900}, assistant("b"), user("c")],
    [user(marks.BRIDGE), assistant("b " * 900), user("c")],
    [user(f"{marks.OPEN} fooled you"), assistant("b " * 900), user("c"), assistant("d " * 300), user("e")],
]


@pytest.mark.parametrize("messages", ODD)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("replies", [[], ["", ""]])
def test_odd_histories_are_shortened_without_a_word_too_many(messages: list[Message], share: float, replies: list[str]) -> None:
    before = deepcopy(messages)
    for limit in (1e9, total(messages) * share):
        done, _ = run(reduction_of(messages, total(messages) * share), replies, limit=limit)
        assert messages == before
        assert_mapping(messages, done)
        assert done.covered == 0 or done.after < done.before
        users = [m for m in messages if m["role"] == "user"]
        assert not users or any(m["role"] == "user" for m in done.messages)


def test_a_first_message_that_reads_like_ours_is_still_the_users() -> None:
    messages = [user(marks.BRIDGE), *chat(6)[1:]]
    done, _ = run(reduction_of(messages, total(messages) * 0.5))
    assert done.messages[0] is messages[0]
