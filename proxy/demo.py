"""A built-in backend for the first minute: a scripted model with a small window, in llama-server's wire shapes (b11549).

It is not a language model, and says so in every answer. With it, Spillway can be tried, including a pause and a resume,
on a machine where no model runs yet.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.backends import USUAL
from proxy.core.jsontext import are_objects, dig
from proxy.core.request import Message, text_of
from proxy.core.sse import encode

MODEL = "spillway-demo"
WINDOW = 4096
"""Tokens of prompt and answer together."""
LOST = " (The demo model cannot find its place in this text and stops here.)"
LARGEST_COUNT = 10_000
PACE = 0.004
"""Seconds per token: slow enough to watch, half a minute for an answer longer than the window."""

_TOKEN = re.compile(r" ?\w{1,6}| ?[^\w\s]|\s")
_PER_MESSAGE = 4
"""Tokens of the markup around a message in a chat template."""
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
_COUNT = re.compile(r"\bcount\b.{0,40}?\bto\s+(\d[\d,. ]*)", re.IGNORECASE)
_GO_ON = re.compile(r"^\W*(?:please\s+)?(?:continue|go on|carry on|keep going)\b|\bcontinue exactly\b", re.IGNORECASE)
_SUMMARISE = re.compile(
    r"(?:^|[.!?:]\s+|\n)(?:please\s+|now\s+)?(?:summari[sz]e\b|(?:write|give|make)\b[^.\n]{0,40}\bsummary\b)",
    re.IGNORECASE,
)
_TAILS = (400, 160, 80)
"""Characters of a partial answer's end that are searched for in the whole text, longest first."""
_ABOUT = (
    "Spillway stands between your client and your model. When a conversation no longer fits into the model's "
    "context window, Spillway shortens it before the model has to refuse it; when the window fills up in the "
    "middle of an answer, Spillway pauses, makes room, and lets the model go on in the same stream."
)
_REAL = (
    f"To talk to a real model, start a server on this machine, at its usual port: {USUAL}. It is found within "
    'seconds, and this demo is off. Or name one: SPILLWAY_BACKENDS=\'[{"url": "http://127.0.0.1:11434"}]\'.'
)
_TRY = (
    'To see it work, ask me to "count to 3000", which does not fit into my window. Number by '
    "number you can check that nothing is lost or said twice where one part ends and the next begins."
)
_OTHER_MODEL = (
    f"No backend was found yet, and the demo serves {MODEL} only. Start a server at its usual port, which is "
    f"found within seconds: {USUAL}. Or start Spillway with --backend URL."
)
_DESCRIPTION = f"Spillway's built-in demo: a script with a window of {WINDOW:,} tokens, no language model"
_CREATED = 1_760_000_000
"""Fixed time of creation: the demo has no clock, so an answer depends on nothing but the request."""
_GRACE = 1
"""Seconds that running answers get when the server is shut down."""
_PROPS = {
    "default_generation_settings": {"params": {"max_tokens": -1, "stream": False}, "n_ctx": WINDOW},
    "total_slots": 1,
    "model_alias": MODEL,
    "model_path": f"/models/{MODEL}.gguf",
    "modalities": {"vision": False, "audio": False},
    "chat_template_caps": {"supports_tools": False, "supports_tool_calls": False, "supports_system_role": True},
    "build_info": MODEL,
    "is_sleeping": False,
}
# `info.meta` is what Open WebUI shows and obeys: its own tools would not fit into the window.
_MODEL = {
    "id": MODEL,
    "object": "model",
    "created": _CREATED,
    "owned_by": "llamacpp",
    "tags": ["demo"],
    "description": _DESCRIPTION,
    "meta": {"n_ctx": WINDOW, "n_ctx_train": WINDOW},
    "info": {"meta": {"description": _DESCRIPTION, "capabilities": {"builtin_tools": False, "usage": True}}},
}
_FIXED = {"/props": _PROPS, "/v1/models": {"object": "list", "data": [_MODEL]}}
"""Replies served at a path, whatever the request."""


