"""LangChain's `ChatOpenAI`, in each way in which it reads an answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
from langchain_core.messages import AIMessage, BaseMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.e2e.clients.talk import MODEL, Ask, Job, Seen


@contextmanager
def _model(job: Job, **fields: Any) -> Iterator[Any]:
    """The model with a connection of its own: those that it makes itself are shared and never closed."""
    with httpx.Client(timeout=60) as client:
        yield _with_tools(job, http_client=client, **fields)


@asynccontextmanager
async def _async_model(job: Job, **fields: Any) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(timeout=60) as client:
        yield _with_tools(job, http_async_client=client, **fields)


def _with_tools(job: Job, **fields: Any) -> Any:
    model = ChatOpenAI(
        model=MODEL, base_url=job.base, api_key=SecretStr(job.key), max_retries=0, max_completion_tokens=job.max_tokens,
        stream_usage=job.usage, **fields,
    )  # fmt: skip
    return model.bind_tools(job.tools) if job.tools else model


def _read(message: BaseMessage, finishes: list[str]) -> tuple[Seen, Any]:
    assert isinstance(message, AIMessage)
    assert message.invalid_tool_calls == []
    seen = Seen(text=message.text, finishes=finishes)
    assert message.content == seen.text
    seen.calls = [[call["id"] or "", call["name"], json.dumps(call["args"])] for call in message.tool_calls]
    if message.usage_metadata is not None:
        counts = message.usage_metadata
        seen.usage = {
            "prompt_tokens": counts["input_tokens"],
            "completion_tokens": counts["output_tokens"],
            "total_tokens": counts["total_tokens"],
        }
    return seen, message


def _added(chunks: list[Any]) -> tuple[Seen, Any]:
    """The chunks put together by LangChain itself."""
    first, *others = chunks
    finishes = [chunk.response_metadata["finish_reason"] for chunk in chunks if "finish_reason" in chunk.response_metadata]
    return _read(sum(others, first), finishes)


def stream(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with _model(job) as model:
        return _added(list(model.stream(messages)))


def astream(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    async def run() -> list[Any]:
        async with _async_model(job) as model:
            return [chunk async for chunk in model.astream(messages)]

    return _added(asyncio.run(run()))


def streaming(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with _model(job, streaming=True) as model:
        message = model.invoke(messages)
    return _read(message, [message.response_metadata["finish_reason"]])


def invoke(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with _model(job) as model:
        return _whole(model.invoke(messages))


def ainvoke(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    async def run() -> Any:
        async with _async_model(job) as model:
            return await model.ainvoke(messages)

    return _whole(asyncio.run(run()))


def _whole(message: Any) -> tuple[Seen, Any]:
    seen, _ = _read(message, [message.response_metadata["finish_reason"]])
    told, seen.usage = seen.usage, message.response_metadata["token_usage"]
    assert told is not None
    assert told.items() <= seen.usage.items()
    return seen, message


STREAMED: tuple[Ask, ...] = (stream, astream, streaming)
WHOLE: tuple[Ask, ...] = (invoke, ainvoke)
