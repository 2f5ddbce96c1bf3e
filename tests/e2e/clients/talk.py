"""Two turns of a chat in any client's own way, with the history that the client itself would keep."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

MODEL = "walk"
NEXT = "And now?"
"""What the user says in the second turn."""

Body: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to ask, and where. `usage`: ask for it; `whole`: no stream; `status`: its form, else the default."""

    base: str
    key: str
    messages: list[Body]
    tools: list[Body] = field(default_factory=list)
    usage: bool = False
    whole: bool = False
    status: str = ""
    max_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the client read of one answer. A call is its id, its name and the text of its arguments."""

    text: str = ""
    finishes: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    usage: Body | None = None
    """At least `prompt_tokens`, `completion_tokens` and `total_tokens`; None: none was seen."""


Ask: TypeAlias = Callable[[Job, list[Any]], tuple[Seen, Any]]
"""Sends these messages; gives what was read, and the message that goes into the client's history."""


def two_turns(job: Job, ask: Ask) -> list[Seen]:
    """The first answer goes back as the client keeps it, with a result for each of its calls."""
    first, message = ask(job, list(job.messages))
    results = [{"role": "tool", "tool_call_id": id_, "content": "12 degrees"} for id_, _, _ in first.calls]
    second, _ = ask(job, [*job.messages, message, *results, {"role": "user", "content": NEXT}])
    return [first, second]


def fields_of(job: Job) -> Body:
    """What a request has besides its messages, in OpenAI's words."""
    asked: Body = {"model": MODEL, "stream": not job.whole}
    if job.tools:
        asked["tools"] = job.tools
    if job.max_tokens is not None:
        asked["max_tokens"] = job.max_tokens
    if job.usage and not job.whole:
        asked["stream_options"] = {"include_usage": True}
    return asked


def gather(chunks: Iterable[Any]) -> tuple[Seen, Body]:
    """Read chunks as OpenAI's own examples do: attributes, calls put together by their index."""
    seen = Seen()
    for chunk in chunks:
        if getattr(chunk, "usage", None):
            seen.usage = chunk.usage.model_dump()
        for choice in chunk.choices:
            seen.text += choice.delta.content or ""
            if choice.finish_reason:
                seen.finishes.append(choice.finish_reason)
            for call in choice.delta.tool_calls or ():
                if call.index == len(seen.calls):
                    seen.calls.append([call.id, call.function.name, ""])
                seen.calls[call.index][2] += call.function.arguments or ""
    return seen, as_message(seen)


def as_message(seen: Seen) -> Body:
    """The assistant message of a client that keeps plain objects."""
    message: Body = {"role": "assistant", "content": seen.text}
    if seen.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in seen.calls
        ]
    return message


def read_completion(completion: Any) -> tuple[Seen, Any]:
    """Read a whole answer in OpenAI's classes; the message goes back as the object it is."""
    (choice,) = completion.choices
    seen = Seen(text=choice.message.content or "", finishes=[choice.finish_reason])
    seen.calls = [[call.id, call.function.name, call.function.arguments] for call in choice.message.tool_calls or ()]
    seen.usage = completion.usage.model_dump() if completion.usage else None
    return seen, choice.message
