"""The openai package for Python, in each way in which it reads a stream."""

import asyncio
from typing import Any

import openai

from tests.e2e.clients.talk import Ask, Job, Seen, fields_of, gather, read_completion


def client_of(job: Job) -> Any:
    """A client, untyped: its overloads tell a stream by a literal."""
    headers = {"x-spillway-status": job.status} if job.status else {}
    return openai.OpenAI(base_url=job.base, api_key=job.key, max_retries=0, default_headers=headers)


def _async_client(job: Job) -> Any:
    return openai.AsyncOpenAI(base_url=job.base, api_key=job.key, max_retries=0)


def _helper_fields(job: Job) -> dict[str, Any]:
    return {name: value for name, value in fields_of(job).items() if name != "stream"}


def create(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with client_of(job) as client, client.chat.completions.create(messages=messages, **fields_of(job)) as stream:
        return gather(stream)


def create_async(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    async def run() -> list[Any]:
        async with _async_client(job) as client:
            stream = await client.chat.completions.create(messages=messages, **fields_of(job))
            async with stream:
                return [chunk async for chunk in stream]

    return gather(asyncio.run(run()))


def raw_response(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with client_of(job) as client:
        answer = client.chat.completions.with_raw_response.create(messages=messages, **fields_of(job))
        assert answer.headers["x-spillway-action"]
        with answer.parse() as stream:
            return gather(stream)


def streaming_response(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with (
        client_of(job) as client,
        client.chat.completions.with_streaming_response.create(messages=messages, **fields_of(job)) as answer,
        answer.parse() as stream,
    ):
        return gather(stream)


def helper(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    """`.stream()`: typed events, and the completion put together from them."""
    with client_of(job) as client, client.chat.completions.stream(messages=messages, **_helper_fields(job)) as stream:
        events = list(stream)
        return _of_events(events, stream.get_final_completion())


def helper_async(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    async def run() -> tuple[Seen, Any]:
        async with (
            _async_client(job) as client,
            client.chat.completions.stream(messages=messages, **_helper_fields(job)) as stream,
        ):
            events = [event async for event in stream]
            return _of_events(events, await stream.get_final_completion())

    return asyncio.run(run())


def _of_events(events: list[Any], final: Any) -> tuple[Seen, Any]:
    """Events and the final completion must tell the same."""
    seen, message = read_completion(final)
    chunks = [event.chunk for event in events if event.type == "chunk"]
    assert gather(chunks)[0] == seen
    assert "".join(event.delta for event in events if event.type == "content.delta") == seen.text
    assert {event.content for event in events if event.type == "content.done"} <= {seen.text}
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [[event.name, event.arguments] for event in done] == [call[1:] for call in seen.calls]
    return seen, message


def whole(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    with client_of(job) as client:
        return read_completion(client.chat.completions.create(messages=messages, **fields_of(job)))


def whole_async(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    async def run() -> Any:
        async with _async_client(job) as client:
            return await client.chat.completions.create(messages=messages, **fields_of(job))

    return read_completion(asyncio.run(run()))


STREAMED: tuple[Ask, ...] = (create, create_async, raw_response, streaming_response, helper, helper_async)
WHOLE: tuple[Ask, ...] = (whole, whole_async)
