"""What OpenAI's schema demands of a whole answer is put into it, and nothing else is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.jsontext import loads
from proxy.dialects.chat import ChatReader, ChatWriter

FIELDS: tuple[dict[str, Any], dict[str, Any]] = {"logprobs": None}, {"refusal": None, "annotations": []}
said = st.text() | st.sampled_from(['"message":{', "\\", '"message'])
fields = st.dictionaries(st.sampled_from(["logprobs", "index", "x", "messages"]), said | st.none(), max_size=3)
messages = st.dictionaries(st.sampled_from(["refusal", "annotations", "content", "role"]), said | st.none(), max_size=4)
choices = st.builds(lambda before, message, after: {**before, "message": message, **after}, fields, messages, fields)
forms = st.builds(lambda choices, more: {**more, "choices": choices, "z": 1}, st.lists(choices, max_size=3), fields)


def complete(raw: bytes) -> bytes:
    whole = ChatReader().read_body(raw)
    assert whole is not None
    return ChatWriter().filled(whole)


@given(forms)
def test_what_is_missing_is_there_with_all_that_came(form: dict[str, Any]) -> None:
    raw = json.dumps(form).encode("utf-8", "surrogatepass")
    filled = complete(raw)
    whole = loads(filled)
    for choice, came in zip(whole["choices"], form["choices"], strict=True):
        assert choice == {**FIELDS[0], **came, "message": {**FIELDS[1], **came["message"]}}
    assert {**whole, "choices": form["choices"]} == form
    assert complete(filled) is filled, "and nothing is missing any more"


@pytest.mark.parametrize(
    "raw", [b'{"choices":[{"message":null}]}', b'{"choices":[5]}', b'{"choices":null}', b'{"error":{}}']
)
def test_what_is_of_another_form_stays_as_it_came(raw: bytes) -> None:
    assert complete(raw) is raw
