"""OpenAI's older completions: a text goes on. There is no conversation in it, so backends are asked in the same form.

Fields: OpenAI API reference, "Create completion" (2026), and what llama-server, vLLM and Ollama add to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.dialects.bodies import is_count, object_in, text_in
from proxy.dialects.chat.reading import DONE, is_done, object_of
from proxy.errors import NotManaged
from proxy.neutral.piece import whole_number
from proxy.wire import sse
from proxy.wire.jsontext import dumps

PATH = "/v1/completions"
_ALONE = ("suffix", "echo", "logprobs", "input_prefix", "input_suffix", "input_extra", "prompt_logprobs")
"""Options whose answers can't be put together of several, or whose prompt is no plain text."""
_BAR = "\uff5c"
"""With which DeepSeek's tokens are written."""
_TEMPLATED = (
    *("<|fim", "<fim_", f"<{_BAR}fim", "<PRE>", "[PREFIX]", "[SUFFIX]", "<|repo_name|>", "<|file_sep|>"),
    *("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|user|>", "[INST]", f"<{_BAR}User{_BAR}>"),
    "<|begin_of_text|>",
)
"""Tokens of a template that the client has filled in itself: code around a gap, or a chat. What is cut out of one breaks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A request to go on with a text."""

    body: Mapping[str, Any]
    model: str
    prompt: str
    stream: bool
    bound: int | None
    """Completion tokens; None: the backend's own bound."""
    shows_usage: bool
    """Whether the client wants usage in the stream."""

    def going_on(self, prompt: str, spent: int, model: str, *, later: bool) -> bytes:
        """The body of a request to go on with `prompt`, once so many completion tokens came; `later`: not the first one."""
        body = {**self.body, "prompt": prompt, "model": model}
        if later and self.bound is not None:
            body["max_tokens"] = self.bound - spent
        if self.stream:
            options = body.get("stream_options")
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return dumps(body)


def read(raw: bytes) -> CompletionRequest:
    """Read a request.

    Raises:
        BadRequest: it is malformed.
        NotManaged: it is for the backend alone: several prompts or answers, tokens, code around a gap, a filled-in template.
    """
    body = object_in(raw)
    prompt, model, options = body.get("prompt"), body.get("model"), body.get("stream_options")
    several = any(body.get(name) not in (None, 1) for name in ("n", "best_of"))
    alone = any(body.get(name) for name in _ALONE)
    if not isinstance(prompt, str) or several or alone or any(mark in prompt for mark in _TEMPLATED):
        raise NotManaged
    bound = body.get("max_tokens")
    return CompletionRequest(
        body=body,
        model=model if isinstance(model, str) else "",
        prompt=prompt,
        stream=body.get("stream") is True,
        bound=bound if is_count(bound) else None,
        shows_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


@dataclass(slots=True)
class CompletionPiece:
    """What a frame of an answer says, or all of one that came whole."""

    form: dict[str, Any] | None
    """As it was parsed; None for what says nothing of an answer."""
    text: str = ""
    finish: str | None = None
    usage: Mapping[str, Any] | None = None
    done: bool = False
    failed: bool = False

    @property
    def used(self) -> tuple[int, int]:
        """Prompt and completion tokens that are reported."""
        usage = self.usage or {}
        return whole_number(usage.get("prompt_tokens")), whole_number(usage.get("completion_tokens"))


def piece_in(data: bytes | None) -> CompletionPiece:
    """What the data of a frame, or a whole body, says."""
    form = object_of(data)
    if form is None:
        return CompletionPiece(None, done=is_done(data))
    choices, usage = form.get("choices"), form.get("usage")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    return CompletionPiece(
        form,
        text=text_in(choice, "text"),
        finish=text_in(choice, "finish_reason") or None,
        usage=usage if isinstance(usage, dict) else None,
        failed="error" in form and not choices,
    )


def rewritten(
    said: CompletionPiece, first: Mapping[str, Any] | None, *, text: str | None = None, **usage: int
) -> dict[str, Any]:
    """What was said, as part of the answer that `first` began; with all its text, and the usage of all of it, if given."""
    form = dict(said.form or {})
    if first is not None:
        form |= {name: first[name] for name in ("id", "created", "model") if name in first}
    if text is not None:
        form["choices"] = [{**form["choices"][0], "text": text}]
    if usage:
        form["usage"] = {**(said.usage or {}), **usage}
    return form


def going(frame: bytes, said: CompletionPiece, first: Mapping[str, Any]) -> bytes:
    """A frame as part of the answer, without a reason for its end: that is told when it is known to be one.

    As it came where that changes nothing, as in all frames of a first attempt but its last.
    """
    if said.finish is None and _identity(said.form or {}) == _identity(first) and sse.is_closed(frame):
        return frame
    form = rewritten(said, first)
    if said.finish is not None:
        form["choices"] = [{**form["choices"][0], "finish_reason": None}]
    return sse.encode(form)


def _identity(form: Mapping[str, Any]) -> tuple[Any, ...]:
    return form.get("id"), form.get("created"), form.get("model")


def ending(
    last: CompletionPiece, first: Mapping[str, Any] | None, usage: Mapping[str, int], *, shows_usage: bool
) -> bytes:
    """The frames that end a stream: the reason, the usage where the client wants it, the mark."""
    out = b""
    bare = {name: value for name, value in rewritten(last, first).items() if name != "usage"}
    if last.finish is not None:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": last.finish}
        out += sse.encode({**bare, "choices": [choice]})
    if shows_usage:
        out += sse.encode({**bare, "choices": [], "usage": usage})
    return out + DONE


def broken(error: Any) -> bytes:
    """An error, and the end."""
    return sse.encode({"error": error}) + DONE
