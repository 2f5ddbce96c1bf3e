from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.recall.dates import days_in, month_day, written_on
from proxy.recall.words import folded


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("On May 4th, I shared", [(None, "5-4")]),
        ("the 3rd of June 2024", [(date(2024, 6, 3), "6-3")]),
        ("am 3. März 2023", [(date(2023, 3, 3), "3-3")]),
        ("le 1er août", [(None, "8-1")]),
        ("2 de mayo de 2021", [(date(2021, 5, 2), "5-2")]),
        ("9 мая", [(None, "5-9")]),
        ("我在5月2日说过", [(None, "5-2")]),
        ("2023年5月2日", [(date(2023, 5, 2), "5-2")]),
        ("2023-05-03T10:00", [(date(2023, 5, 3), "5-3")]),
        ("29 February", [(None, "2-29")]),
        ("31 June 2020, 2023-02-30", []),
        ("may 5:30, market 5, in 3 marches", []),
    ],
)
def test_days_are_read_in_the_forms_people_use(text: str, found: list[Any]) -> None:
    assert list(days_in(folded(text))) == found


@pytest.mark.parametrize(
    ("message", "day"),
    [
        ({"content": "[2023-05-03 09:12] hi there, how are you"}, date(2023, 5, 3)),
        ({"content": "8 May 2023\nhey"}, date(2023, 5, 8)),
        ({"content": "(1:56 pm on 8 May, 2023) hey"}, date(2023, 5, 8)),
        ({"content": [{"type": "text", "text": "2023-05-03: hi"}]}, date(2023, 5, 3)),
        ({"content": "x", "day": "2023-04-27"}, date(2023, 4, 27)),
        ({"content": "x", "timestamp": 1_700_000_000}, date(2023, 11, 14)),
        ({"content": "x", "created_at": "2024-02-29T12:00:00+00:00"}, date(2024, 2, 29)),
        ({"content": "x", "tool_call_id": "2023-01-01"}, None),
        ({"content": "x", "id": 1_700_000_000, "count": True}, None),
        ({"content": "We met on May 3, 2023 at the market, and since then I think of it " * 2}, None),
        ({"content": "On May 3rd I was there"}, None),
        ({"content": None}, None),
    ],
)
def test_a_message_tells_its_day_in_a_field_or_where_it_begins(message: dict[str, Any], day: date | None) -> None:
    assert written_on({"role": "user", **message}) == day


@given(st.dates(date(1950, 1, 1), date(2090, 1, 1)))
def test_iso_days_are_read_back(day: date) -> None:
    assert list(days_in(f"on {day.isoformat()}.")) == [(day, month_day(day))]


@given(st.text(alphabet="0123456789-/. :maymärz年月日,", max_size=60))
def test_no_text_is_too_odd(text: str) -> None:
    list(days_in(folded(text)))
    written_on({"role": "user", "content": text, "at": text})
