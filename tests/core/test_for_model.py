import httpx
import pytest

from proxy.app import upstreams
from proxy.backends.profile import Continuation, Trust, profile_from_settings
from proxy.compaction.budget import budget_for
from proxy.core.settings import BackendSetting, Settings
from proxy.shaping.shape import allows_tool

QWEN = {"trigger": 0.6, "window": 8192, "continuation": "user_turn"}
SETTINGS = Settings.model_validate(
    {"trigger": 0.7, "models": {"qwen*": QWEN, "*:70b": {"trigger": 0.65, "policy": "local", "tools": False}}}
)


def test_a_model_without_overrides_has_the_settings_as_they_are() -> None:
    assert SETTINGS.for_model("llama") is SETTINGS
    assert profile_from_settings(SETTINGS, "llama").window is None


def test_the_copy_for_a_model_is_made_once_and_of_the_same_class() -> None:
    copy = SETTINGS.for_model("qwen:7b")
    assert type(copy) is Settings
    assert SETTINGS.for_model("qwen:7b") is copy
    assert Settings(trigger=0.7).for_model("qwen:7b").trigger == 0.7


def test_a_later_glob_wins_over_an_earlier_one_and_globs_care_for_case() -> None:
    assert (SETTINGS.for_model("qwen:7b").trigger, SETTINGS.for_model("Qwen").trigger) == (0.6, 0.7)
    both = SETTINGS.for_model("qwen:70b")
    assert (both.trigger, both.policy, both.pause) == (0.65, "local", 0.9)


def test_single_limits_of_a_model_add_to_those_of_all() -> None:
    settings = Settings.model_validate(
        {"limits": {"lines": 9, "entries": 8}, "models": {"q*": {"limits": {"lines": 7}}, "*": {}}}
    )
    assert settings.for_model("q").limits == {"lines": 7, "entries": 8}


def test_what_the_user_says_of_a_model_is_believed_most() -> None:
    profile = profile_from_settings(SETTINGS, "qwen:70b")
    assert profile.window is not None
    assert (profile.window.value, profile.window.trust) == (8192, Trust.USER)
    assert profile.tools is not None
    assert profile.tools.value is False
    assert profile.continuation is not None
    assert profile.continuation.value is Continuation.QUOTE
    assert profile.vision is None


def test_models_that_settings_name_are_listed_with_the_setting() -> None:
    settings = Settings.model_validate({"default_model": "a", "summary_model": "b", "models": {"q": {"recall_model": "c"}}})
    assert settings.helpers == {("default_model", "a"), ("summary_model", "b"), ("recall_model", "c")}
    assert Settings(default_model="off").helpers == frozenset()


def test_tools_are_allowed_by_name_or_glob() -> None:
    assert allows_tool(Settings(), "anything")
    some = Settings(tools_allowed=("read", "web_*"))
    allowed = [allows_tool(some, name) for name in ("read", "web_search", "Read", "write")]
    assert allowed == [True, True, False, False]


def test_of_a_fraction_and_tokens_the_lower_one_counts() -> None:
    def points(window: int, **tokens: int) -> tuple[int, int]:
        budget = budget_for(Settings(**tokens), window)  # type: ignore[arg-type]
        return budget.goal, budget.due

    assert points(8192, trigger=16_000, target=9_000) == points(8192) == (4096, 6553)
    assert points(131_072, trigger=16_000, target=9_000) == (9_000, 16_000)
    # One alone: the target keeps its distance from the trigger, the trigger is as it was.
    assert points(131_072, trigger=16_000) == (10_000, 16_000)
    assert points(16_384, target=2_000) == (2_000, 13_107)
    assert points(32_768, trigger=24_000, target=20_000) == (16_384, 24_000)


def test_where_several_globs_match_the_target_is_below_the_trigger_and_that_at_most_the_pause() -> None:
    crossing = Settings.model_validate({"models": {"qwen*": {"target": 0.75}, "*8b": {"trigger": 0.6}}})
    both = budget_for(crossing.for_model("qwen3-8b"), 10_000)
    assert both.goal < both.due == 6_000
    assert crossing.for_model("qwen3-4b").target == 0.75
    late = Settings.model_validate({"models": {"qwen*": {"trigger": 0.88}, "*8b": {"pause": 0.82}}})
    budget = budget_for(late.for_model("qwen3-8b"), 10_000)
    assert budget.trigger == budget.pause == 0.82


@pytest.mark.parametrize(
    ("host", "model", "demands"),
    [
        ("api.deepseek.com", "deepseek-v4-pro", {"thoughts"}),
        ("api.moonshot.ai", "kimi-k2.6", {"thoughts"}),
        ("api.moonshot.cn", "moonshot-v1-8k", set()),
        ("generativelanguage.googleapis.com", "models/gemini-3-pro", {"signatures"}),
        ("generativelanguage.googleapis.com", "gemini-2.5-pro", set()),
        ("api.groq.com", "moonshotai/kimi-k2.6", set()),
        ("notdeepseek.com", "deepseek-v4-pro", set()),
    ],
)
def test_what_a_service_documents_is_known_beforehand(host: str, model: str, demands: set[str]) -> None:
    settings = Settings(models={})
    (upstream,) = upstreams(
        [BackendSetting(url=f"https://{host}")], settings, httpx.MockTransport(lambda _: httpx.Response(404))
    )
    assert upstream.prober.known(model).current().demands == demands
