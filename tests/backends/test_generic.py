from __future__ import annotations

from typing import Any

import pytest

from proxy.backends.generic import Generic
from proxy.backends.profile import Continuation, Trust
from tests.backends.driver import play

BACKEND = Generic()


def listing(**fields: Any) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": "m", "object": "model"} | fields]}}


def test_is_detected_by_an_openai_list() -> None:
    assert play(BACKEND.detect("h"), {"/v1/models": {"object": "list", "data": []}})[0]


@pytest.mark.parametrize("reply", [{"data": []}, {"object": "list"}, [], "<html>", None])
def test_anything_else_is_not_a_model_list(reply: object) -> None:
    assert not play(BACKEND.detect("h"), {"/v1/models": reply})[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"context_length": 8192},
        {"context_window": 8192},
        {"max_context_length": 8192.0},
        {"max_model_len": "8192"},
        {"max_input_tokens": 8192, "context_length": 131072},
        {"meta": {"n_ctx": 8192, "n_ctx_train": 131072}},
    ],
)
def test_windows_that_are_seen_in_the_wild(fields: dict[str, Any]) -> None:
    profile, _ = play(BACKEND.profile("m"), listing(**fields))
    assert profile.window is not None
    assert (profile.window.value, profile.window.trust) == (8192, Trust.LISTED)


@pytest.mark.parametrize("told", [None, 0, -1, True, "many", 1e30, "1" * 5000, [4096]])
def test_a_figure_that_is_no_window_leaves_it_unknown(told: object) -> None:
    profile, _ = play(BACKEND.profile("m"), listing(context_length=told))
    assert profile.window is None
    assert not profile.provisional
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.QUOTE


def test_an_unlisted_model_has_no_window() -> None:
    assert play(BACKEND.profile("other"), listing(context_length=8192))[0].window is None


def test_models_are_listed_as_they_came() -> None:
    listed, _ = play(BACKEND.models(), listing(context_length=8192))
    assert [(one.id, one.raw["context_length"]) for one in listed] == [("m", 8192)]


def test_there_is_no_counting() -> None:
    assert play(BACKEND.count({"model": "m", "messages": []}), {}) == (None, [])
