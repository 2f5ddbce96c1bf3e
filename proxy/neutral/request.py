"""A chat completion request: a typed view over the received JSON, in which unknown fields survive.

Fields: OpenAI API reference, "Create chat completion" (2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from proxy.errors import BadRequest
from proxy.wire.jsontext import dumps, loads

Message: TypeAlias = dict[str, Any]

_GRAMMARS = (
    *("grammar", "json_schema"),  # llama.cpp
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),  # vLLM
)
SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True)
class ChatRequest:
    """One request. `wire` is the body as it came, `raw` the same after any content-encoding was undone."""

    raw: bytes
    body: Mapping[str, Any]
    wire: bytes

    @property
    def messages(self) -> list[Message]:
        """The conversation as the client sent it."""
        messages: list[Message] = self.body["messages"]
        return messages

    @property
    def model(self) -> str:
        """The id the client asked for; empty if it named none."""
        model = self.body.get("model")
        return model if isinstance(model, str) else ""

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.body.get("stream") is True

    @cached_property
    def max_tokens(self) -> int | None:
        """The client's bound on completion tokens; None: none (also for -1, llama.cpp's word for none)."""
        for name in ("max_completion_tokens", "max_tokens"):
            value = self.body.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    @property
    def usage_wish(self) -> bool | None:
        """What the client said about usage in the stream: True, False, or None for nothing."""
        options = self.body.get("stream_options")
        if isinstance(options, dict) and "include_usage" in options:
            return bool(options["include_usage"])
        return None

    @property
    def choices(self) -> int:
        """How many answers are asked for (`n`)."""
        n = self.body.get("n")
        return n if isinstance(n, int) else 1

    @property
    def structured(self) -> bool:
        """Whether the answer has to follow a format, into which nothing may be written."""
        wanted = self.body.get("response_format")
        if isinstance(wanted, dict) and wanted.get("type") not in (None, "text"):
            return True
        return any(self.body.get(name) is not None for name in _GRAMMARS)

    @property
    def background_task(self) -> bool:
        """Whether it looks like a client's own chore (Open WebUI 0.12: titles, tags, follow-ups)."""
        messages = self.messages
        if self.stream or len(messages) != 1 or self.body.get("tools"):
            return False
        content = messages[0].get("content")
        return isinstance(content, str) and content.startswith("### Task:")

    def rewritten(self, messages: Sequence[Message] | None = None, **fields: Any) -> bytes:
        """The body with other messages or fields, as bytes; a field given as None is removed."""
        body = dict(self.body)
        if messages is not None:
            body["messages"] = list(messages)
        for name, value in fields.items():
            if value is None:
                body.pop(name, None)
            else:
                body[name] = value
        try:
            return dumps(body)
        except ValueError as error:
            raise BadRequest(f"The request cannot be shortened: {error}.") from None

    def changed(self, **fields: Any) -> ChatRequest:
        """The same request as if the client had sent it with other fields; one given as None is removed."""
        raw = self.rewritten(**fields)
        body = {**self.body, **fields}
        return ChatRequest(
            raw, {name: body[name] for name in body if fields.get(name, True) is not None}, raw
        )


def parse_chat(raw: bytes, wire: bytes | None = None) -> ChatRequest:
    """Read a request body; `wire` is what came, if that was encoded.

    Raises:
        BadRequest: not JSON, not an object, or `messages` is not a list of objects.
    """
    try:
        body = loads(raw)
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}. Send a JSON object.") from None
    if not isinstance(body, dict):
        raise BadRequest("The request body must be a JSON object.")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"`messages[{index}]` must be an object.", param=f"messages[{index}]")
        if not isinstance(message.get("role"), str):
            raise BadRequest(
                f"`messages[{index}].role` must be a string such as user, assistant, system or tool.",
                param=f"messages[{index}].role",
            )
    return ChatRequest(raw, body, raw if wire is None else wire)


def leading_system(messages: Sequence[Message]) -> int:
    """How many system or developer messages open the conversation."""
    count = 0
    for message in messages:
        if message.get("role") not in SYSTEM_ROLES:
            break
        count += 1
    return count


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message whose content is a string or a list of parts; other parts are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""
