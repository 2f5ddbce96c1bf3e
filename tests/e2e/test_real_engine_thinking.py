"""How much the real engine is to think, as clients of three dialects tell it."""

from typing import Any, TypeAlias

import pytest

from tests.engine.fixtures import StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import SharedSpillway, StartSpillway
from tests.engine.template import chat_template

pytestmark = pytest.mark.engine

ORDER = 6
TEMPLATE = chat_template(marks=ORDER, think=True).replace(
    "m.content + '<|im_end|>",
    "m.content ~ ' effort ' ~ (reasoning_effort or 'none') ~ ' switch ' ~ enable_thinking ~ '<|im_end|>",
)
"""The echo model says what the newest message says, and with it what its template was told."""
LONG = "<think>\n" + " ".join(f"thought{n}" for n in range(40)) + "\n</think>\n\nFour."


@pytest.fixture
def told(engine: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    template = tmp_path_factory.getbasetemp() / "told.jinja"
    template.write_text(TEMPLATE, "utf-8")
    return engine(ModelSpec(mode="echo", order=ORDER, template=template), alias="told")


Form: TypeAlias = tuple[str, dict[str, Any]]
MESSAGES: Form = "/v1/messages", {"max_tokens": 300}
RESPONSES: Form = "/v1/responses", {}
OLLAMA: Form = "/api/chat", {"stream": False}


@pytest.mark.parametrize(
    ("form", "wish", "heard"),
    [
        (MESSAGES, {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}, "effort low switch True"),
        (MESSAGES, {"thinking": {"type": "disabled"}}, "effort none switch False"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 99}}, "effort none switch True"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "effort high switch True"),
        (RESPONSES, {"reasoning": {"effort": "none"}}, "effort none switch False"),
        (OLLAMA, {"think": "medium"}, "effort medium switch True"),
        (OLLAMA, {"think": False}, "effort none switch False"),
    ],
)
@pytest.mark.rows(2)
def test_its_template_hears_it(told: Engine, proxy_of: SharedSpillway, form: Form, wish: dict[str, Any], heard: str) -> None:
    answer = said(proxy_of(told).url, told, form, "Good morning.", wish)
    assert f"Good morning. {heard}" in answer


def said(url: str, engine: Engine, form: Form, text: str, wish: dict[str, Any]) -> str:
    path, fields = form
    question = [{"role": "user", "content": text}]
    asked = {"input" if form is RESPONSES else "messages": question}
    reply = Engine(url=url, model=engine.model, process=engine.process).post(
        path, {"model": engine.model, **asked, **fields, **wish}
    )
    assert reply.status_code == 200, reply.text
    return reply.text


def test_a_budget_ends_the_thought(told: Engine, proxy_of: SharedSpillway) -> None:
    url = proxy_of(told).url
    free = said(url, told, MESSAGES, LONG, {})
    bound = said(url, told, MESSAGES, LONG, {"thinking": {"type": "enabled", "budget_tokens": 8}})
    thoughts = [answer.partition('"type":"text"')[0].count("thought") for answer in (free, bound)]
    assert thoughts[0] >= 40
    assert thoughts[1] < 20


@pytest.mark.parametrize("form", [MESSAGES, RESPONSES, OLLAMA])
@pytest.mark.rows(1)
def test_the_users_bound_ends_it(told: Engine, spillway: StartSpillway, form: Form) -> None:
    """By the engine's own sampler, which then goes on with the answer."""
    answer = said(spillway([told.url], thinking_budget=8).url, told, form, LONG, {})
    assert 1 < answer.count("thought") < 30
