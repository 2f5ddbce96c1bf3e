from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.overflow import EXAMINED, Overflow, is_error_frame, recognise

LLAMACPP = {
    "error": {
        "code": 400,
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 12013,
        "n_ctx": 8192,
        "message": "request (12013 tokens) exceeds the available context size (8192 tokens), try increasing it",
    }
}
OPENROUTER = (
    "This endpoint's maximum context length is 32768 tokens. However, you requested about 40110 tokens "
    "(36000 of text input, 110 of tool input, 4000 in the output). Please reduce the length of either one, "
    "or use the context-compression plugin to compress your prompt automatically."
)
VLLM = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, "
    "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)
OPENAI = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. "
    "Please reduce the length of the messages."
)


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


def provider_error(raw: object) -> dict[str, Any]:
    return error("Provider returned error", code=400, metadata={"raw": raw, "provider_name": "Chutes"})


CASES: dict[str, tuple[int, object, int | None, int | None]] = {
    "llama.cpp": (400, LLAMACPP, 8192, 12013),
    "llama.cpp, older": (
        500,
        error(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            code=500,
            type="server_error",
        ),
        None,
        None,
    ),
    "llama.cpp, type and fields alone": (
        400,
        {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096, "message": "no"}},
        4096,
        5000,
    ),
    "llama.cpp, shared cache full": (
        500,
        {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
        None,
        None,
    ),
    "llama.cpp, shared cache full, in a stream": (
        200,
        {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
        None,
        None,
    ),
    "llama-cpp-python, chat": (
        400,
        error(
            "This model's maximum context length is 1024 tokens. However, you requested 2018 tokens "
            "(2013 in the messages, 5 in the completion). Please reduce the length of the messages or completion.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
        1024,
        2013,
    ),
    "llama-cpp-python, completion": (
        400,
        error(
            "This model's maximum context length is 1024 tokens, however you requested 2005 tokens "
            "(2000 in your prompt; 5 for the completion)."
        ),
        1024,
        2000,
    ),
    "Ollama, native path": (400, {"error": json.dumps(LLAMACPP)}, 8192, 12013),
    "Ollama, native path on /v1": (
        400,
        error(json.dumps(LLAMACPP), type="invalid_request_error", param=None, code=None),
        8192,
        12013,
    ),
    "Ollama, rendered path": (
        400,
        error("the prompt is longer than the context length currently available to the model"),
        None,
        None,
    ),
    "Ollama, MLX": (
        500,
        {"error": "input length (5000 tokens) exceeds the model's maximum context length (4096 tokens)"},
        4096,
        5000,
    ),
    "Ollama, old": (400, {"error": "the input length exceeds the context length"}, None, None),
    "Ollama, cloud": (400, {"error": "prompt too long; exceeded max context length by 1234 tokens"}, None, None),
    "Ollama, cloud, short": (400, {"error": "prompt too long; exceeded context length"}, None, None),
    "LM Studio, stream": (
        200,
        error(
            "Input does not fit in context length. The input has 5000 tokens, but the context length only "
            "supports 4096 tokens."
        )
        | {"message": "Input does not fit in context length."},
        4096,
        5000,
    ),
    "LM Studio, error is a string": (
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length "
            "(n_keep: 5000>= n_ctx: 4096). Try to load the model with a larger context length."
        },
        4096,
        5000,
    ),
    "LM Studio, cannot truncate": (
        400,
        {"error": "Cannot truncate prompt with n_keep (5000) >= n_ctx (4096)"},
        4096,
        5000,
    ),
    "LM Studio, 0.3": (
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
            "with context length of only 4096 tokens, which is not enough."
        },
        4096,
        5000,
    ),
    "OpenRouter": (400, error(OPENROUTER, code=400, metadata={"provider_name": None}), 32768, 36110),
    "OpenRouter at status 200": (200, error(OPENROUTER, code=400), 32768, 36110),
    "OpenRouter, no answer asked for": (
        400,
        error(
            "This endpoint's maximum context length is 100 tokens. However, you requested about 120 tokens (120 of "
            "text input, 0 in the output)."
        ),
        100,
        120,
    ),
    "OpenRouter, older": (
        400,
        error(
            "This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens. Please "
            'reduce the length of either one, or use the "middle-out" transform to compress your prompt.'
        ),
        8192,
        None,
    ),
    "OpenRouter, only the type": (
        400,
        error("Too big", code=400, metadata={"error_type": "token_limit_exceeded"}),
        None,
        None,
    ),
    "OpenRouter, no endpoint is large enough": (
        404,
        error("No endpoints found", metadata={"constraint_filtered": [{"excluded_by": "context_length"}]}),
        None,
        None,
    ),
    "OpenRouter, provider error as JSON text": (400, provider_error(json.dumps(error(OPENAI))), 8192, 8545),
    "OpenRouter, provider error as text": (502, provider_error(VLLM), 4096, None),
    "OpenRouter, provider error twice wrapped": (
        400,
        provider_error(json.dumps({"error": json.dumps(LLAMACPP)})),
        8192,
        12013,
    ),
    "OpenRouter, mid-stream": (
        200,
        {
            "id": "gen-1",
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            "error": {"code": 400, "message": OPENROUTER, "metadata": {"error_type": "context_length_exceeded"}},
        },
        32768,
        36110,
    ),
    "vLLM": (400, error(VLLM, type="BadRequestError", param="input_tokens", code=400), 4096, None),
    "vLLM, characters": (
        400,
        error(
            "This model's maximum context length is 4096 tokens. However, your prompt contains 90000 characters "
            "(more than 65536 characters, which is the upper bound for 4096 input tokens).",
            param="input_text",
        ),
        4096,
        None,
    ),
    "vLLM, total": (
        400,
        error(
            "This model's maximum context length is 4096 tokens. However, you requested 512 output tokens and your "
            "prompt contains at least 3900 input tokens, for a total of at least 4412 tokens."
        ),
        4096,
        None,
    ),
    "vLLM, older": (
        400,
        error(
            "This model's maximum context length is 4096 tokens. However, you requested 5024 tokens (4000 in the "
            "messages, 1024 in the completion). Please reduce the length of the messages or completion."
        ),
        4096,
        4000,
    ),
    "vLLM 0.32, of the answer alone": (
        400,
        error(
            "max_tokens=6144 cannot be greater than max_model_len=2048. Please request fewer output tokens. "
            "(parameter=max_tokens, value=6144)",
            type="BadRequestError",
            param="max_tokens",
            code=400,
        ),
        2048,
        None,
    ),
    "vLLM, pictures": (
        400,
        error("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        4096,
        5000,
    ),
    "vLLM, answer too large": (
        400,
        error(
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 "
            "tokens and your request has 100 input tokens (5000 > 4096 - 100)."
        ),
        4096,
        100,
    ),
    "vLLM, oldest, flat": (400, {"object": "error", "message": OPENAI, "type": "BadRequestError"}, 8192, 8545),
    "vLLM fork with renamed keys, in a stream": (
        200,
        {"error_type": "BadRequestError", "error_message": VLLM},
        4096,
        None,
    ),
    "OpenAI": (400, error(OPENAI, code="context_length_exceeded", param="messages"), 8192, 8545),
    "OpenAI, the code alone": (400, error("no", code="context_length_exceeded"), None, None),
    "Anthropic": (400, error("prompt is too long: 213462 tokens > 200000 maximum"), 200000, 213462),
    "Anthropic, bytes": (413, {"type": "error", "error": {"type": "request_too_large"}}, None, None),
    "LiteLLM": (400, error("litellm.ContextWindowExceededError: no"), None, None),
    "Google": (
        400,
        error("The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."),
        1048575,
        1196265,
    ),
    "xAI": (
        400,
        error("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        131072,
        537812,
    ),
    "Together": (
        400,
        error("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        4096,
        5000,
    ),
    "Copilot": (400, error("prompt token count of 5000 exceeds the limit of 4096"), 4096, None),
    "Mistral": (400, error("Prompt too large for model with 32768 maximum context length"), 32768, None),
    "Moonshot": (400, error("Your request exceeded model token limit: 131072 (requested: 140000)"), 131072, 140000),
    "DashScope": (400, error("Range of input length should be [1, 30720]"), 30720, None),
    "configured size": (
        400,
        error("Prompt has 5,000 tokens, but the configured context size is 4,096 tokens"),
        4096,
        5000,
    ),
    "context window": (400, error("Your input exceeds the context window of this model"), None, None),
    "too many tokens": (422, {"detail": "Too many tokens"}, None, None),
    "token limit": (400, "token limit exceeded", None, None),
    "bytes": (413, "<html>Request size cannot exceed 1 MB</html>", None, None),
    "content length": (400, error("exceeds maximum allowed content length"), None, None),
    "413 without a word": (413, "", None, None),
    "z.ai, as a finish reason": (
        200,
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "model_context_window_exceeded"}]},
        None,
        None,
    ),
}


