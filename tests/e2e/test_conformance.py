"""The published schemas of Responses, Messages and chat completions, as llm-comply checks them.

In front of a model that calls tools, sees pictures and thinks: what is checked is what Spillway makes of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from llm_comply import cli, runner
from llm_comply.config import ComplianceConfig
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests

from tests.fakes import LlamaCppFake, Reply, ToolCall
from tests.fakes.model import FakeModel, Question
from tests.proxying import running_proxy

FORMATS = {
    "open-responses": (13, "deepseek-r1"),
    "anthropic": (9, "claude-sonnet-4"),
    "openai-chat": (9, "deepseek-r1"),
}
"""How many tests there are, and a name by which those of reasoning are not left out."""

SERVED = {"chat-error-handling"}
"""It wants a request refused that names no model; the page that llama-server comes with sends such ones."""
AS_THEY_CAME = ["logprobs", "refusal", "annotations"]
"""Fields of chat completions that llama-server leaves out where they are null: such a body passes byte for byte."""


def brain(question: Question) -> Reply:
    if question.tools:
        return Reply(tool_calls=[ToolCall("get_weather", '{"location": "San Francisco"}')])
    if "your reasoning" not in str(question.messages[-1]):
        return Reply(text="Here it is.")
    usage = {"completion_tokens_details": {"reasoning_tokens": 6}}
    return Reply(reasoning="The user wants an answer.", text="Here it is.", usage=usage)


@pytest.mark.filterwarnings(
    "ignore:jsonschema.RefResolver is deprecated:DeprecationWarning"
)  # llm-comply's own
@pytest.mark.parametrize("form", FORMATS)
def test_every_answer_is_as_its_schema_says(form: str) -> None:
    tests = get_tests(form)
    schema = Path(cli.__file__).parent / "specs" / cli._SPEC_FILES.get(form, "openresponses.json")
    count, model = FORMATS[form]
    ignored = AS_THEY_CAME if form == "openai-chat" else None
    assert len(tests) == count
    with LlamaCppFake([FakeModel(model, vision=True)], brain=brain) as fake, running_proxy(fake) as proxy:
        config = ComplianceConfig(
            base_url=f"{proxy.url}/v1", api_key="none", model=model, timeout=60, ignore_errors=ignored
        )
        done = runner.TestRunner(config, tests, SpecLoader(str(schema))).run_all()
    told = {each.id: [*each.errors, *each.warnings] for each in done.results if each.id not in SERVED}
    assert {name: errors for name, errors in told.items() if errors} == {}
