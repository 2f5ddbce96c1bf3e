import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stream.seam import EchoFilter, OverlapFilter, Seam, SpacedFilter
from proxy.stream.thinking import Filter

pytestmark = pytest.mark.rows(2)

PROSE = (
    "The river rises in the hills north of the town, and for eleven miles it runs between meadows.\n\n"
    "Then it meets the old mill: three wheels, two of them broken since 1911; the third still turns.\n"
    "```python\ndef wheel(n):\n    return n * 3\n```\nSo much for „water“ — 水車 — and 😀 smiles."
)
REPETITIVE = {
    "equal lines": "- nothing to report today\n" * 30,
    "long equal lines": ("All work and no play makes Jack a dull boy, " * 5 + "says Jack.\n") * 12,
    "table": "".join(f"| {n // 4} | yes | yes | yes |\n" for n in range(40)),
    "zeros": "[" + "0, 0, 0, 0, 0, 0, 0, 0,\n " * 20,
    "one word": "ha " * 200,
    "one letter": "a" * 500,
    "braces": "".join(" " * (4 * n) + "}\n" for n in range(12, 0, -1)) * 3,
}
SIZES = (1, 3, 17, 1000)


def through(seam: Seam | Filter, text: str, size: int) -> str:
    out = "".join(seam.feed(text[at : at + size]) for at in range(0, len(text), size))
    return out + seam.flush()


# -- echo


@pytest.mark.parametrize("size", SIZES)
def test_a_repeated_beginning_is_taken_out_at_every_split(size: int) -> None:
    for at in range(1, len(PROSE)):
        before, rest = PROSE[:at], PROSE[at:]
        assert through(EchoFilter(before), before + rest, size) == rest
        assert through(EchoFilter(before), rest, size) == rest, "no backend has to repeat it"


@pytest.mark.parametrize("size", SIZES)
def test_white_space_that_a_template_trims_does_not_hide_the_copy(size: int) -> None:
    """The client has it already; the model begins with it or without."""
    for at in range(1, len(PROSE)):
        before = "  " + PROSE[:at]
        assert through(EchoFilter(before), before.strip() + PROSE[len(before.rstrip()) - 2 :], size) == PROSE[at:]


@pytest.mark.parametrize("size", SIZES)
def test_text_that_only_begins_like_the_echo_is_let_through(size: int) -> None:
    assert through(EchoFilter("one two three"), "one two four", size) == "one two four"
    assert through(EchoFilter("one two three"), "one two", size) == "one two"
    assert through(EchoFilter("one two three"), "\n one tw", size) == "\n one tw"
    assert through(EchoFilter("one\n\n"), "one\nmore", size) == "\nmore"


@given(st.text(max_size=8), st.text(max_size=30), st.integers(1, 5))
def test_an_echo_filter_takes_out_the_echo_or_nothing(echo: str, text: str, size: int) -> None:
    out = through(EchoFilter(echo), text, size)
    assert text.endswith(out)
    assert text[: len(text) - len(out)].strip() in {"", echo.strip()}
    assert through(EchoFilter(echo), echo + text, size).strip() in {text.strip(), (echo + text).strip()}


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_that_is_begun_anew_is_recognised(size: int) -> None:
    """A model that was asked to go on and does not says its answer again, sooner or later in other words."""
    for same in (160, 200, len(PROSE) - 20):
        seam = EchoFilter(PROSE)
        out = "".join(seam.feed(f"{PROSE[:same]}~ and so on"[at : at + size]) for at in range(0, same + 11, size))
        assert (out, seam.restarted) == ("", True)


def test_a_refrain_is_no_new_beginning() -> None:
    refrain = PROSE[:150]
    seam = EchoFilter(PROSE)
    assert through(seam, f"{refrain} Another verse.", 7) == f"{refrain} Another verse."
    assert not seam.restarted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", REPETITIVE)
