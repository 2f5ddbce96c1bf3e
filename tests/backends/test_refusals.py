from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.refusals import ToolRefusal, refuses_tools

OLLAMA = "registry.ollama.ai/library/gemma3:4b does not support tools"
OPENROUTER = (
    'No endpoints found that support tool use. Try disabling "question". To learn more about provider routing, '
    "visit: https://openrouter.ai/docs/guides/routing/provider-selection"
)
CHOICE = "No endpoints found that support the provided 'tool_choice' value. To learn more, visit: https://openrouter.ai"
VLLM = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


def encoded(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


REFUSALS: dict[str, tuple[int, object, str]] = {
    "Ollama": (400, error(OLLAMA, type="invalid_request_error", param=None, code=None), "Ollama"),
    "Ollama, native": (400, {"error": OLLAMA}, "Ollama"),
    "Ollama, quoted by a gateway": (
        500,
        error(f'Ollama API error: 400 Bad Request - {{"error":{{"message":"{OLLAMA}","type":"api_error"}}}}'),
        "Ollama",
    ),
    "Ollama, as a client shows it": (400, {"error": f"{OLLAMA} (status code: 400)"}, "Ollama"),
    "OpenRouter": (404, error(OPENROUTER, code=404), "OpenRouter"),
    "OpenRouter, in a body of status 200": (200, error(OPENROUTER, code=404), "OpenRouter"),
    "OpenRouter, behind a router": (
        404,
        error(f"Error from provider(404): {json.dumps(error(OPENROUTER, code=404))}", type="api_error"),
        "OpenRouter",
    ),
    "llama.cpp without jinja": (
        500,
        error("tools param requires --jinja flag", code=500, type="server_error"),
        "llama.cpp",
    ),
    "llama.cpp, old": (
        500,
        {"error": {"code": 500, "message": "Unsupported param: tools", "type": "server_error"}},
        "llama.cpp",
    ),
    "llama.cpp, not yet streamed": (500, error("Cannot use tools with stream"), "llama.cpp"),
    "vLLM": (400, error(VLLM, type="BadRequestError", param=None, code=400), "vLLM"),
    "vLLM, old shape": (400, {"object": "error", "message": VLLM, "type": "BadRequestError", "code": 400}, "vLLM"),
    "vLLM, required": (400, error('tool_choice="required" requires --tool-call-parser to be set'), "vLLM"),
    "vLLM, a named tool": (
        400,
        error('tool_choice=function "get_weather" requires --tool-call-parser to be set'),
        "vLLM",
    ),
    "vLLM, quoted by OpenRouter": (
        400,
        error("Provider returned error", code=400, metadata={"raw": json.dumps(error(VLLM))}),
        "vLLM",
    ),
    "DeepSeek": (400, error("deepseek-reasoner does not support Function Calling"), "DeepSeek"),
    "DeepInfra": (
        405,
        error("deepinfra error: Tool calling is not supported for model: NousResearch/Hermes-3-Llama-3.1-70B"),
        "Groq, DeepInfra or OpenAI",
    ),
    "Groq": (400, error("`tools` is not supported with this model"), "Groq, DeepInfra or OpenAI"),
    "OpenAI": (
        400,
        error("Unsupported parameter: 'tools' is not supported with this model.", param="tools"),
        "Groq, DeepInfra or OpenAI",
    ),
    "Bedrock": (400, {"message": "This model doesn't support tool use."}, "Bedrock"),
    "LiteLLM": (
        400,
        error(
            "litellm.UnsupportedParamsError: together_ai does not support parameters: ['tools'], for model=a/b",
            type="None",
            code="400",
        ),
        "LiteLLM",
    ),
    "LiteLLM, older": (
        400,
        error("ollama_chat does not support parameters: {'tools': [{'type': 'function'}]}, for model=x"),
        "LiteLLM",
    ),
    "no JSON at all": (400, f"Error: {OLLAMA}", "Ollama"),
}

OTHER_ERRORS: dict[str, tuple[int, object]] = {
    "invalid schema": (
        400,
        error("Invalid schema for function 'search': 'dict' is not valid under any of the given schemas"),
    ),
    "unknown tool": (400, error("Tool choice 'function look' not found in 'tools' parameter")),
    "kind of tool": (400, error("Invalid value: 'web'. Supported values are: 'function' for tools[0].type")),
    "tool_choice without tools": (400, error("When using `tool_choice`, `tools` must be set.")),
    "value of tool_choice": (400, error('tool_choice must be "auto", "none", "required" or a named tool')),
    "call without result": (
        400,
        error("An assistant message with 'tool_calls' must be followed by tool messages responding to each id"),
    ),
    "result without call": (
        400,
        error("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"),
    ),
    "broken arguments": (400, error("invalid tool call arguments")),
    "output that is no call": (500, error("Failed to parse tool call arguments as JSON", code=500)),
    "grammar and tools": (400, error("Cannot use custom grammar constraints with tools.")),
    "tools and a format": (400, error("This model does not support tools together with response_format")),
    "too many tools": (400, error("Invalid 'tools': array too long. Expected an array of at most 128")),
    "parallel calls": (400, error("parallel tool calling is not supported with this model")),
    "thinking": (400, error('"gemma3" does not support thinking; tools were given')),
    "images": (404, error("No endpoints found that support image input", code=404, tools=True)),
    "other parameters": (400, error("ollama does not support parameters: ['seed'], 'tools' is fine")),
    "no such model": (404, error("No endpoints found for function/model.", code=404)),
    "the key": (401, error(OLLAMA)),
    "money": (402, error(OPENROUTER)),
    "rate": (429, error(VLLM)),
    "rate, in a body of status 200": (200, error(OPENROUTER, code=429)),
    "an answer about it": (
        200,
        {"choices": [{"message": {"content": f'You see "error": {OLLAMA}'}, "finish_reason": "stop"}]},
    ),
    "what it repeats of the conversation": (
        422,
        {"detail": [{"loc": ["body", "tools"], "msg": "bad", "input": [{"role": "user", "content": OLLAMA}]}]},
    ),
    "nothing": (500, ""),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_of_tools_is_recognised(name: str) -> None:
    status, body, origin = REFUSALS[name]
    assert refuses_tools(status, encoded(body)) == ToolRefusal(origin)


@pytest.mark.parametrize("name", [name for name, case in REFUSALS.items() if isinstance(case[1], dict)])
def test_a_refusal_is_recognised_in_a_string_of_another_error(name: str) -> None:
    _, body, origin = REFUSALS[name]
    for wrapped in ({"error": json.dumps(body)}, error("Provider returned error", metadata={"raw": body})):
        assert refuses_tools(400, encoded(wrapped)) == ToolRefusal(origin)


@pytest.mark.parametrize("message", [OLLAMA, OPENROUTER, VLLM])
def test_a_refusal_is_recognised_in_the_data_of_a_frame(message: str) -> None:
    frames: list[dict[str, Any]] = [
        error(message),
        {"error": message},
        {"choices": [{"delta": {}, "finish_reason": "error"}], **error(message)},
    ]
    assert all(refuses_tools(200, encoded(frame)) for frame in frames)


@pytest.mark.parametrize("name", OTHER_ERRORS)
def test_other_errors_about_tools_are_not_taken_for_one(name: str) -> None:
    status, body = OTHER_ERRORS[name]
    assert refuses_tools(status, encoded(body)) is None


@pytest.mark.parametrize(
    ("message", "origin"), [(CHOICE, "OpenRouter"), ("Thinking mode does not support this tool_choice", "DeepSeek")]
)
def test_a_refused_tool_choice_says_nothing_of_the_tools(message: str, origin: str) -> None:
    assert refuses_tools(404, encoded(error(message))) == ToolRefusal(origin, choice_only=True)


@given(st.integers(0, 599), st.binary(max_size=200) | st.text(max_size=100).map(lambda text: encoded({"error": text})))
def test_any_bytes_get_a_verdict(status: int, body: bytes) -> None:
    assert refuses_tools(status, b'{"error": "tool"' + body) is None
