import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulation.offer import check


def checked(schema: Any, value: dict[str, Any]) -> tuple[dict[str, Any], bool, str]:
    fitted, wrong = check(schema, value)
    return fitted, fitted is not value, wrong


def one(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": {"type": kind}}, **more}


EXOTIC: list[Any] = [
    None,
    True,
    "object",
    [],
    {"type": "objekt"},
    {"type": 5},
    {"properties": []},
    {"required": "x"},
    {"required": [["x"], {"x": 1}, 1]},
    {"$ref": "#/nowhere"},
    {"$ref": "http://127.0.0.1:9/schema.json"},
    {"$ref": "other.json"},
    {"$schema": "http://127.0.0.1:9/own", "type": "object"},
    {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "http://127.0.0.1:9/x"}]},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"$dynamicRef": "#x"},
    {"properties": {"x": {"pattern": "(a+)+$"}}},
    {"patternProperties": {"(": {"type": "integer"}}, "additionalProperties": False},
    {"unevaluatedProperties": False, "patternProperties": {"(x+)+$": {}}},
]


@pytest.mark.parametrize("schema", EXOTIC, ids=repr)
def test_what_can_not_be_checked_is_accepted(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is fetched for it."""
    reached: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: reached.append(address))
    value = {"x": "a" * 40 + "b"}
    assert checked(schema, value) == (value, False, "")
    assert reached == []


@given(st.recursive(st.text() | st.integers(), lambda s: st.lists(s) | st.dictionaries(
    st.sampled_from(["type", "properties", "items", "required", "enum", "$ref", "anyOf", "x"]), s), max_leaves=10))  # fmt: skip
def test_no_schema_is_an_error(schema: Any) -> None:
    value, _, _ = checked(schema, {"x": "1", "y": [{}]})
    assert isinstance(value, dict)


def test_references_inside_one_another_are_followed() -> None:
    tree = {"type": "object", "properties": {"n": {"type": "integer"}, "in": {"$ref": "#"}}}
    value: dict[str, Any] = {"n": "1"}
    for _ in range(50):
        value = {"in": value}
    mended, repairs, wrong = checked(tree, value)
    assert (repairs, wrong) == (True, "")
    assert str(mended) == str(value).replace("'1'", "1")


@pytest.mark.parametrize(
    ("schema", "value", "fitted", "wrong"),
    [
        ({"$ref": "#/$defs/n", "minimum": 1}, "7", 7, ""),
        ({"allOf": [{"$ref": "#/$defs/n"}]}, "7", 7, ""),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}, "7", 7, ""),
        ({"oneOf": [{"properties": {"y": {"$ref": "#/$defs/n"}}}, {"type": "null"}]}, {"y": "7"}, {"y": 7}, ""),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "string"}]}, "7", "7", ""),
        ({"anyOf": [{"required": ["y"]}, {"required": ["z"]}]}, {}, {}, '"y" is missing in "x"'),
        ({"type": "integer", "enum": [1, 2]}, "2", 2, ""),
        ({"enum": ["a", 1]}, "b", "b", '"x" must be one of "a", 1'),
        ({"const": "a"}, "b", "b", '"x" must be one of "a"'),
        ({"additionalProperties": {"$ref": "#/$defs/n"}}, {"y": "7"}, {"y": 7}, ""),
        ({"additionalProperties": False}, {"y": 1, "z": 1}, {"y": 1, "z": 1}, '"y", "z" are not known in "x"'),
    ],
)
def test_keywords(schema: Any, value: Any, fitted: Any, wrong: str) -> None:
    whole = {"$defs": {"n": {"type": "integer"}}, "properties": {"x": schema}}
    assert checked(whole, {"x": value}) == ({"x": fitted}, fitted != value, wrong)


@pytest.mark.parametrize(
    ("kind", "value", "mended"),
    [
        *(("integer", "12", 12), ("integer", " -1 ", -1), ("number", "1.5", 1.5), ("boolean", "FALSE", False)),
        *(("string", 5, "5"), ("string", 1.5, "1.5")),
        ("object", "{'a': 1}", {"a": 1}),
        ("array", "[1]", [1]),
        ("array", "a", ["a"]),
        ("array", {"a": 1}, [{"a": 1}]),
        (["null", "integer"], "null", None),
    ],
)
def test_types_are_mended(kind: Any, value: Any, mended: Any) -> None:
    assert checked(one(kind), {"x": value, "y": value}) == ({"x": mended, "y": value}, True, "")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", "1.5"),
        ("integer", "0x10"),
        ("integer", "9" * 40),
        *(("integer", True), ("boolean", 1), ("boolean", "yes"), ("string", True), ("string", None), ("object", "{x")),
        ("array", "{}"),
    ],
)
def test_what_might_mean_something_else_is_told(kind: str, value: Any) -> None:
    same, repairs, wrong = checked(one(kind), {"x": value})
    assert (same, repairs) == ({"x": value}, False)
    assert wrong.startswith(f'"x" must be {kind}, not ')
    assert len(wrong) < 120


def test_what_is_wrong_is_told_in_few_words() -> None:
    schema = one("string", required=["x", "z"])
    wrong = checked(schema, {"x": [1] * 1000})[2]
    assert '"z" is missing' in wrong
    assert len(wrong) < 300
    inside = {"properties": {"x": {"required": ["a"]}}}
    assert checked(inside, {"x": {}})[2] == '"a" is missing in "x"'
