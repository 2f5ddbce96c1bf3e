"""Requests for chat completions as clients make them, well and badly: strategies over messages, tools, parts and options."""

from typing import Any

from hypothesis import strategies as st

Json = Any

WORDS = ("alpha", "beta", "path/to/file.py", "42", "größe", "字", "😀", "\u2028", "never", "'quoted'")
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
)
long_texts = st.tuples(st.sampled_from(WORDS), st.sampled_from([40, 200, 900])).map(lambda t: f"{t[0]} " * t[1])
names = st.sampled_from(["read", "write_file", "search", "a", "x" * 64])
numbers = st.one_of(st.integers(-5, 5), st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30, -(2**63), 1e308, 0.5, -0.0]))
junk: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
schemas: st.SearchStrategy[Json] = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {}, {"enum": [1, "a"]}, {"$ref": "#"}]),
    lambda inner: st.one_of(
        st.dictionaries(names, inner, max_size=3).map(lambda p: {"type": "object", "properties": p}),
        inner.map(lambda item: {"type": "array", "items": item}),
        st.lists(inner, min_size=1, max_size=2).map(lambda each: {"anyOf": each}),
    ),
    max_leaves=6,
)
unknown = st.dictionaries(st.sampled_from(["x_unknown", "metadata_", "cache_control"]), junk, max_size=1)


@st.composite
def parts(draw: st.DrawFn) -> Json:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        return [{"type": "text", "text": draw(texts)}, picture]
    if kind == 1:
        return [{"type": "text", "text": each} for each in draw(st.lists(texts, min_size=1, max_size=3))]
    return draw(long_texts if kind == 2 else texts)


@st.composite
def tool(draw: st.DrawFn) -> Json:
    function = {"name": draw(names), "parameters": draw(schemas), **draw(unknown)}
    if draw(st.booleans()):
        function["description"] = draw(texts)
    return {"type": "function", "function": function}


@st.composite
def called(draw: st.DrawFn, number: int) -> list[Json]:
    """A batch of calls and its results: whole, without some, in another order, twice."""
    size = draw(st.integers(1, 3))
    calls = [
        {
            "id": f"call_{number}_{at}",
            "type": "function",
            "function": {"name": draw(names), "arguments": draw(st.sampled_from(["{}", '{"a": 1}', "", "{", "null"]))},
        }
        for at in range(size)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": draw(parts())} for call in calls]
    fate = draw(st.sampled_from(["whole", "whole", "lost", "reversed", "doubled", "orphans", "uncalled"]))
    shown = {
        "lost": results[1:],
        "reversed": results[::-1],
        "doubled": [*results, results[0]],
        "orphans": [{**each, "tool_call_id": f"lost_{number}"} for each in results],
    }.get(fate, results)
    asking = {"role": "assistant", "content": draw(st.none() | texts), "tool_calls": calls}
    return shown if fate == "uncalled" else [asking, *shown]


@st.composite
def histories(draw: st.DrawFn) -> list[Json]:
    """Messages, well typed; the last of the user's is marked, so that it can be found again."""
    messages: list[Json] = []
    if draw(st.booleans()):
        role = draw(st.sampled_from(["system", "developer"]))
        messages.append({"role": role, "content": draw(texts)})
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.integers(0, 6))
        if kind <= 2:
            messages.append({"role": "user", "content": draw(parts()), **draw(unknown)})
        elif kind <= 4:
            messages.append({"role": "assistant", "content": draw(long_texts | texts), **draw(unknown)})
        elif kind == 5:
            messages += draw(called(number))
        else:
            messages.append({"role": "system", "content": draw(texts)})
    messages.append({"role": "user", "content": f"{draw(texts)} the-newest-question {draw(texts)}"})
    if draw(st.integers(0, 3)) == 0:
        messages += draw(called(99))
    return messages


def _options() -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2), "max_tokens": st.integers(1, 64), "max_completion_tokens": st.integers(1, 64),
            "stop": texts.filter(bool) | st.lists(texts.filter(bool), max_size=2), "n": st.just(1),
            "stream_options": st.just({"include_usage": True}), "response_format": st.just({"type": "text"}),
            "tool_choice": st.sampled_from(["auto", "none"]), "seed": st.integers(0, 2**31), "x_unknown": junk,
        },
    )  # fmt: skip


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Json]:
    """A request that is well typed, however odd its history."""
    body = {"model": "m", "messages": draw(histories()), "stream": draw(st.booleans()), **draw(_options())}
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(tool(), min_size=1, max_size=3))
    return body
