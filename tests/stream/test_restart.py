from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.stream.events import Finish, Pause, Reopened
from proxy.stream.seam import RestartFilter
from tests.stream.support import commands, ending, fed, one_answer, opening, read, said, sent, session, words
from tests.stream.test_seam import through
from tests.stream.test_session import CLOSE

STORY = (
    "The river rises in the hills north of the town, and for eleven miles it runs between meadows. Then it meets the "
    "old mill: three wheels, two of them broken since 1911; the third still turns. Nobody has ever asked the miller "
    "why he keeps it, and he would not say. On Sundays children come with bread for the ducks, though a board forbids "
    "it; the ducks can't read.\n\nFurther down the valley widens. A railway once crossed it on nine brick arches, of "
    "which seven stand. Bats live in the fourth. In wet springs the meadow under them becomes a lake for a week or "
    "two, and someone always rows across it to say that it was done.\n\nAt the bridge the water is slow and brown. "
    "There the story ends, because nobody knows who owns the land behind it."
)
SIZES = (1, 7, 1000)


def reworded(text: str, every: int = 9) -> str:
    said_words = text.split(" ")
    return " ".join(f"{word} really" if not n % every else word for n, word in enumerate(said_words, 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("before", ["", "Sure! Here it is:\n\n", " ", "**", "Of course. This is the whole answer:\n\n"])
def test_the_answer_in_other_words_is_recognised(before: str, size: int) -> None:
    for at in range(200, len(STORY), 50):
        again = before + reworded(STORY)
        seam = RestartFilter(STORY[:at])
        assert (through(seam, again, size), seam.restarted) == ("", True)


def test_so_is_a_short_one() -> None:
    head = STORY[:90]
    seam = RestartFilter(head)
    assert (through(seam, reworded(STORY, 8), 5), seam.restarted) == ("", True)


def test_an_answer_behind_a_thought_is_recognised_without_it() -> None:
    seam = RestartFilter(f"<think>\nWhat do I know of rivers?\n</think>\n\n{STORY[:400]}")
    assert (through(seam, reworded(STORY), 5), seam.restarted) == ("", True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("preamble", ["Sure, continuing:\n", "Continuing from where I left off: ", "I will go on …"])
def test_a_preamble_and_the_end_once_more_are_taken_out(preamble: str, size: int) -> None:
    for at in range(100, len(STORY) - 50, 37):
        head, rest = STORY[:at], STORY[at:]
        for overlap in (60, 95):
            again = head[-overlap:]
            cut = through(RestartFilter(head), preamble + again + rest, size)
            assert cut == rest or again.strip() != again


def test_a_refrain_is_no_new_beginning() -> None:
    seam = RestartFilter(STORY)
    verse = f"{STORY[:110]} So it went on for many years, until one day somebody dug a canal, and all of this was over."
    assert through(seam, f"{verse} {'Nothing of it is left. ' * 8}", 5) == f"{verse} {'Nothing of it is left. ' * 8}"
    assert not seam.restarted


VERSE = """'Twas grace that taught my heart to fear,
And grace my fears relieved;
How precious did that grace appear
The hour I first believed!

"""
CHORUS = """Amazing grace, how sweet the sound,
That saved a wretch like me!
I once was lost, but now am found,
Was blind, but now I see.
Then sing, my soul, and sing it loud, till every hill and vale,
And every ship upon the sea has heard the sailor's tale!

"""
LAST = """The Lord has promised good to me,
His word my hope secures;
He will my shield and portion be
As long as life endures.
"""


@pytest.mark.parametrize("opening", ["", "Here it is:\n\n"])
@pytest.mark.parametrize("at", [0, 9, 60])
def test_the_chorus_of_a_song_may_come_again(opening: str, at: int) -> None:
    """Between verses, where the answer was paused at its second one."""
    rest = f"{CHORUS}{LAST}"
    seam = RestartFilter(f"{opening}{VERSE}{CHORUS}{LAST.replace('Lord', 'sea')}{rest[:at]}")
    assert (through(seam, rest[at:], 5), seam.restarted) == (rest[at:], False)


def test_little_is_held_back_of_what_is_not_like_it() -> None:
    seam = RestartFilter(STORY)
    text = "Quite another matter is the canal, dug by hand in four summers, of which every engineer here is proud. Yes."
    held = 0
    while seam.open:
        seam.feed(text[held])
        held += 1
    assert held <= 96


@given(st.text(max_size=300), st.text(max_size=300), st.integers(1, 50))
@example("a" * 300, "a" * 300, 5)
def test_what_comes_out_is_an_end_of_what_went_in(before: str, text: str, size: int) -> None:
    seam = RestartFilter(before)
    out = through(seam, text, size)
    assert text.endswith(out)
    assert seam.restarted <= (out == "")


# -- an answer of several attempts, whatever the model does

BEHAVIOURS: dict[str, Callable[[str, str], str]] = {
    "goes on": lambda head, rest: rest,
    "goes on without the space": lambda head, rest: rest.lstrip(),
    "tells all of it, and goes on": lambda head, rest: head + rest,
    "repeats its end": lambda head, rest: head[head.index(" ", len(head) - 90) + 1 :] + rest,
    "repeats its end behind a preamble": lambda head, rest: (
        "Sure, continuing:\n" + head[head.index(" ", len(head) - 90) + 1 :] + rest
    ),
    "tells it in other words": lambda head, rest: reworded(STORY),
    "says nothing": lambda head, rest: "",
}
ANEW = {"tells it in other words", "says nothing"}
WAYS = {
    "flags": lambda head: Reopened(100),
    "trailing": lambda head: Reopened(100, echo=head, quote=head[-300:], exact=False),
    "quote": lambda head: Reopened(100, quote=head[-300:], exact=False),
}


@given(
    st.integers(30, 110),
    st.lists(st.tuples(st.sampled_from(sorted(BEHAVIOURS)), st.sampled_from(sorted(WAYS))), min_size=1, max_size=4),
    st.lists(st.integers(1, 300), max_size=5),
)
def test_the_joined_text_is_there_exactly_once(first: int, steps: list[tuple[str, str]], sizes: list[int]) -> None:
    """Whatever it does, in whatever way it is asked, however the bytes are cut: then it goes on, and that is all."""
    of = session(replace(CLOSE, window=10**6, pause_point=100 + first, vain_resumes=99))
    data = opening() + b"".join(map(said, words(STORY))) + ending()
    out = commands(of, data, sizes)
    for how, way in [*steps, ("goes on", "flags")]:
        if isinstance(out[-1], Finish):
            break
        assert isinstance(out[-1], Pause)
        head = of.answer.text
        assert STORY.startswith(head)
        if how == "says nothing" and way == "quote":
            continue  # it was asked for more, and there is none
        out += fed(of, replace(WAYS[way](head), prompt_tokens=10))
        more = BEHAVIOURS[how](head, STORY[len(head) :])
        frames = b"".join(said(word, name="two") for word in words(more))
        out += commands(of, opening(name="two") + frames + ending(name="two"), sizes)
        if how in ANEW:
            assert isinstance(out[-1], Pause)
            assert of.answer.attempt.restarted
    if isinstance(out[-1], Finish):
        one_answer(read(sent(out)), STORY)
    else:
        assert STORY.startswith(read(sent(out) + b"").text)
