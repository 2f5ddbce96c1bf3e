from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ladder import Reduction
from proxy.compaction.middles import characters_cut, cut_middle, cut_oversize
from proxy.core.history.marks import INSTRUCTION
from proxy.core.history.turns import newest_user
from proxy.core.request import Message, text_of
from tests.histories import assistant, call, cost, flaws, histories, reduction_of, tool, user

LONG = " ".join(f"word{n}" for n in range(1500))


def session(*opening: Message) -> list[Message]:
    return [*opening, assistant(None, tool_calls=[call(1)]), tool(1, "read"), assistant("Done."), user("And now?")]


def cut(messages: Sequence[Message], share: float, most: float) -> Reduction:
    before = reduction_of(messages, sum(cost(messages)) * share)
    done = cut_oversize(before, most, words=True)
    assert flaws(done.messages) == flaws(messages)
    return done


def test_a_long_opening_loses_its_middle_as_far_as_needed() -> None:
    messages = session(user(f"A demonstration. {LONG} The end of it."), user("Now solve this one."))
    done = cut(messages, 0.5, 200)
    opening = done.messages[0]["content"]
    assert opening.startswith("A demonstration. word0 ")
    assert opening.endswith(" The end of it.")
    assert "characters left out here to fit the context window" in opening
    assert [a is b for a, b in zip(messages, done.messages, strict=True)] == [False] + [True] * 5
    assert done.budget * 0.8 < done.total <= done.budget
    assert cut_oversize(done, 200, words=True) is done
    least = cut(messages, 0.01, 200)
    assert 150 < least.costs[0] <= 200


def test_a_second_cut_says_what_is_missing_of_all() -> None:
    messages = session(user(LONG))
    once = cut(messages, 0.7, 100)
    twice = cut_oversize(replace(once, budget=once.total * 0.5), 100, words=True)
    shown, mark = twice.messages[0]["content"].split("\n[… ")
    number, rest = mark.split(" characters left out here to fit the context window …]\n")
    assert len(shown) + int(number) + len(rest) == len(LONG)


def test_what_is_short_what_is_newest_and_what_a_model_said_stay() -> None:
    messages = [user("Short."), assistant(LONG), user(LONG)]
    assert list(cut(messages, 0.1, 200).messages) == messages


def test_of_stale_system_messages_less_is_left_than_of_the_last_one() -> None:
    for stale in ({"role": "system", "content": LONG}, user(f"{INSTRUCTION}\n{LONG}")):
        messages = [user("Task one"), assistant("Done."), stale, user("Task two"), assistant("Done."), dict(stale)]
        messages += [user("Task three")]
        done = cut(messages, 0.01, 400)
        assert done.costs[2] <= 100 + 30
        assert 300 < done.costs[5] <= 400


@given(histories(), st.floats(0.05, 1.0), st.floats(0, 500))
def test_a_cut_keeps_the_invariants(messages: list[Message], share: float, most: float) -> None:
    done = cut(messages, share, most)
    newest = newest_user(messages)
    for index, (old, new, before, after) in enumerate(
        zip(messages, done.messages, cost(messages), done.costs, strict=True)
    ):
        assert old is new or (index != newest and after < before)
        assert {**old, "content": 0} == {**new, "content": 0}
    assert list(cut_oversize(done, most, words=True).messages) == list(done.messages) or done.total > done.budget


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
    done, after = cut_middle(message, size, size * share, cost, words=cut_words)
    assert after < size if done is not message else after == size
    assert (characters_cut(done) > 0) is (done is not message)
    assert words in text_of(done) or (cut_words and "z" * 400 not in text_of(done))
