"""Paths and names as the most generous server reads them."""

import re
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.api.access import ADMIN, AccessControl, host_name, normalized
from proxy.core.errors import BadRequest
from proxy.core.settings import BackendSetting, Settings


def access(**settings: Any) -> AccessControl:
    return AccessControl(Settings(backends=(BackendSetting(url="http://127.0.0.1:1"),), **settings))


names = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=8)
dots = st.sampled_from(["..", ".%2e", "%2E.", "%2e%2e", "%252e%252e", ".%252e", "..;x=1", "%2e%2e%3b", "..%20"])
slashes = st.sampled_from(["/", "//", "%2f", "%2F", "\\", "%5c", "%255C", "/./"])


@given(st.lists(names, max_size=4), st.integers(0, 4), dots, slashes, st.lists(names, max_size=3))
def test_two_dots_are_found_wherever_and_however(before: list[str], at: int, dot: str, slash: str, after: list[str]) -> None:
    parts = [quote(name) for name in before]
    parts.insert(min(at, len(parts)), dot)
    target = "/" + slash.join([*parts, *map(quote, after)])
    with pytest.raises(BadRequest):
        normalized(target.encode())
    with pytest.raises(BadRequest):
        normalized(target.encode() + b"?a=1")


@given(st.lists(names, min_size=1, max_size=5), st.binary(max_size=8).map(lambda raw: raw.replace(b"?", b"")))
def test_other_paths_are_read_in_lower_case(parts: list[str], query: bytes) -> None:
    target = "/" + "/".join(quote(part) for part in parts)
    assert normalized(target.encode() + b"?" + query) == "/" + "/".join(parts).lower()
    assert unquote(target).lower() == normalized(target.encode())


@given(st.binary(max_size=40))
def test_any_bytes_are_a_path_or_refused(raw: bytes) -> None:
    try:
        path = normalized(b"/" + raw)
    except BadRequest:
        return
    assert ".." not in path.split("/")
    assert "//" not in path


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@given(slash=slashes, prefix=st.lists(names, max_size=2))
@example(slash="/", prefix=["LOGS"])
def test_what_is_an_operators_is_found_under_every_prefix(method: str, slash: str, prefix: list[str]) -> None:
    own = {"POST": ["api", "pull"], "DELETE": ["api", "delete"]}[method]
    target = "/" + slash.join([*map(quote, prefix), *own])
    assert ADMIN.match(f"{method} {normalized(target.encode())}")
    seen = ADMIN.match("GET " + normalized(("/" + "/".join([*map(quote, prefix), "seen"])).encode()))
    assert bool(ADMIN.match(f"GET {normalized(target.encode())}")) == bool(seen)


@given(st.binary(max_size=30))
def test_any_bytes_are_a_name_or_none(raw: bytes) -> None:
    name = host_name(raw)
    if name is not None:
        assert re.fullmatch(r"[a-z0-9_.-]*|\[[0-9a-f.:]+\]", name)
        if access().known_hosts.match(name) and not name.endswith("localhost"):
            assert re.fullmatch(r"[0-9.]+|\[.+\]|host\.(docker|containers)\.internal", name)


@given(st.text(st.sampled_from("abz019.-"), min_size=1, max_size=20))
def test_no_name_is_known_for_what_it_begins_or_ends_with(text: str) -> None:
    known = access(allowed_hosts=("spillway", "*.example.com"))
    for name in (f"localhost.{text}a", f"spillway.{text}a", f"127.0.0.1.{text}a", f"{text}examplexcom"):
        assert not known.known_hosts.match(name)