def body_of(content: object) -> bytes:
    return content.encode() if isinstance(content, str) else json.dumps(content).encode()


@pytest.mark.parametrize("name", CASES)
def test_every_wording_is_recognised_with_its_numbers(name: str) -> None:
    status, content, window, prompt = CASES[name]
    found = recognise(status, body_of(content))
    assert found is not None
    assert (found.window, found.prompt_tokens) == (window, prompt)
    assert found.origin


def test_escaped_characters_are_decoded_first() -> None:
    """Go writes `>` as an escape inside JSON."""
    found = recognise(400, b'{"error":"Cannot truncate prompt with n_keep (5000) \\u003e= n_ctx (4096)"}')
    assert found == Overflow(4096, 5000, "LM Studio")


@pytest.mark.parametrize("status", [401, 402, 403, 429])
def test_statuses_that_mean_something_else(status: int) -> None:
    assert recognise(status, json.dumps(LLAMACPP).encode()) is None


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (400, error("Rate limit reached: too many tokens per minute")),
        (400, error("Too many tokens per min (TPM)")),
        (413, error("Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000")),
        (400, error("You exceeded your current quota: token limit exceeded")),
        (400, error("ThrottlingException: Too many tokens, please wait")),
        (503, error("Loading model context", code=503, type="unavailable_error")),
        (529, error("Overloaded: too many tokens in flight")),
        (200, error("prompt is too long: 9 tokens > 8", code=429)),
        (200, error("prompt is too long: 9 tokens > 8", code="402")),
    ],
)
def test_words_that_mean_something_else(status: int, content: object) -> None:
    assert recognise(status, body_of(content)) is None


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (400, error("[json.exception.parse_error.101] unexpected token")),
        (400, error("Assistant response prefill is incompatible with enable_thinking.")),
        (400, error("Too big", code=400, metadata={"error_type": "max_tokens_exceeded"})),
        (400, error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens")),
        (400, error("Invalid 'tools': the array exceeds the limit of 128", param="max_tokens")),
        (404, error("The model `x` does not exist", type="NotFoundError", param="model")),
        (404, error("constraint_filtered")),
        (500, error("Internal Server Error: token expired")),
        (503, error("Loading model", code=503)),
        (200, {"error": None, "choices": [{"delta": {"content": "context size has been exceeded"}}]}),
        (200, {"choices": [{"message": {"content": 'an "error": maximum context length is 8192 tokens'}}]}),
        (200, "context_length_exceeded"),
        (200, [error("context_length_exceeded")]),
        (400, ""),
    ],
)
def test_other_answers_are_not_mistaken(status: int, content: object) -> None:
    assert recognise(status, body_of(content)) is None


