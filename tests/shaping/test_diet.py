"""Tools on a diet say less and mean the same."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.shaping.shape import diet

WORDS = {"description", "title", "examples", "example", "$comment"}


def function(parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields, "parameters": parameters}}


def test_descriptions_keep_their_first_sentence_and_nested_ones_go() -> None:
    tool = function(
        {
            "type": "object",
            "title": "Arguments",
            "properties": {
                "path": {"type": "string", "description": "Where to look. Absolute.", "examples": ["/tmp"]},
                "title": {"type": "string", "title": "Title", "default": "none", "example": "A book"},
                "filter": {
                    "description": "What to keep, e.g. files. More of it.",
                    "anyOf": [{"type": "string", "description": "A glob."}, {"type": "null"}],
                    "properties": {"description": {"enum": ["a", "b"], "description": "Nested."}},
                },
            },
            "required": ["path"],
        },
        description="Search for files. It is fast.\n\nArgs: many.",
        strict=True,
    )
    before = copy.deepcopy(tool)
    assert diet([tool]) == [
        function(
            {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Where to look."},
                    "title": {"type": "string", "default": "none"},
                    "filter": {
                        "description": "What to keep, e.g. files.",
                        "anyOf": [{"type": "string"}, {"type": "null"}],
                        "properties": {"description": {"enum": ["a", "b"]}},
                    },
                },
                "required": ["path"],
            },
            description="Search for files.",
            strict=True,
        )
    ]
    assert tool == before


@pytest.mark.parametrize(
    "tools",
    [
        [function({"type": "object", "properties": {"a": {"type": "string", "description": "Short."}}})],
        [],
        [None, 7, "tool", [], {}, {"type": "web_search"}],
        [function(None), function([]), function({"properties": []}), function({"properties": {"a": True}})],
        [function({"items": [True, {"type": "string"}], "anyOf": "odd", "$defs": 3, "required": None})],
        [{"type": "function", "function": None}],
    ],
)
def test_nothing_to_do_gives_the_same_object(tools: list[Any]) -> None:
    assert diet(tools) is tools


def test_references_in_circles_and_deep_schemas_are_safe() -> None:
    node = {"description": "A node.", "properties": {"next": {"$ref": "#/$defs/node"}}}
    tools = [function({"$ref": "#/$defs/node", "$defs": {"node": node}})]
    assert diet(tools) == [
        function({"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}})
    ]
    deep: dict[str, Any] = {"type": "string", "title": "deep"}
    for _ in range(3000):
        deep = {"items": deep, "title": "level"}
    assert "title" not in diet([function(deep)])[0]["function"]["parameters"]


names = st.sampled_from(["path", "title", "description", "examples", "items", "type"])
data = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["description", "type", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)
sentences = st.lists(st.sampled_from(["One.", "two", "e.g. ", "\n\n", "Three! ", "何。", " "]), max_size=6).map("".join)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "string", ["string", "null"]]), "description": sentences, "title": sentences,
            "examples": st.lists(data, max_size=2), "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2), "enum": st.lists(data, max_size=3), "items": inner,
            "anyOf": st.lists(inner, max_size=2), "default": data, "$defs": st.dictionaries(names, inner, max_size=1),
        },
    )  # fmt: skip


any_schema = st.recursive(schemas(st.booleans()), schemas, max_leaves=8)
any_tools = st.lists(
    st.one_of(
        st.builds(function, any_schema, description=sentences),
        st.builds(lambda schema: {"name": "g", "parameters": schema}, any_schema),
        data,
    ),
    max_size=3,
)


def meaning(schema: Any) -> Any:
    """A schema without the words that only explain, by a walk of its own."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if name in ("properties", "$defs"):
            kept[name] = {key: meaning(inner) for key, inner in value.items()}
        elif name == "anyOf":
            kept[name] = [meaning(inner) for inner in value]
        elif name == "items":
            kept[name] = meaning(value)
        elif name not in WORDS:
            kept[name] = value
    return kept


@given(any_schema, sentences)
def test_names_types_required_and_enums_survive(schema: Any, about: str) -> None:
    (slim,) = diet([function(schema, description=about)])
    parameters = slim["function"]["parameters"]
    assert meaning(parameters) == meaning(schema)
    assert list(parameters.get("properties", {})) == list(schema.get("properties", {}))


@given(any_tools)
def test_a_second_diet_changes_nothing(tools: list[Any]) -> None:
    before = copy.deepcopy(tools)
    slim = diet(tools)
    assert diet(slim) is slim
    assert tools == before
