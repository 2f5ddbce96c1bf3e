from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.history.volatile import lasting_digest, without_volatile

RULES = (
    "You are a careful assistant of the harbour office. You may read files, and must never delete the backup."
)
moments = st.integers(1_609_459_200, 2_145_916_800).map(
    lambda seconds: datetime.fromtimestamp(seconds + 0.25, UTC)
)
counts = st.integers(0, 2_000_000)

CLOCKS = {
    "iso": "Current time: %Y-%m-%dT%H:%M:%SZ",
    "fractions": "now %Y-%m-%d %H:%M:%S.%f+00:00",
    "date": "<env>\nToday's date: %m/%d/%Y\n</env>",
    "long": "Today is %A, %B %d, %Y. It is %I:%M %p UTC.",
    "mail": "%a, %d %b %Y %H:%M:%S +0000",
    "short": "The date is %d %b %Y, the time %H:%M.",
    "american": "As of %B %d, %Y at %I:%M:%S %p EST",
    "month": "It is %B %Y.",
    "german": "Heute ist der %d.%m.%Y, %H:%M Uhr.",
    "french": "Il est %Hh%M, le %d/%m/%Y.",
    "chinese": "现在是%Y年%m月%d日 %H:%M",
    "dashes": "CURRENT_DATE=%Y-%m-%d CURRENT_TIME=%H:%M:%S CURRENT_WEEKDAY=%A",
}


def system(*texts: str) -> str:
    return lasting_digest([{"role": "system", "content": text} for text in texts])


@pytest.mark.no_cover
@pytest.mark.parametrize("clock", CLOCKS)
@given(one=moments, other=moments)
def test_a_clock_changes_nothing(clock: str, one: datetime, other: datetime) -> None:
    told = CLOCKS[clock]
    first, second = one.strftime(told), other.strftime(told)
    for before, after in (("", f"\n{RULES}"), (f"{RULES}\n", ""), (f"{RULES} ", " Be brief.")):
        assert system(f"{before}{first}{after}") == system(f"{before}{second}{after}")
    assert system(first, RULES) == system(second, RULES)


def test_seconds_since_the_epoch_change_nothing() -> None:
    for form in ("{}", "ts={}", "{}.25", "{}123", "{}123456"):
        assert (
            len({system(f"{RULES} {form.format(now)}") for now in (1763784596, 1763784597, 1863784597)}) == 1
        )


@given(st.uuids(version=4), st.uuids(version=4))
def test_names_of_runs_change_nothing(one: UUID, other: UUID) -> None:
    for form in ("request {}", "Session: {}", "[{}]"):
        assert system(RULES + form.format(one)) == system(RULES + form.format(other))
        assert system(RULES + form.format(f"sess_1{one.hex}")) == system(
            RULES + form.format(f"sess_1{other.hex}")
        )


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "form",
    [
        *(
            "Turn {}",
            "step {} of 2000000",
            "Message #{}",
            "Tokens used: {}",
            "{} tokens left",
            "{:,} tokens remaining",
        ),
        *("{}% used", "{} / 2000000", "Iteration: {}", "{} minutes ago", "Battery: {}%", "uptime {}s"),
    ],
)
@given(one=counts, other=counts)
def test_counts_change_nothing(form: str, one: int, other: int) -> None:
    assert system(f"{RULES}\n{form.format(one)}") == system(f"{RULES}\n{form.format(other)}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("You must never delete the backup.", "You must delete the backup."),
        ("You serve customer 4711.", "You serve customer 4712."),
        ("Answer in at most 50 words.", "Answer in at most 500 words."),
        ("You may not do that; March on.", "You must not do that; March on."),
        ("Use python 3.11.", "Use python 3.12."),
        ("The secret is ALPHA.", "The secret is BETA."),
        ("Call 555 123.", "Call 555 124."),
        ("At 10:00 must", "At 10:00 may"),
        ("Account DE89 3704 0044", "Account DE89 3704 0045"),
        ("a", ""),
    ],
)
def test_whatever_else_is_said_tells_one_prompt_from_another(one: str, other: str) -> None:
    now = "It is 2026-11-22, 04:09:56."
    assert system(f"{now} {one}") != system(f"{now} {other}")


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", categories=("L", "Zs")), min_size=1, max_size=12),
        min_size=2,
        max_size=9,
    ),
    st.data(),
)
def test_any_word_that_is_changed_tells(words: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(words) - 1))
    changed = [*words[:at], f"q{words[at].strip()}xq", *words[at + 1 :]]
    assert system(" ".join(words)) != system(" ".join(changed))


def test_white_space_and_the_form_of_the_content_change_nothing() -> None:
    told = lasting_digest([{"role": "system", "content": [{"type": "text", "text": "a  b\n"}]}])
    assert told == lasting_digest([{"role": "developer", "content": [{"type": "text", "text": " a b"}]}])
    assert system("a  b\n c") == system(" a b \nc ")
    assert system() == ""
    assert system("a", "b") != system("a b")


def test_the_same_comes_out_for_what_was_stilled_already() -> None:
    for told in CLOCKS.values():
        once = without_volatile(datetime(2026, 11, 22, 4, 9, 56, tzinfo=UTC).strftime(told))
        assert without_volatile(once) == once


@pytest.mark.parametrize(
    "hostile",
    [
        "1,",
        "1 ",
        "12:",
        "1/1/",
        "a1-",
        "sess-",
        "may ",
        "step ",
        "0f",
        "20 may ",
        "tokens used 1",
        "周",
        "1年",
        "é1 ",
    ],
)
def test_it_takes_no_longer_per_character_for_hostile_text(hostile: str) -> None:
    def seconds(size: int) -> float:
        text = (hostile * size)[:size] + "x" * 3_000
        since = time.perf_counter()
        without_volatile(text)
        return time.perf_counter() - since

    assert min(seconds(32_000) for _ in range(3)) < 100 * (min(seconds(2_000) for _ in range(3)) + 0.001)


def test_a_very_long_prompt_lasts_as_it_is() -> None:
    now = [timedelta(seconds=n) + datetime(2026, 11, 22, tzinfo=UTC) for n in (0, 1)]
    text = "word " * 20_000
    assert len({system(f"{text}{each:%H:%M:%S}") for each in now}) == 2