@pytest.mark.parametrize(
    "content",
    [
        {"detail": [{"loc": ["body", "model"], "msg": "Field required", "input": {"messages": ["too many tokens"]}}]},
        error("[{'type': 'missing', 'loc': ('body',), 'input': {'messages': ['context_length_exceeded']}}]"),
        "loc: body, 'input': {'messages': ['context_length_exceeded']}",
    ],
)
def test_a_repeated_request_that_talks_of_overflows_is_not_one(content: object) -> None:
    assert recognise(422, body_of(content)) is None


def test_figures_that_are_no_window_are_not_believed() -> None:
    found = recognise(400, b'{"error": {"type": "exceed_context_size_error", "n_ctx": 0}}')
    assert found == Overflow(None, None, "llama.cpp")


@pytest.mark.parametrize(
    ("chunk", "is_error"),
    [
        ({"error": {"message": "no"}}, True),
        ({"error": "no"}, True),
        ({"object": "error", "message": "no"}, True),
        ({"type": "error", "error": {"type": "overloaded_error"}}, True),
        ({"error_type": "BadRequestError", "error_message": "no"}, True),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}, True),
        ({"choices": [{"index": 0, "error": {"code": 502}}]}, True),
        ({"choices": [{"index": 0, "delta": {"content": "error"}, "finish_reason": None}], "error": None}, False),
        ({"choices": [], "usage": {"prompt_tokens": 1}}, False),
        ({"choices": None}, False),
        ({"choices": ["error"]}, False),
        ({}, False),
    ],
)
def test_error_frames(chunk: dict[str, Any], *, is_error: bool) -> None:
    assert is_error_frame(chunk) is is_error


@pytest.mark.parametrize("seed", [b"context ", b"too many token ", b"request (1 token", b'{"', b"[" * 9, b"input "])
def test_hostile_bodies_take_no_time(seed: bytes) -> None:
    body = b'{"error": "context ' + seed * (4 * EXAMINED // len(seed))
    began = time.perf_counter()
    recognise(400, body)
    assert time.perf_counter() - began < 1.0


def test_what_lies_beyond_the_cap_is_not_read() -> None:
    body = b" " * EXAMINED + json.dumps(LLAMACPP).encode()
    assert recognise(400, body) is None


def test_a_long_error_whose_json_is_cut_is_read_as_text() -> None:
    body = json.dumps(error(OPENAI + "x" * EXAMINED)).encode()
    assert recognise(400, body) == Overflow(8192, 8545, "vLLM or OpenAI")


@given(status=st.integers(0, 599), body=st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_answered(status: int, body: bytes) -> None:
    recognise(status, b"context " + body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(["context", "{}", "error", OPENAI]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["error", "choices", "message", "code", "input"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_answered(content: object) -> None:
    for status in (200, 400, 500):
        found = recognise(status, json.dumps({"error": content, "hint": "context"}).encode())
        assert found is None or found.window in {None, 8192}


def test_deep_nesting_is_survived() -> None:
    deep: object = "context_length_exceeded"
    for _ in range(100):
        deep = {"error": [deep]}
    assert recognise(400, json.dumps(deep).encode()) is None
    assert recognise(400, b'{"context":' + b"[" * 30000) is None
