"""What OpenAI's schema demands of a whole answer is put into it, and nothing else is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.chat.required import complete
from proxy.wire.jsontext import loads

FIELDS: tuple[dict[str, Any], dict[str, Any]] = {"logprobs": None}, {"refusal": None, "annotations": []}
said = st.text() | st.sampled_from(['"message":{', '\\"message": {}', '{"message":{}}', "\\", '"message'])
fields = st.dictionaries(
    st.sampled_from(["logprobs", "index", "x", "messages"]), said | st.none(), max_size=3
)
messages = st.dictionaries(
    st.sampled_from(["refusal", "annotations", "content", "role"]), said | st.none(), max_size=4
)
choices = st.builds(
    lambda before, message, after: {**before, "message": message, **after}, fields, messages, fields
)
forms = st.builds(
    lambda choices, more: {**more, "choices": choices, "z": 1}, st.lists(choices, max_size=3), fields
)
spellings = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@given(forms, spellings)
def test_what_is_missing_is_there_and_every_byte_that_came(
    form: dict[str, Any], spelling: dict[str, Any]
) -> None:
    raw = json.dumps(form, **spelling).encode("utf-8", "surrogatepass")
    filled = complete(raw, loads(raw))
    whole = loads(filled)
    for choice, came in zip(whole["choices"], form["choices"], strict=True):
        assert choice == {**FIELDS[0], **came, "message": {**FIELDS[1], **came["message"]}}
    assert {**whole, "choices": form["choices"]} == form
    rest = iter(filled)
    assert all(byte in rest for byte in raw), "what came is all there, in its order"
    assert complete(filled, whole) is filled, "and nothing is missing any more"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"message":{"a":1},"choices":[{"message":{"content":"x"}}]}',
        b'{"choices":[{"message":{"content":"x"},"message":{"content":"y"}}]}',
        b'{"choices":[{"message":null}]}',
        b'{"choices":[5]}',
        b'{"choices":null}',
        b'{"error":{}}',
        b'{"choices":[{"\\u006dessage":{"content":"x"}}],"note":{"message":{"a":1}}}',
        b'{"choices":[{"mes\\u0073ag\\u0065":{"content":"x"}}],"note":{"message" : {}}}',
    ],
)
def test_what_is_of_another_form_stays_as_it_came(raw: bytes) -> None:
    assert complete(raw, loads(raw)) is raw


def test_several_choices_each_get_what_they_lack() -> None:
    raw = b'{"choices":[{"logprobs":{},"message":{"refusal":"no"}},{"message":{ }},{"x":"message","message" : {"annotations":[1],"refusal":null}}]}'
    assert complete(raw, loads(raw)) == (
        b'{"choices":[{"logprobs":{},"message":{"annotations":[],"refusal":"no"}},'
        b'{"logprobs":null,"message":{ "refusal":null,"annotations":[]}},'
        b'{"x":"message","logprobs":null,"message" : {"annotations":[1],"refusal":null}}]}'
    )