def test_more_of_the_same_is_no_echo(name: str, size: int) -> None:
    text = REPETITIVE[name]
    for at in range(len(text) // 2, len(text), 7):
        seam = EchoFilter(text[:at])
        if len(text[:at].strip()) > size:
            assert through(seam, text[at:] + text, size) == text[at:] + text
            assert not seam.restarted


def test_an_echo_of_a_repetitive_text_comes_in_one_piece() -> None:
    text = REPETITIVE["equal lines"]
    seam = EchoFilter(text)
    assert seam.feed(text + "- nothing") == "- nothing"
    assert seam.feed(" to report") == " to report"


def test_an_empty_echo_filters_nothing() -> None:
    for echo in ("", " \n"):
        assert not EchoFilter(echo).open
        assert EchoFilter(echo).feed(" x") == " x"


def test_a_long_echo_in_small_pieces_is_read_in_linear_time() -> None:
    echo = "".join(f"word {n} " for n in range(20_000))
    assert through(EchoFilter(echo), echo + "end", 3) == "end"


# -- overlap


@pytest.mark.parametrize("size", SIZES)
def test_a_repeated_end_is_taken_out_at_every_split(size: int) -> None:
    for at in range(17, len(PROSE)):
        quote, rest = PROSE[max(0, at - 300) : at], PROSE[at:]
        for overlap in {16, 17, 40, len(quote)}:
            if overlap <= len(quote):
                seam = OverlapFilter(quote, PROSE[:at])
                assert through(seam, quote[-overlap:] + rest, size) == rest
        assert through(OverlapFilter(quote, PROSE[:at]), rest, size) == rest


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", REPETITIVE)
def test_a_text_that_repeats_itself_loses_nothing(name: str, size: int) -> None:
    """At every split behind its first two repetitions: before that there is no precedent."""
    text = REPETITIVE[name]
    for at in range(len(text) // 3, len(text)):
        seam = OverlapFilter(text[max(0, at - 300) : at], text[:at])
        assert through(seam, text[at:], size) == text[at:], f"split at {at}"


def test_a_phase_that_does_not_fit_shows_the_repetition() -> None:
    text = REPETITIVE["equal lines"][:310]
    quote = text[-300:]
    assert through(OverlapFilter(quote, text), quote + " day\n", 5) == " day\n"


def test_short_overlaps_are_no_evidence() -> None:
    assert through(OverlapFilter("I have a dream that one day"), "that one day this nation", 4) == "that one day this nation"
    assert not OverlapFilter("too short").open


@given(st.text(max_size=400), st.text(max_size=60), st.integers(1, 9))
def test_an_overlap_filter_takes_out_a_real_overlap_or_nothing(before: str, text: str, size: int) -> None:
    out = through(OverlapFilter(before), text, size)
    assert text.endswith(out)
    removed = text[: len(text) - len(out)]
    assert removed == "" or (len(removed) >= 16 and before.endswith(removed))


def test_text_is_held_back_only_while_it_may_be_a_repetition() -> None:
    seam = OverlapFilter("It was the best of times, it was the worst of times")
    assert seam.feed("the worst") == ""
    assert seam.feed(" thing") == "the worst thing"
    assert not seam.open
    assert seam.feed("the worst of times") == "the worst of times"


# -- space


def test_a_missing_space_is_put_in_before_a_word_only() -> None:
    assert through(SpacedFilter(" "), "word", 2) == " word"
    assert through(SpacedFilter("\n\n"), "Word", 2) == "\n\nWord"
    assert through(SpacedFilter(" "), " word", 2) == " word"
    assert through(SpacedFilter(" "), ", word", 2) == ", word"
    assert through(SpacedFilter(""), "word", 2) == "word"
    assert not SpacedFilter("").open


def test_the_space_comes_after_the_repetition() -> None:
    assert through(Seam(EchoFilter("one two"), SpacedFilter(" ")), "one twothree", 3) == " three"
    assert through(Seam(EchoFilter("one two"), SpacedFilter(" ")), "three", 3) == " three"


# -- in an answer: every split, every form, every way to read it
