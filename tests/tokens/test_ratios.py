import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.ratios import EMPTY, FIRST, MESSAGES, SCRIPTS, SIZE, TOOLS, Ratios, Vector, by_script

ASCII, DIGITS, LATIN, CYRILLIC, ARABIC, INDIC, MARKS, HAN, HANGUL, EMOJI, INDENT = range(SCRIPTS)


def vector(**counts: float) -> Vector:
    names = {"ascii": ASCII, "digits": DIGITS, "han": HAN, "messages": MESSAGES, "first": FIRST, "tools": TOOLS}
    x = [*EMPTY]
    for name, count in counts.items():
        x[names[name]] = count
    return tuple(x)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("plain words, and code()", ASCII), ("31415 9265", DIGITS), ("éèüß", LATIN), ("слова", CYRILLIC), ("λέξη", CYRILLIC),
        ("كلمات", ARABIC), ("शब्द", INDIC), ("คำ", INDIC), ("“”—…", MARKS), ("漢字かな", HAN), ("단어", HANGUL), ("😀", EMOJI), ("        x", INDENT),
    ],
)  # fmt: skip
def test_tokens_are_those_of_the_script_that_a_text_is_written_in(text: str, script: int) -> None:
    shares = by_script(text, 2)
    assert max(range(SCRIPTS), key=shares.__getitem__) == script


@given(st.text(), st.integers(0, 10_000))
def test_shares_add_up(text: str, tokens: int) -> None:
    shares = by_script(text, tokens)
    assert len(shares) == SCRIPTS
    assert min(shares) >= -1e-6
    assert sum(shares) == pytest.approx(tokens)


def test_learns_a_ratio_for_each_script_and_the_template() -> None:
    ratios, rng = Ratios(), random.Random(1)
    for _ in range(300):
        latin, digits, han, messages = (rng.randint(0, 500) for _ in range(4))
        x = vector(ascii=latin, digits=digits, han=han, messages=1 + messages // 50, first=1)
        ratios.learn(x, 1.1 * latin + 2.5 * digits + 0.6 * han + 4 * (1 + messages // 50) + 12)
    assert ratios.predict(vector(ascii=1000)) == pytest.approx(1100, rel=0.02)
    assert ratios.predict(vector(digits=1000)) == pytest.approx(2500, rel=0.03)
    assert ratios.predict(vector(han=1000)) == pytest.approx(600, rel=0.03)


def test_a_script_that_was_not_seen_stays_as_it_was() -> None:
    ratios = Ratios()
    for _ in range(20):
        ratios.learn(vector(han=1000, messages=2, first=1), 700)
    assert ratios.predict(vector(ascii=1000)) == 1000


def test_the_margin_narrows_with_reports_and_covers_what_may_be_left_out() -> None:
    ratios, x = Ratios(), vector(ascii=1000, messages=5, first=1)
    before = ratios.margin(x)
    for _ in range(10):
        ratios.learn(x, 1100)
    assert before > 250
    assert 20 < ratios.margin(x) < 100
    tools = vector(tools=1000, first=1)
    assert ratios.predict(tools) - ratios.margin(tools) < 50


@pytest.mark.parametrize("tokens", [80, 110, 130])
def test_one_small_report_does_not_settle_the_ratio_of_an_unknown_model(tokens: int) -> None:
    ratios = Ratios()
    ratios.learn(vector(ascii=100), tokens)
    long = vector(ascii=6000)
    assert ratios.predict(long) + ratios.margin(long) >= 6000 >= ratios.predict(long) - ratios.margin(long)


COUNTS = st.lists(st.integers(-1000, 10**5), min_size=SIZE, max_size=SIZE)


@given(st.lists(st.tuples(COUNTS, st.integers(-100, 10**6) | st.floats(0, 2)), max_size=30), st.booleans())
def test_no_report_breaks_the_weights(reports: list[tuple[list[int], float]], exact: bool) -> None:
    ratios = Ratios(doubt=not exact)
    for x, tokens in reports:
        ratios.learn(tuple(x), tokens)
    assert min(ratios.weights) >= 0
    assert min(ratios.weights[:SCRIPTS]) >= 0.2
    assert min(ratios.variances) >= 0
    Ratios().restore(ratios.weights, ratios.variances, ratios.noise)


@pytest.mark.parametrize("values", [[], [1.0], [float("nan")] * SIZE, [None] * SIZE])
def test_refuses_weights_of_another_shape(values: list[float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Ratios().restore(values, [1.0] * SIZE, 0.1)


@pytest.mark.parametrize("tokens", [-5, 0, 1e-200, 0.5])
def test_a_report_of_nothing_new_teaches_nothing(tokens: float) -> None:
    ratios = Ratios()
    ratios.learn(vector(ascii=3, messages=1), tokens)
    assert (ratios.weights, ratios.noise) == (Ratios().weights, Ratios().noise)
