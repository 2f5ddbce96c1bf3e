import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.history import sealed
from proxy.core.history.sealed import KEY_BYTES, is_sealed, opened, seal
from proxy.core.jsontext import dumps

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(VALUES, st.text(st.characters(codec="utf-8")))
def test_a_value_comes_back_to_its_owner(value: Any, owner: str) -> None:
    blob = seal(KEY, owner, value)
    assert is_sealed(blob)
    assert opened([OTHER, KEY], owner, blob) == value
    assert blob == seal(KEY, owner, value)


def test_it_opens_with_no_other_key_and_for_nobody_else() -> None:
    blob = seal(KEY, "me", ["secret"])
    for keys, owner in (([OTHER], "me"), ([KEY], "you"), ([], "me")):
        assert opened(keys, owner, blob) is None
    assert opened([KEY], "a3:bcd", seal(KEY, "a", "bcd")) is None


@given(st.data())
def test_no_character_of_it_can_be_changed(data: st.DataObject) -> None:
    blob = seal(KEY, "me", {"messages": ["one", "two"]})
    at = data.draw(st.integers(0, len(blob) - 1))
    put = data.draw(st.characters(codec="ascii").filter(lambda new: new != blob[at]))
    changed = blob[:at] + put + blob[at + 1 :]
    assert opened([KEY], "me", changed) in (None, {"messages": ["one", "two"]})
    # Base64 leaves some bits of the last character unused: only what means the same bytes may pass.
    if opened([KEY], "me", changed) is not None:
        assert urlsafe_b64decode(changed[5:]) == urlsafe_b64decode(blob[5:])


@given(st.text() | st.none() | st.integers() | st.binary().map(lambda raw: sealed._MARK + urlsafe_b64encode(raw).decode()))
def test_anything_else_is_nothing(text: Any) -> None:
    assert opened([KEY], "me", text) is None


def test_what_is_too_large_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "LARGEST", 1000)
    assert opened([KEY], "me", seal(KEY, "me", "x" * 5000)) is None
    assert opened([KEY], "me", seal(KEY, "me", "x" * 500)) == "x" * 500


def test_what_others_packed_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is recognised by its MAC alone."""

    def unpack(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(zlib, "decompressobj", unpack)
    bomb = sealed._MARK + urlsafe_b64encode(b"\0" * 32 + zlib.compress(dumps("x" * 10_000))).decode()
    assert opened([KEY], "me", bomb) is None
