"""What an error teaches of a model, through HTTP: nothing that the client wrote or the request could not prove."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.fakes import FAKES, FakeBackend, FakeModel, GenericFake, OllamaFake, qa, summariser
from tests.histories import function
from tests.pipeline.test_counting import history, told
from tests.proxying import Proxy, running_proxy

WINDOW = 16_384
FALSE_WINDOW = "maximum context length is 1000 tokens"
NO_TOOLS = "m does not support tools"
NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
TOOL = function("look")
SHORT = [{"role": "user", "content": "hello"}]
LONG = history(21, 150)
"""More than 3,000 tokens: they would exceed a window of 1,000, not the one that there is."""


def of_vllm(text: str) -> dict[str, Any]:
    """A parameter of the wrong type, as pydantic repeats it in vLLM's error."""
    why = "Input should be a valid number, unable to parse string as a number"
    found = {"type": "float_parsing", "loc": ("body", "temperature"), "msg": why, "input": text}
    message = f"1 validation error:\n  {found}\n\n  POST /v1/chat/completions [{found}]"
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}


def provider_said(raw: dict[str, Any]) -> dict[str, Any]:
    """A provider's error, as JSON inside a string."""
    return {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps(raw)}}}


ECHOES: dict[str, Callable[[str], tuple[dict[str, Any], int, Any]]] = {
    "vllm": lambda text: ({"temperature": text}, 400, of_vllm(text)),
    "llamacpp": lambda text: (
        {"response_format": {"type": text}},
        400,
        {
            "error": {
                "code": 400,
                "type": "invalid_request_error",
                "message": f'response_format type must be one of "text" or "json_object", but got: {text}',
            }
        },
    ),
    "ollama": lambda text: (
        {"reasoning_effort": text},
        400,
        {
            "error": {
                "type": "invalid_request_error",
                "message": f'invalid reasoning value: \'{text}\' (must be "high", "medium", "low", "max", or "none")',
            }
        },
    ),
    "lmstudio": lambda text: ({"tool_choice": text}, 400, {"error": f"Invalid tool_choice: '{text}'. Supported: none, auto, required"}),
    "openrouter": lambda text: ({"temperature": text}, 400, provider_said(of_vllm(text))),
    "generic": lambda text: ({text: 1}, 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", text], "msg": "Extra inputs"}]}),
}  # fmt: skip
"""Limits of something else than the prompt."""


def chat(proxy: Proxy, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    return proxy.chat({"model": "m", "messages": messages, "max_tokens": 5, **fields})


def refuse(fake: FakeBackend, status: int, body: Any) -> None:
    """Answer every request with this from now on."""
    fake.fail_next(status, body, times=20)


def believed(proxy: Proxy) -> tuple[Any, Any]:
    known = told(proxy)
    return known["window"] and known["window"]["value"], known["tools"] and known["tools"]["value"]


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("text", [FALSE_WINDOW, NO_TOOLS, NO_PARSER])
@pytest.mark.parametrize("kind", sorted(ECHOES))
@pytest.mark.rows(16)
def test_what_an_error_repeats_teaches_nothing(kind: str, text: str, stream: bool, messages: list[dict[str, Any]]) -> None:
    fields, status, body = ECHOES[kind](text)
    with FAKES[kind]([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        chat(proxy, SHORT)
        before = believed(proxy)
        refuse(fake, status, body)
        sent = len(fake.chats())
        answer = chat(proxy, messages, stream=stream, tools=[TOOL], **fields)
        assert answer.status_code == status
        assert len(fake.chats()) == sent + 1
        assert believed(proxy) == before


def context_error(window: int) -> Any:
    text = f"This model's maximum context length is {window} tokens. However, your prompt is longer."
    return {"error": {"message": text, "code": "context_length_exceeded"}}


@pytest.mark.parametrize("kind", ["vllm", "llamacpp", "ollama", "lmstudio"])
def test_less_than_the_loaded_instance_reports_is_not_believed(kind: str) -> None:
    with FAKES[kind]([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        chat(proxy, SHORT)
        refuse(fake, 400, context_error(1000))
        assert chat(proxy, LONG).status_code == 400
        assert believed(proxy)[0] == WINDOW


def test_less_than_was_just_answered_holds_for_one_request_alone() -> None:
    """A router may have sent it to a smaller model, but what others get was answered a moment ago."""
    with GenericFake([FakeModel("m", WINDOW)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        chat(proxy, LONG)
        fake.fail_next(400, context_error(2048))
        assert chat(proxy, LONG).status_code == 200
        assert believed(proxy)[0] is None


def test_an_error_that_was_pasted_into_the_conversation_is_survived_and_teaches_nothing() -> None:
    pasted = [{"role": "user", "content": f"I get: {json.dumps(context_error(2048))}"}]
    messages = [*pasted, {"role": "assistant", "content": "I see."}, *LONG]
    with GenericFake([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        fake.fail_next(400, context_error(2048))
        assert chat(proxy, messages).status_code == 200
        assert believed(proxy)[0] is None


def test_a_refusal_of_tools_that_was_pasted_into_the_conversation_holds_for_it_alone() -> None:
    pasted = [{"role": "user", "content": f"It says: {NO_TOOLS}"}]
    with OllamaFake([FakeModel("m", WINDOW)], qa()) as fake, running_proxy(fake) as proxy:
        chat(proxy, SHORT)
        before = believed(proxy)
        fake.fail_next(400, {"error": {"message": NO_TOOLS}})
        assert chat(proxy, pasted, tools=[TOOL]).headers["x-spillway-tools"] == "emulated"
        assert believed(proxy) == before
