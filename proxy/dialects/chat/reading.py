"""Repair of servers' answers to the form of OpenAI's API: the one place that knows the other forms.

`mended` repairs one frame or body: text, thinking, calls, finish reasons and errors in other shapes. `CallTable` works on a whole
answer and decides which pieces belong to the same call. An object in the right form is returned itself, so that its bytes can be
passed on. The forms are from public reports; `tests/dialects/forms.json` has them with their sources.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any

from proxy.core.errors import error_in
from proxy.core.jsontext import dumps, loads_object, loads_or_none, same_json
from proxy.core.piece import CallPart, Piece
from proxy.core.request import THOUGHT_FIELDS
from proxy.dialects.bodies import dict_in, text_in

CHUNK = "chat.completion.chunk"
"""`object` of a chunk: OpenAI's Python SDK (3.57) drops chunks with any other."""
FINISHES = frozenset({None, "", "stop", "length", "tool_calls", "content_filter", "function_call"})
"""Values of `finish_reason` in OpenAI's API, and the empty string that some servers send before the end."""
_FINISHES = {
    **dict.fromkeys(("tool_call", "tool_use", "function_calls"), "tool_calls"),
    **dict.fromkeys(("max_tokens", "max_length", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence", "complete", "load", "unload"), "stop"),
}
_FAILED = re.compile(r"error|fail|abort|cancel|crash|overload|unavailable|insufficient|timeout", re.IGNORECASE)
"""Finish reasons that mean failure: KoboldCpp's and OpenRouter's `error`, vLLM's `abort`, DeepSeek's `insufficient_system_resource`."""
_STRAY = re.compile(r"(?:\A|\n)[ \t]*</(?:think|thinking|thought|reasoning)>[ \t]*(?:\n+|\Z)")
"""Closing tag of thinking on a line of its own."""
_THOUGHTS = {"thinking", "reasoning", "thought", "reasoning_text", "summary_text"}
_MARKS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


def mended(value: Any, name: str = "delta", status: int = 200) -> dict[str, Any] | None:
    """Return a chunk, or a body (`name` is then "message"), in OpenAI's form; None for anything else.

    The same object is returned if it has that form already. A failed answer without content becomes its error alone.
    """
    # In one place, before anything compares, counts or forwards: three readers used to know some of the forms each, and
    # calls were put together in three more.
    error = error_in(value, status, answers=isinstance(value, dict) and bool(value.get("choices")))
    if not isinstance(value, dict):
        return None if error is None else {"error": error}
    listed = value.get("choices")
    choices = [_choice(each, name) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if error is None:
        error = next(filter(None, map(_failure, choices)), None)
    if error is not None and not any(map(_says, (dict_in(each, name) for each in choices))):
        same = error is value.get("error") and (listed is None or isinstance(listed, list))
        return value if same else {"error": error}
    changed: dict[str, Any] = {} if error is value.get("error") or error is None else {"error": error}
    if not isinstance(listed, list):
        if not (value.get("usage") or value.get("timings") or name == "message"):
            return None
        changed |= {"choices": []} if name == "delta" else {}
    elif not (len(choices) == len(listed) and all(map(is_, choices, listed))):
        changed["choices"] = choices
    if choices and name == "delta" and value.get("object") != CHUNK:
        changed["object"] = CHUNK
    return {**value, **changed} if changed else value


def _says(said: Mapping[str, Any]) -> bool:
    return any(value for key, value in said.items() if key != "role")


def _failure(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error that ended a choice, if any."""
    reason, inner = choice.get("finish_reason"), choice.get("error")
    if not inner and not (isinstance(reason, str) and reason not in FINISHES and _FAILED.search(reason)):
        return None
    message = f"The backend ended the answer with the finish reason `{reason}`."
    return error_in({"error": inner or message})


def _choice(choice: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a choice in OpenAI's form, the same object if it has that form."""
    content, other = choice.get(name), choice.get("message" if name == "delta" else "delta")
    if not isinstance(content, dict) or (not _says(content) and isinstance(other, dict) and _says(other)):
        content = other if isinstance(other, dict) else {"content": text_in(choice, "text")} if "text" in choice else {}
    changed: dict[str, Any] = {}
    if (fields := _said(content, whole=name == "message")) is not choice.get(name):
        changed[name] = fields
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):  # SGLang's own form
        reason = f"{text_in(reason, 'type')}: {text_in(reason, 'message')}".removesuffix(": ")
    if isinstance(reason, str) and (known := _FINISHES.get(reason.lower(), reason.lower())) in FINISHES:
        reason = known
    if reason != choice.get("finish_reason"):
        changed["finish_reason"] = reason
    return {**choice, **changed} if changed else choice


def _said(fields: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """Return a delta or a message in OpenAI's form, the same object if it has that form."""
    content, changed = fields.get("content"), dict[str, Any]()
    thought = ""
    if content is not None and not isinstance(content, str):
        changed["content"], thought = _texts(content)
    elif whole and content and (stray := _STRAY.search(content)) and "<" not in content[: stray.start()]:
        changed["content"], thought = content[stray.end() :], content[: stray.start()].strip()
    if thought and not any(fields.get(each) for each in THOUGHT_FIELDS):
        changed[THOUGHT_FIELDS[0]] = thought
    calls = fields.get("tool_calls")
    if calls:
        listed = calls if isinstance(calls, list) else [calls]
        mended_calls = [called for each in listed if (called := _call(each)) is not None]
        if not (isinstance(calls, list) and len(mended_calls) == len(calls) and all(map(is_, mended_calls, calls))):
            changed["tool_calls"] = mended_calls
    return {**fields, **changed} if changed else fields


def _texts(content: Any) -> tuple[str, str]:
    """Return the text and the thinking in content made of parts (Mistral, gpt-oss at Databricks); other parts are left out."""
    text = thought = ""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            inner = next(
                (part[key] for key in ("thinking", "reasoning", "summary", "text", "parts") if part.get(key)), ""
            )
            words = inner if isinstance(inner, str) else "".join(_texts(inner))
            if (kind := text_in(part, "type")) in _THOUGHTS:
                thought += words
            elif kind in ("", "text", "output_text"):
                text += words
    return text, thought


def _call(call: Any) -> dict[str, Any] | None:
    """Return a call, or a piece of one, in OpenAI's form, the same object if it has that form; None if it is empty."""
    if not isinstance(call, dict):
        return None
    function, changed = call.get("function"), dict[str, Any]()
    if not isinstance(function, dict):
        function = {key: call[key] for key in ("name", "arguments") if key in call}
        if not function:
            return None if call.get("type", "function") == "function" else call
        changed["function"] = function
    if not isinstance(arguments := function.get("arguments", ""), str):
        changed["function"] = {**function, "arguments": "" if arguments is None else dumps(arguments).decode()}
    for key, kind in (("id", str), ("index", int)):
        value = call.get(key)
        if value is not None and type(value) is not kind:
            changed[key] = str(value) if kind is str else int(value) if str(value).isdecimal() else None
    return {**call, **changed} if changed else call


# -- which pieces belong to the same call


@dataclass(slots=True)
class _OpenCall:
    """A call as received so far."""

    id: str
    kind: str
    name: str = ""
    index: int = -1
    """Index in the client's list; -1 until it has a name."""
    size: int = 0
    pieces: list[str] = field(default_factory=list)
    """Pieces of its arguments."""
    waiting: str = ""
    """Arguments that came before the name, or the incomplete beginning of arguments that are encoded twice, as a JSON string."""
    depth: int = 0
    quoted: bool = False
    escaped: bool = False
    over: bool = False
    """Whether its arguments are complete."""

    @property
    def is_cut(self) -> bool:
        """Return whether the arguments have begun but not ended."""
        return not self.over and (self.depth > 0 or self.quoted or bool(self.waiting))

    def reach(self, text: str) -> int:
        """Return how many characters of the next piece belong to the arguments, which end with their one JSON value."""
        if self.over:
            return 0
        start = int(self.escaped)
        self.escaped = self.escaped and not text
        for mark in _MARKS.finditer(text, start):
            sign = mark[0]
            if sign[0] == "\\":
                self.escaped = len(sign) == 1
            elif sign == '"':
                self.quoted = not self.quoted
                self.over = not (self.quoted or self.depth)
            elif not self.quoted:
                self.depth += 1 if sign in "{[" else -1
                self.over = self.depth <= 0
            if self.over:
                return mark.end()
        return len(text)


class CallTable:
    """Assigns pieces to calls, for one attempt at an answer: each call is passed on once, whole, under an index of its own.

    A piece belongs to the call with its id, else with its index, else, if it has neither id nor name, to the newest call. It begins
    another call if its id or name differs from that call's, or if that call's arguments are complete and the piece has others. If
    a piece repeats earlier arguments, only the new part counts. A call is passed on once it has a name. An object that follows its
    arguments is another call of the same function; anything else after them is dropped.
    """

    # Arguments are JSON in JSON only at their beginning: a later piece that starts with a quote once held up the rest
    # of the call.

    def __init__(self, unique: str, first: int = 0) -> None:
        """Start without calls; `unique` goes into ids for calls that came without one, `first` is the index of the first call."""
        self._unique = unique
        self._first = first
        self._by_id: dict[str, _OpenCall] = {}
        self._by_index: dict[int | None, _OpenCall] = {}
        self._calls: list[_OpenCall] = []
        self._sent = 0

    def feed(self, piece: Piece) -> Piece:
        """Return a piece with the calls and the finish reason that the client gets; the same piece if nothing changes."""
        calls = tuple(out for part in piece.calls for out in self._taken(part))
        finish = piece.finish and self._finish(piece.finish)
        if calls == piece.calls and finish == piece.finish:
            return piece
        return replace(piece, frame=b"", bare=piece.bare or calls != piece.calls, calls=calls, finish=finish)

    def _finish(self, finish: str) -> str:
        if finish not in ("stop", "tool_calls"):
            return finish
        if any(call.is_cut for call in self._calls):
            return "length"
        return "tool_calls" if self._sent else "stop"

    def _taken(self, part: CallPart) -> Iterator[CallPart]:
        if part.kind != "function":  # unknown kinds are passed on
            self._sent += 1
            yield part
            return
        call = self._find(part)
        text = part.arguments
        if len(text) >= call.size > 0 and (part.name or call.over):
            so_far = "".join(call.pieces) + call.waiting
            if text.startswith(so_far):
                text = text[len(so_far) :]
            elif call.over and same_json(text, so_far):
                text = ""
        if not call.name:
            call.name = part.name.partition("<|")[0]  # gpt-oss may append a special token to the name
        yield from self._grown(call, part, text)

    def _grown(self, call: _OpenCall, part: CallPart, text: str) -> Iterator[CallPart]:
        """Yield what the client gets as a call grows by a text, and of further calls that follow it in the same text."""
        reach = call.reach(text)
        text, rest = text[:reach], text[reach:].strip()
        call.size += len(text)
        text = call.waiting + text
        twice = not call.pieces and text.lstrip()[:1] == '"'
        if not call.name or (twice and not call.over):
            call.waiting = text
        else:
            call.waiting = ""
            if twice and loads_object(inner := loads_or_none(text) or "") is not None:
                text = inner
            call.pieces.append(text)
            begins = call.index < 0
            if begins:
                call.index, self._sent = self._first + self._sent, self._sent + 1
            if begins or text or part.extras or part == replace(part, name="", arguments="", id=""):
                name, new_id = (call.name, f"call_{self._unique}_{call.index}") if begins else ("", "")
                call_id = (call.id or new_id) if begins else ""
                yield replace(part, name=name, arguments=text, id=call_id, index=call.index, kind=call.kind)
        if rest.startswith("{") and not same_json(rest, "".join(call.pieces)):
            another = self._begin(CallPart(call.name, kind=call.kind, index=part.index))
            another.name = call.name
            yield from self._grown(another, CallPart(index=part.index), rest)

    def _find(self, part: CallPart) -> _OpenCall:
        """Find the call that a piece belongs to, or begin one."""
        newest = self._calls[-1] if self._calls and not (part.id or part.name) else None
        for call in (self._by_id.get(part.id), self._by_index.get(part.index), newest):
            if call is not None and self._continues(call, part):
                self._by_index[part.index] = call
                if part.id and not call.id:
                    call.id, self._by_id[part.id] = part.id, call
                return call
        return self._begin(part)

    def _continues(self, call: _OpenCall, part: CallPart) -> bool:
        if (part.id and call.id not in ("", part.id)) or (part.name and call.name not in ("", part.name)):
            return False
        if not call.over or not part.arguments.strip():
            return True
        return same_json(part.arguments, "".join(call.pieces)) or not (
            part.name or part.arguments.lstrip().startswith("{")
        )

    def _begin(self, part: CallPart) -> _OpenCall:
        before = self._by_index.get(part.index)
        call = _OpenCall("" if part.id in self._by_id else part.id, part.kind)
        if not part.name and before is not None and before.over:
            call.name = before.name
        self._calls.append(call)
        self._by_index[part.index] = call
        if part.id:
            self._by_id[part.id] = call
        return call
