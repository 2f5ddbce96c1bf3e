from __future__ import annotations

from proxy.backends.profile import Continuation, Trust
from proxy.options import Options
from proxy.shortening.budget import ContextBudget

OPTIONS = Options(
    trigger=0.7,
    overrides=(
        ("qwen*", {"trigger": 0.6, "window": 8192, "tools": None, "continuation": "user_turn"}),
        ("*:70b", {"trigger": 0.65, "policy": "local", "tools": False}),
    ),
)


def test_a_model_without_overrides_has_the_options_as_they_are() -> None:
    assert OPTIONS.for_model("llama") is OPTIONS
    assert OPTIONS.profile_for("llama").window is None


def test_a_later_glob_wins_over_an_earlier_one() -> None:
    assert OPTIONS.for_model("qwen:7b").trigger == 0.6
    both = OPTIONS.for_model("qwen:70b")
    assert (both.trigger, both.policy, both.pause) == (0.65, "local", 0.9)


def test_globs_care_for_case() -> None:
    assert OPTIONS.for_model("Qwen").trigger == 0.7


def test_what_the_user_says_of_a_model_is_believed_most() -> None:
    profile = OPTIONS.profile_for("qwen:70b")
    assert profile.window is not None
    assert (profile.window.value, profile.window.trust) == (8192, Trust.USER)
    assert profile.tools is not None
    assert profile.tools.value is False
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.QUOTE
    assert profile.vision is None


def test_a_budget_has_the_fractions() -> None:
    assert OPTIONS.budget(1000) == ContextBudget(window=1000, trigger=0.7, target=0.5, pause=0.9)
