"""Requests in which something is not what it should be: read or refused in every dialect, and in no more time than others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from proxy.dialects import DIALECTS
from proxy.errors import ClientError, NotManaged
from proxy.neutral.piece import Identity, Piece

TEXTS = [{"type": "text", "text": "x"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "model": "m",
        "max_tokens": 9,
        "stream": True,
        "system": TEXTS,
        "messages": [
            {
                "role": "user",
                "content": [
                    *TEXTS,
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
                    {
                        "type": "document",
                        "title": "t",
                        "context": "c",
                        "source": {"type": "text", "data": "x"},
                    },
                    {"type": "document", "source": {"type": "content", "content": TEXTS}},
                    {"type": "search_result", "title": "t", "source": "s", "content": TEXTS},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t"},
                    {"type": "compaction", "content": "c", "encrypted_content": "x"},
                    *TEXTS,
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": TEXTS}],
            },
            {"role": "system", "content": TEXTS},
            {
                "role": "system",
                "content": [{"type": "tool_addition", "tool": {"definition": {"name": "g"}}}],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "type": "custom"}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
        "context_management": {
            "edits": [
                {
                    "type": "clear_tool_uses_20250919",
                    "trigger": {"type": "input_tokens", "value": 9},
                    "keep": {"type": "tool_uses", "value": 1},
                    "exclude_tools": ["f"],
                    "clear_tool_inputs": ["g"],
                },
                {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
                {"type": "compact_20260112", "instructions": "i"},
            ]
        },
        "thread": {"type": "new"},
        "stop_sequences": ["x"],
        "temperature": 1,
    },
    "/v1/responses": {
        "model": "m",
        "stream": True,
        "instructions": "i",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": "u", "detail": "low"},
                    {"type": "input_file", "file_data": "x", "filename": "f"},
                ],
            },
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c", "namespace": "n"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "x"}],
            },
            {"type": "shell_call", "action": {"commands": ["x"]}, "call_id": "d"},
            {"type": "shell_call_output", "call_id": "d", "output": [{"stdout": "x"}]},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": {}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "g", "format": {"definition": "x"}},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "max_output_tokens": 7,
        "context_management": [{"type": "compaction", "compact_threshold": 9}],
        "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "implicit"},
        "metadata": {"a": "b"},
        "store": False,
    },
    "/api/chat": {
        "model": "m",
        "messages": [
            {"role": "user", "content": "x", "images": ["iVBOR"]},
            {
                "role": "assistant",
                "content": "",
                "thinking": "t",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}, "id": "x"}],
            },
            {"role": "tool", "content": "x", "tool_name": "f", "tool_call_id": "x"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "format": {"type": "object"},
        "options": {"num_predict": 5, "temperature": 1},
        "think": True,
    },
    "/api/generate": {
        "model": "m",
        "prompt": "p",
        "system": "s",
        "images": ["x"],
        "options": {"num_predict": 5},
        "format": "json",
    },
}
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 2**70, "", "x", [], [[]], [None], ["x"], {}),
    *({"type": []}, [{"type": {}}], [{"role": []}], {"content": {}}),
]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*at, key))


def _with(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    if not at:
        return odd
    made = deepcopy(value)
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = odd
    return made


@pytest.mark.parametrize("path", REQUESTS)
def test_each_field_may_be_anything(path: str) -> None:
    dialect, asked = DIALECTS[path], REQUESTS[path]
    for at in _places(asked):
        for odd in ODD:
            body = json.dumps(_with(asked, at, odd)).encode()
            try:
                request = dialect.read(body, body)
                dialect.read_to_count(body)
            except (ClientError, NotManaged):
                continue
            writer = dialect.writer(request, "0a1b")
            assert writer.own(Piece(role=True, text="x"), Identity("", 1, "")), (at, odd)
            assert writer.end()


def _reminders(count: int) -> dict[str, Any]:
    reminders = [{"role": "system", "content": "remember " * 9} for _ in range(count)]
    return {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}, *reminders]}


def _results(count: int) -> dict[str, Any]:
    calls = [{"id": f"c{n}", "function": {"name": "f"}} for n in range(count)]
    results = [{"role": "tool", "tool_call_id": f"c{n}"} for n in reversed(range(count))]
    return {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}, *results]}


@pytest.mark.parametrize(("path", "made"), [("/v1/messages", _reminders), ("/api/chat", _results)])
def test_more_takes_as_much_longer(path: str, made: Callable[[int], dict[str, Any]]) -> None:
    def seconds(count: int) -> float:
        body = json.dumps(made(count)).encode()
        times = []
        for _ in range(3):
            start = time.process_time()
            DIALECTS[path].read(body, body)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(16_000) < 120 * seconds(1000)
