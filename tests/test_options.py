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


def test_an_answer_is_capped_by_the_setting_then_by_the_policy() -> None:
    assert Options().answer_cap_for(8192) is None
    assert Options(answer_cap=700).answer_cap_for(None) == 700
    assert Options(answer_cap=0, policy="local").answer_cap_for(8192) is None
    assert Options(policy="local").answer_cap_for(None) == 1000
    assert Options(policy="local").answer_cap_for(8192) == 1000
    assert Options(policy="local").answer_cap_for(2048) == 512


def test_tools_are_allowed_by_name_or_glob() -> None:
    assert Options().allows_tool("anything")
    some = Options(tools_allowed=("read", "web_*"))
    assert [some.allows_tool(name) for name in ("read", "web_search", "Read", "write")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_system_prompt_is_a_matter_of_local_alone() -> None:
    assert Options(system_prompt="Be brief.").own_system_prompt is None
    assert Options(system_prompt="Be brief.", policy="local").own_system_prompt == "Be brief."


def test_of_a_fraction_and_tokens_the_lower_one_counts() -> None:
    def points(window: int, **tokens: int) -> tuple[int, float]:
        budget = Options(**tokens).budget(window)  # type: ignore[arg-type]
        return budget.goal, budget.due

    assert points(8192, trigger_tokens=16_000, target_tokens=9_000) == points(8192) == (4096, 6553.6)
    assert points(131_072, trigger_tokens=16_000, target_tokens=9_000) == (9_000, 16_000)
    # One alone: the target keeps its distance from the trigger, the trigger is as it was.
    assert points(131_072, trigger_tokens=16_000) == (10_000, 16_000)
    assert points(16_384, target_tokens=2_000) == (2_000, 0.8 * 16_384)
    assert points(32_768, trigger_tokens=24_000, target_tokens=20_000) == (16_384, 24_000)


def test_what_is_set_in_tokens_for_a_model_holds_for_that() -> None:
    options = Options(overrides=(("big*", {"trigger_tokens": 8_000, "strategy": "mask"}),))
    assert options.for_model("big-one").budget(100_000).due == 8_000
    assert options.for_model("big-one").shortening.asks is False
    assert options.for_model("small").budget(100_000).due == 80_000


def test_where_several_globs_match_the_target_is_below_the_trigger_and_that_at_most_the_pause() -> None:
    crossing = Options(overrides=(("qwen*", {"target": 0.75}), ("*8b", {"trigger": 0.6})))
    both = crossing.for_model("qwen3-8b").budget(10_000)
    assert both.goal < both.due == 6_000
    assert crossing.for_model("qwen3-4b").target == 0.75
    late = Options(overrides=(("qwen*", {"trigger": 0.88}), ("*8b", {"pause": 0.82})))
    assert late.for_model("qwen3-8b").trigger == late.for_model("qwen3-8b").pause == 0.82
