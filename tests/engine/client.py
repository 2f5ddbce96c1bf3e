"""A plain client of chat completions that looks at everything: bytes, frames, ids, roles, reasons, usage."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT = 60.0


@dataclass(slots=True)
class Answer:
    """One answer, streamed or not, as far as its first choice goes.

    `ids`, `roles` and `reasons` list what was seen, ids without repetition; `done` counts `[DONE]`.
    """

    status: int
    headers: httpx.Headers
    raw: bytes = b""
    frames: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    ids: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    done: int = 0

    @property
    def action(self) -> str:
        """What the proxy says it did with the request."""
        return str(self.headers.get("x-spillway-action", ""))

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the engine's KV cache."""
        return int(((self.usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    def absorb(self, frame: dict[str, Any]) -> None:
        """Add a chunk of a stream, or the whole of an answer that is none."""
        self.frames.append(frame)
        if "id" in frame and frame["id"] not in self.ids:
            self.ids.append(frame["id"])
        self.usage = frame.get("usage") or self.usage
        for choice in frame.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or {}
            self.text += part.get("content") or ""
            if part.get("role"):
                self.roles.append(part["role"])
            if choice.get("finish_reason"):
                self.reasons.append(choice["finish_reason"])


def frames_of(raw: bytes) -> tuple[list[dict[str, Any]], int]:
    data = [line[5:].strip() for line in raw.decode().split("\n") if line.startswith("data:")]
    return [json.loads(text) for text in data if text != "[DONE]"], data.count("[DONE]")


def chat(
    url: str, messages: list[dict[str, Any]], *, stream: bool = False, key: str = "", timeout: float = TIMEOUT, **fields: Any
) -> Answer:
    """Ask the server at `url` (its root) and read the answer to its end; errors are answers too."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body: dict[str, Any] = {"messages": messages, **fields}
    if stream:
        body["stream"] = True
    # `verify=False`: over plain HTTP it only saves reading the system's certificates for every request.
    reply = httpx.post(url + "/v1/chat/completions", json=body, headers=headers, timeout=timeout, trust_env=False, verify=False)
    answer = Answer(status=reply.status_code, headers=reply.headers, raw=reply.content)
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        frames, answer.done = frames_of(reply.content)
    else:
        frames = [reply.json()]
    for frame in frames:
        answer.absorb(frame)
    return answer
