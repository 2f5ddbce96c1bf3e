"""LiteLLM's client. A program: each line on standard input is a way and a job, each line it prints the answers.

It runs in an environment of its own, where a warning is an error and whatever LiteLLM prints goes to standard error.
"""

import asyncio
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

import litellm

from tests.e2e.clients.talk import Job, Seen, fields_of, gather, read_completion, two_turns


def _fields(job: Job) -> dict[str, Any]:
    fields = fields_of(job)
    own: dict[str, Any] = {"model": f"openai/{fields['model']}", "api_base": job.base, "api_key": job.key, "max_retries": 0}
    if job.tools:
        # For any tools LiteLLM 1.106 imports `mcp`, which it does not install, to look for MCP servers among them.
        own["_skip_mcp_handler"] = True
    return {**fields, **own}


def completion(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    return gather(litellm.completion(messages=messages, **_fields(job)))


def acompletion(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    async def run() -> list[Any]:
        return [chunk async for chunk in await litellm.acompletion(messages=messages, **_fields(job))]

    return gather(asyncio.run(run()))


def chunk_builder(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    """`stream_chunk_builder`, which counts usage by itself where the stream tells none."""
    chunks = list(litellm.completion(messages=messages, **_fields(job)))
    seen, _ = gather(chunks)
    built, message = read_completion(litellm.stream_chunk_builder(chunks, messages=messages))
    built.usage = seen.usage and built.usage
    return built, message


def whole(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    return read_completion(litellm.completion(messages=messages, **_fields(job)))


WAYS = {ask.__name__: ask for ask in (completion, acompletion, chunk_builder, whole)}


def main() -> None:
    out = sys.stdout
    litellm.suppress_debug_info = True  # else it prints that it has no price for the model
    with redirect_stdout(sys.stderr):
        for line in sys.stdin:
            asked = json.loads(line)
            answers = two_turns(Job(**asked["job"]), WAYS[asked["way"]])
            print(json.dumps([asdict(answer) for answer in answers]), file=out, flush=True)


if __name__ == "__main__":
    main()
