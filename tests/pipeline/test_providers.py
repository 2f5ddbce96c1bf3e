"""OpenRouter's providers of one model have windows of their own: a request gets that of those which it allows."""

from typing import Any

import pytest

from tests.fakes import FakeModel, OpenRouterFake, summariser, walk
from tests.fakes.model import Provider
from tests.proxying import running_proxy

PROVIDERS = (Provider("Small", 8192), Provider("Groq", 16384), Provider("Large", 131_072))
HISTORY = [
    {"role": role, "content": f"{role} {number}: " + "and so on, " * 100}
    for number in range(10)
    for role in ("user", "assistant")
] + [{"role": "user", "content": "go on"}]


@pytest.mark.parametrize(
    ("preferences", "window"),
    [
        ({}, 131_072),
        ({"provider": {"sort": "price"}}, 131_072),
        ({"provider": {"only": ["small"]}}, 8192),
        ({"provider": {"ignore": ["Large"]}}, 16384),
        ({"provider": {"order": ["small"]}}, 131_072),
        ({"provider": {"order": ["small"], "allow_fallbacks": False}}, 8192),
        ({"provider": {"only": ["small", "groq"], "order": ["small"]}}, 16384),
    ],
)
def test_the_window_is_the_largest_that_the_request_allows(preferences: dict[str, Any], window: int) -> None:
    model = FakeModel("maker/m", 131_072, providers=PROVIDERS)
    with OpenRouterFake([model], summariser(walk(last=3))) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "maker/m", "messages": HISTORY, **preferences})
        assert (answer.status_code, answer.headers["x-spillway-window"]) == (200, str(window))
        assert (fake.overflows, fake.cuts) == (0, 0)
        assert (fake.chats()[-1].json["messages"] == HISTORY) == (window > 8192)
