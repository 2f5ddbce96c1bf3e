"""What a client got, and whether it is a whole answer or one clear error."""

from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from proxy.core import sse


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer came to: `whole`, `short` (ended for its length) or `error`."""

    kind: str
    text: str = ""
    error: str = ""
    status: int = 200


class NotClear(AssertionError):
    """Neither a whole answer nor one clear error."""


def judged(response: httpx.Response, expected: str, *, stream: bool) -> Outcome:
    """What a response came to.

    Raises:
        NotClear: it is not one of the three, or says another thing than a beginning of what was expected.
    """
    if response.status_code != 200:
        return Outcome("error", "", _error(response.content), response.status_code)
    outcome = _streamed(response) if stream else _whole(response.content)
    if not expected.startswith(outcome.text) or (outcome.kind == "whole" and outcome.text != expected):
        raise NotClear(f"words were lost, doubled or made up: …{outcome.text[-80:]!r} of …{expected[-20:]!r}")
    return outcome


def _error(body: bytes) -> str:
    """The message of an error in OpenAI's shape (or in the backend's own, which is passed on)."""
    try:
        told = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        raise NotClear(f"no error object: {body[:200]!r}") from None
    message = told.get("message") if isinstance(told, dict) else told
    if not (isinstance(message, str) and message):
        raise NotClear(f"an error without a message: {body[:200]!r}")
    return message


def _whole(body: bytes) -> Outcome:
    try:
        parsed = orjson.loads(body)
    except ValueError:
        raise NotClear(f"status 200 and no JSON: {body[:200]!r}") from None
    if isinstance(parsed, dict) and "error" in parsed:
        return Outcome("error", "", _error(body))
    try:
        (choice,) = parsed["choices"]
        said, finish = choice["message"].get("content") or "", choice["finish_reason"]
    except (KeyError, ValueError, TypeError):
        raise NotClear(f"no answer: {body[:200]!r}") from None
    return _ended(said, [finish])


def _streamed(response: httpx.Response) -> Outcome:
    kind = response.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise NotClear(f"a stream of type {kind!r}")
    events, done = _events(response.content)
    errors = [_error(orjson.dumps(event)) for event in events if "error" in event]
    answers = [event for event in events if "error" not in event]
    ids = {event.get("id") for event in answers}
    if len(ids) > 1 or done != 1 or len(errors) > 1:
        raise NotClear(f"{len(ids)} answers, {len(errors)} errors, {done} ends")
    said, finishes = "", list[Any]()
    for event in answers:
        for choice in event["choices"]:
            said += choice["delta"].get("content") or ""
            finishes += filter(None, [choice.get("finish_reason")])
    if errors:
        if finishes:
            raise NotClear(f"an error, and a finish {finishes}")
        return Outcome("error", said, errors[0])
    return _ended(said, finishes)


def _events(body: bytes) -> tuple[list[dict[str, Any]], int]:
    """The JSON of each frame, and how many ends there are."""
    events, done = [], 0
    if not body.endswith(b"\n\n"):
        raise NotClear(f"the stream breaks off in {body[-80:]!r}")
    for data in filter(None, map(sse.data_of, sse.frames(body))):
        if data == b"[DONE]":
            done += 1
            continue
        try:
            event = orjson.loads(data)
        except ValueError:
            raise NotClear(f"no JSON in a frame: {data[:200]!r}") from None
        if done or not isinstance(event, dict) or not ("error" in event or "choices" in event):
            raise NotClear(f"an odd frame, {done} ends before it: {data[:200]!r}")
        events.append(event)
    return events, done


def _ended(said: str, finishes: list[Any]) -> Outcome:
    if finishes not in (["stop"], ["length"]):
        raise NotClear(f"finish reasons {finishes}")
    return Outcome("whole" if finishes == ["stop"] else "short", said)
