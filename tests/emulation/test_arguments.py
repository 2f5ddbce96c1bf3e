from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.arguments import Arguments, Unreadable, read_arguments, read_parameters
from proxy.emulation.schema import Checker
from tests.emulation.test_tolerant import values

ANYTHING = Checker(None)


@pytest.mark.no_cover
@given(st.dictionaries(st.text(), values))
def test_arguments_that_are_json_stay_as_they_were_written(value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    assert read_arguments(f" {text}\n", ANYTHING) == Arguments(text)
    assert read_arguments(json.dumps(text), ANYTHING) == Arguments(text)


@pytest.mark.parametrize("text", ["", "  ", "null", '""', '"null"'])
def test_nothing_is_no_arguments(text: str) -> None:
    assert read_arguments(text, ANYTHING) == Arguments("{}")


def test_a_string_with_mistakes_is_mended_as_well() -> None:
    assert read_arguments('"{\\"a\\": 1,}"', ANYTHING) == Arguments('{"a":1}', ("trailing_commas",))


@pytest.mark.parametrize("text", ["[]", "1", "true", '"[1]"', "{} {}", "{'a': NaN}", '{"a": Infinity}', "["])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read_arguments(text, ANYTHING)


def test_depth_is_bounded() -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert read_arguments(nested(60), ANYTHING).text == nested(60)
    wide = json.dumps({"a": [{}] * 1000})
    assert read_arguments(wide, ANYTHING).text == wide
    for levels in (70, 100_000):
        with pytest.raises(Unreadable, match="deeper"):
            read_arguments(nested(levels), ANYTHING)


def test_large_numbers_keep_their_digits() -> None:
    text = '{"a": 123456789012345678901234567890, "b": [1,]}'
    assert json.loads(read_arguments(text, ANYTHING).text)["a"] == 123456789012345678901234567890


def test_parameters_are_read_by_their_schema() -> None:
    schema = {
        "properties": {
            "text": {"type": "string"},
            "either": {"type": ["string", "integer"]},
            "count": {"type": "integer"},
            "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        }
    }
    written = [("text", "\n12\n\n"), ("either", "5"), ("count", "\n 3 \n"), ("maybe", "None"), ("other", "1")]
    assert read_parameters(written, Checker(schema)) == Arguments(
        r'{"text":"12\n","either":"5","count":3,"maybe":null,"other":"1"}'
    )
    with pytest.raises(Unreadable, match="must be integer"):
        read_parameters([("count", "many")], Checker(schema))