class RequestRefused(Exception):
    """A request that is answered with an error: its status, message, and further `fields`."""

    def __init__(self, status: int, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """Tokens of the prompt, and the new tokens of the answer."""

    prompt: int
    tokens: Sequence[str]
    finish_reason: str

    @property
    def usage(self) -> dict[str, int]:
        """Usage as OpenAI's API reports it."""
        completion = len(self.tokens)
        return {"prompt_tokens": self.prompt, "completion_tokens": completion, "total_tokens": self.prompt + completion}


def tokens_of(text: str) -> list[str]:
    """Cut a text into tokens, the same on every run; joined they are the text again."""
    return _TOKEN.findall(text)


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Count the prompt tokens of a chat completion body.

    Raises:
        RequestRefused: it has no messages.
    """
    messages = body.get("messages")
    if not are_objects(messages):
        raise RequestRefused(400, "'messages' must be an array of objects")
    parts = [text_of(message) for message in messages]
    calls = [message.get("tool_calls") for message in messages]
    parts += [orjson.dumps(part).decode() for part in (body.get("tools"), *calls) if part]
    return sum(len(tokens_of(part)) for part in parts) + _PER_MESSAGE * (len(messages) + 1)


def generate(body: Mapping[str, Any]) -> DemoAnswer:
    """Answer a chat completion body.

    Raises:
        RequestRefused: the body is malformed, or the prompt leaves no room for a token.
    """
    prompt = prompt_tokens(body)
    if prompt >= WINDOW:
        message = f"request ({prompt} tokens) exceeds the available context size ({WINDOW} tokens), try increasing it"
        raise RequestRefused(400, message, type="exceed_context_size_error", n_prompt_tokens=prompt, n_ctx=WINDOW)
    messages = body["messages"]
    tokens = tokens_of(reply(messages, prompt))
    limit = next((body[name] for name in _LIMITS if isinstance(body.get(name), int)), -1)
    room = WINDOW - prompt if limit < 0 else min(WINDOW - prompt, max(1, limit))
    return DemoAnswer(prompt, tokens[:room], "length" if len(tokens) > room else "stop")


def reply(messages: Sequence[Message], used: int) -> str:
    """Return what the model says next, an answer or the rest of one; the prompt takes `used` tokens.

    A trailing assistant message is a partial answer to continue.
    """
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        return _rest(text_of(last), messages, used)
    question = text_of(last)
    if _GO_ON.search(question):
        answers = (text_of(each) for each in reversed(messages[:-1]) if each.get("role") == "assistant")
        if beginning := next(answers, ""):
            return _rest(beginning, messages[:-1], used) or "That was all of it."
    if _SUMMARISE.search(question):
        return _summary(messages)
    return _full_answer(question, used)


def _summary(messages: Sequence[Message]) -> str:
    """Return the beginnings of some messages; this shows no understanding, but is always the same.

    A single message is taken for a transcript that ends with the instruction.
    """
    texts = [text_of(message) for message in messages[:-1]]
    if not texts:
        lines = re.split(r"[\r\n]+", text_of(messages[0]))[:-1]
        texts = [line for line in lines if line.strip(" <>") and not line.startswith("<<<")]
    last = [f"The last answer ended: {_clip(texts[-1][-100:])}"] if texts else []
    shown = texts if len(texts) <= 8 else [texts[at * (len(texts) - 1) // 7] for at in range(8)]
    return "\n".join(["The conversation in short:", *(f"- {_clip(text)}" for text in shown), *last])


def _clip(text: str) -> str:
    """Return the beginning of a text in one line, without a mark in brackets before it."""
    flat = " ".join(re.sub(r"^\s*\[[^\]]*\]", "", text).split())
    return flat if len(flat) <= 100 else flat[:100].rsplit(" ", 1)[0] + " …"


def _rest(beginning: str, messages: Sequence[Message], used: int) -> str:
    """Return the rest of a `beginning` of an answer to one of the user's messages, trying the newest first."""
    for message in reversed(messages):
        answer = _full_answer(text_of(message), used) if message.get("role") == "user" else ""
        if answer and (at := _place(answer, beginning)) is not None:
            return answer[at:]
    return LOST


def _place(answer: str, beginning: str) -> int | None:
    """Find where an answer continues after its beginning, or after an end of the beginning that occurs in it once."""
    if answer.startswith(beginning):
        return len(beginning)
    for size in _TAILS:
        tail = beginning[-size:]
        if len(tail) == size and answer.count(tail) == 1:
            return answer.index(tail) + size
    return None


def _full_answer(question: str, used: int) -> str:
    """Count as far as the question asks, or else say what this is; `used` in tokens."""
    if found := _COUNT.search(question):
        last = max(1, min(int(re.sub(r"\D", "", found[1])[:9]), LARGEST_COUNT))
        numbers = ", ".join(map(str, range(1, last + 1)))
        return f"This is Spillway's demo model, counting to {last:,}.\n\n{numbers}.\n\nThat was all of it."
    flat = " ".join(question.split())
    quoted = f'You wrote: "{flat[:80]}{"…" if len(flat) > 80 else ""}"\n\n' if flat else "\n\n"
    fill = f"This prompt takes {used:,} of my {WINDOW:,} tokens: my window is {used * 100 // WINDOW}% full."
    return (
        f"I am Spillway's built-in demo: a script, not a language model. {quoted}{_ABOUT}\n\n{_REAL}\n\n{fill} {_TRY}"
    )


# -- HTTP interface: the part of llama-server's that Spillway and curious people use


def create_demo(*, pace: float = PACE) -> Starlette:
    """Return the demo backend as an ASGI application; `pace` is in seconds per streamed token."""

    async def chat(request: Request) -> Response:
        body = await _body(request)
        if body.get("model", MODEL) != MODEL:
            raise RequestRefused(404, _OTHER_MODEL, code="model_not_found")
        answer = generate(body)
        if body.get("stream") is not True:
            message = {"role": "assistant", "content": "".join(answer.tokens)}
            choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
            return JSONResponse({**_head("chat.completion"), "choices": [choice], "usage": answer.usage})
        stream = _paced(_frames(answer, body), pace)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def count(request: Request) -> Response:
        return JSONResponse({"input_tokens": prompt_tokens(await _body(request)), "object": "response.input_tokens"})

    return Starlette(
        routes=[
            *(Route(path, JSONResponse(data), methods=["GET"]) for path, data in _FIXED.items()),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/chat/completions/input_tokens", count, methods=["POST"]),
        ],
        exception_handlers={RequestRefused: _refuse, HTTPException: _refuse},
    )


@asynccontextmanager
async def serve_on_loopback(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on the running event loop, at a free port of loopback, and yield its root URL.

    uvicorn's start and stop are called directly, without its main loop, which would take the signal handlers from
    Spillway's own server.
    """
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.shutdown(sockets=[listener])


def _frames(answer: DemoAnswer, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the frames of a streamed answer, one per token. A stream has new text only."""
    head, total = _head("chat.completion.chunk"), len(answer.tokens)

    def frame(delta: Mapping[str, Any], finish: str | None = None, count: int | None = None) -> bytes:
        counts = {} if count is None else {"timings": timings(count)}
        return encode({"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **head, **counts})

    def timings(count: int) -> dict[str, int]:
        return {"cache_n": 0, "prompt_n": answer.prompt, "predicted_n": count}

    yield frame({"role": "assistant", "content": None})
    running = body.get("timings_per_token") is True
    for number, token in enumerate(answer.tokens, start=1):
        yield frame({"content": token}, count=number if running else None)
    yield frame({}, answer.finish_reason, total)
    if dig(body, "stream_options", "include_usage"):
        yield encode({**head, "choices": [], "usage": answer.usage, "timings": timings(total)})
    yield b"data: [DONE]\n\n"


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": _CREATED, "model": MODEL}


async def _paced(frames: Iterator[bytes], pace: float) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame
        await asyncio.sleep(pace)


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body must be a JSON object")
    return body


async def _refuse(_: Request, error: Exception) -> Response:
    """Answer with an error; a wrong method counts as not found, as on llama-server."""
    refused = error if isinstance(error, RequestRefused) else RequestRefused(404, "File Not Found")
    kind = "not_found_error" if refused.status == 404 else "invalid_request_error"
    fields = {"code": refused.status, "message": str(refused), "type": kind, **refused.fields}
    return JSONResponse({"error": fields}, refused.status)
