"""The published schemas of Responses, Messages and chat completions, as llm-comply checks them.

In front of a faithful fake whose model does all that is asked about, and in front of the real llama-server: what is checked is what Spillway makes of it.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from llm_comply import cli, runner
from llm_comply.config import ComplianceConfig
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests

from tests.engine.fixtures import StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import StartSpillway
from tests.engine.template import chat_template
from tests.fakes import LlamaCppFake, Reply, ToolCall
from tests.fakes.model import FakeModel, Question
from tests.proxying import running_proxy

pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver is deprecated:DeprecationWarning")  # llm-comply's own

FORMS = {"open-responses": 13, "anthropic": 9, "openai-chat": 9}
"""How many tests there are."""
THINKER = "claude-sonnet-4-deepseek-r1"
"""A name by which no test of reasoning is left out."""
PICTURES = ("image-input", "anth-image-input", "chat-image-input")
"""What a text model is not asked."""
NAMED: dict[str, Any] = {"default_model": "off"}
"""Some want a request refused that names no model."""
UNREPORTED = ("reasoning_tokens is 0", "'logprobs'", "'refusal'", "'annotations'")
"""What llama-server leaves out of chat completions, which pass as they came."""
LENIENT = "anth-error-handling"
"""Wants a request refused that bounds no answer."""

ORDER = 6
THOUGHT = r"<think>\nLet me see.\n</think>\n\n"
CALL = r"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"location\": \"Paris\"}}\n</tool_call>"
SCRIPTED = (
    chat_template(marks=ORDER, think=True)
    .replace("m.content + '<|im_end|>", f'("{CALL}" if tools else opening + m.content) + \'<|im_end|>')
    .replace(
        "{%- set ns.turn = ns.turn + 1 -%}",
        f"{{%- set ns.turn = ns.turn + 1 -%}}{{%- set opening = \"{THOUGHT}\" if 'your reasoning' in m.content else '' -%}}",
    )
)
"""The echo model says what the newest message says; under this template that is a call where there are tools, and a thought where one is asked for."""


def told(form: str, v1: str, model: str, without: Collection[str] = ()) -> dict[str, list[str]]:
    """What is wrong, by the tests that say so."""
    tests = get_tests(form)
    assert len(tests) == FORMS[form]
    schema = Path(cli.__file__).parent / "specs" / cli._SPEC_FILES.get(form, "openresponses.json")
    config = ComplianceConfig(base_url=v1, api_key="none", model=model, timeout=60)
    asked = [each for each in tests if each.id not in without]
    done = runner.TestRunner(config, asked, SpecLoader(str(schema))).run_all()
    found = {each.id: [*each.errors, *each.warnings] for each in done.results if each.id != LENIENT}
    return {name: odd for name, each in found.items() if (odd := [e for e in each if not any(u in e for u in UNREPORTED)])}


def brain(question: Question) -> Reply:
    if question.tools:
        return Reply(tool_calls=[ToolCall("get_weather", '{"location": "San Francisco"}')])
    if "your reasoning" not in str(question.messages[-1]):
        return Reply(text="Here it is.")
    usage = {"completion_tokens_details": {"reasoning_tokens": 6}}
    return Reply(reasoning="The user wants an answer.", text="Here it is.", usage=usage)


@pytest.mark.parametrize("form", FORMS)
def test_every_answer_is_as_its_schema_says(form: str) -> None:
    with LlamaCppFake([FakeModel(THINKER, vision=True)], brain=brain) as fake, running_proxy(fake, **NAMED) as proxy:
        assert told(form, f"{proxy.url}/v1", THINKER) == {}


@pytest.fixture
def thinker(engine: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A real engine whose model thinks and calls tools when it is asked to."""
    template = tmp_path_factory.getbasetemp() / "thinker.jinja"
    template.write_text(SCRIPTED, "utf-8")
    return engine(ModelSpec(mode="echo", order=ORDER, template=template), alias=THINKER)


@pytest.mark.engine
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.rows(1)
def test_of_the_real_engine_too(thinker: Engine, spillway: StartSpillway, form: str) -> None:
    assert told(form, spillway([thinker.url], **NAMED).v1, THINKER, without=PICTURES) == {}
