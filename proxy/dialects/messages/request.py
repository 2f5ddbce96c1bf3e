"""Bodies of Messages requests, read into the neutral form.

Fields: Anthropic API reference, "Create a Message" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.dialects.bodies import (
    ONLY_SHOWN,
    given,
    is_count,
    joined,
    model_in,
    object_in,
    request_of,
    text_in,
    told_and_shown,
)
from proxy.dialects.messages.diagnosing import FOUND, compared_with, diagnosis, is_diagnosed, keeping
from proxy.dialects.messages.managing import (
    COMPACTION,
    compaction_in,
    edits_in,
    since_compaction,
    unknown_edits,
)
from proxy.dialects.messages.tools import is_answered, offered_after, tools_in
from proxy.errors import BadRequest
from proxy.neutral.kept import Fetch
from proxy.neutral.request import Message, Request
from proxy.neutral.thinking import Thinking, effort_in
from proxy.wire.jsontext import dumps

_Block = Mapping[str, Any]

_SAME = ("temperature", "top_p", "top_k")
"""Options that chat completions has by the same name (`top_k`: llama.cpp, vLLM, Ollama, LM Studio, OpenRouter)."""
_NOT_SAID_AGAIN = frozenset(
    {
        *("redacted_thinking", "server_tool_use", "container_upload", "fallback", COMPACTION),
        *("tool_addition", "tool_removal"),
    }
)
"""A compaction among them, because the newest one that says anything was read before."""
_UNMET = ("container", "fallbacks")
"""Options for which there is nothing behind chat completions."""
_BREAK = "\n\n"


def read(raw: bytes, *, bounded: bool = True) -> Request:
    """Read a request body. `bounded`: it has to bound its answer, as all have that want one.

    Raises:
        BadRequest: it is malformed, or asks for what only Anthropic's servers can do.
    """
    asked = object_in(raw)
    asked.pop(FOUND, None)
    made = _made(asked, bounded=bounded)
    if not (bounded and is_diagnosed(asked)):
        return made
    made = replace(made, keeping=partial(keeping, asked))
    return replace(made, reading=partial(_compared, made)) if compared_with(asked) else made


def _compared(made: Request) -> Generator[Fetch, Any, Request]:
    """The request with what comes of comparing it with an earlier one."""
    asked: Mapping[str, Any] = made.form
    before = yield Fetch(compared_with(asked), vital=False)
    return replace(made, reading=None, form={**asked, FOUND: diagnosis(before, asked)})


def _made(asked: Mapping[str, Any], *, bounded: bool) -> Request:
    messages = asked.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("`messages` must be a list of message objects.", param="messages")
    body: dict[str, Any] = {"model": model_in(asked), **given(asked, _SAME)}
    if isinstance(thread := asked.get("thread"), dict) and text_in(thread, "type") == "continue":
        raise BadRequest(
            "`thread` goes on with messages that Anthropic's servers keep, which are not here: send all of them in "
            "`messages`.",
            param="thread",
        )
    kept, messages = since_compaction(messages)
    body["messages"] = [*_system(asked.get("system")), *_conversation(messages)]
    bound = asked.get("max_tokens")
    if bounded and not (is_count(bound) or _is_nothing(bound)):
        raise BadRequest(
            "`max_tokens` must be a positive number of tokens, or 0 to have the prompt read alone.",
            param="max_tokens",
        )
    if stops := asked.get("stop_sequences"):
        body["stop"] = stops
    tools = _tools(asked, messages)
    body |= tools_in(asked, tools)
    return request_of(
        body,
        stream=asked.get("stream") is True,
        # One token is the least that every backend generates.
        bound=1 if _is_nothing(bound) else bound,
        structure=_format(asked),
        continues=bool(messages) and messages[-1].get("role") == "assistant",
        edits=edits_in(asked),
        compaction=compaction_in(asked),
        kept=kept,
        thinking=_thinking(asked),
        left_out=_left_out(asked, tools),
        form=asked,
    )


def _is_nothing(bound: Any) -> bool:
    return bound == 0 and not isinstance(bound, bool)


def _system(system: Any) -> list[Message]:
    """The system prompt as one message; none if there is none."""
    if isinstance(system, str):
        texts = [system]
    else:
        texts = [text_in(block, "text") for block in _blocks(system, "system")]
    said = [each for each in texts if each]
    return [{"role": "system", "content": _BREAK.join(said)}] if said else []


def _conversation(messages: Sequence[Any]) -> list[Message]:
    made: list[Message] = []
    reminders: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = text_in(message, "role") if isinstance(message, dict) else ""
        if role not in _ROLES:
            raise BadRequest(
                f"`{where}` must be an object with the role user, assistant or system.", param=where
            )
        content = message.get("content")
        if isinstance(content, str):
            said: list[Message] = [{"role": role, "content": content}]
        else:
            said = _ROLES[role](_blocks(content, f"{where}.content"), where)
        if role == "system" and (not said[0]["content"] or _is_cleared(messages, index)):
            continue
        if role == "system" and made:
            reminders.append(said[0]["content"])
        else:
            _remind(made, reminders)
            made += said
    _remind(made, reminders)
    return made


def _is_cleared(messages: Sequence[Any], index: int) -> bool:
    """Whether a system message is of an earlier turn, and was only meant for that."""
    later = messages[index + 1 :] if messages[index].get("clear_at") == "next_user_message" else ()
    return any(isinstance(message, dict) and message.get("role") == "user" for message in later)


def _remind(made: list[Message], reminders: list[str]) -> None:
    """System messages in the middle, said with the message before them; none are left.

    Many chat templates refuse one there. As a user's message it would be the newest, and begin a turn that nobody
    asked for. The tag is the one that Claude Code (2.1) itself puts around what it says in a user's name.
    """
    if not reminders:
        return
    tagged = [f"<system-reminder>\n{said}\n</system-reminder>" for said in reminders]
    reminders.clear()
    before = made[-1]
    if before["role"] == "assistant":
        made.append({"role": "user", "content": _BREAK.join(tagged)})
    elif isinstance(before["content"], list):
        before["content"] += [{"type": "text", "text": each} for each in tagged]
    else:
        before["content"] = _BREAK.join((before["content"], *tagged))


def _blocks(content: Any, where: str) -> list[_Block]:
    if content is None:
        return []
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadRequest(f"`{where}` must be a string or a list of content blocks.", param=where)
    return content


# -- what each role says


def _from_user(blocks: Sequence[_Block], where: str) -> list[Message]:
    """Results first, as the call before them wants it; then what the user says. A result's pictures go with that."""
    made: list[Message] = []
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            result, pictures = _result(block, where)
            made.append(result)
            parts += pictures
        else:
            parts += _parts(block, where)
    if parts:
        made.append({"role": "user", "content": joined(parts)})
    return made


def _from_assistant(blocks: Sequence[_Block], where: str) -> list[Message]:
    """One message: what it thought, said and called."""
    thoughts, texts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(text_in(block, "text"))
            case "thinking":
                thoughts.append(text_in(block, "thinking"))
            case "tool_use":
                function = {
                    "name": text_in(block, "name"),
                    "arguments": dumps(block.get("input") or {}).decode(),
                }
                calls.append({"id": text_in(block, "id"), "type": "function", "function": function})
            case kind:
                if not _only_anthropic(kind):
                    raise _unknown(kind, where)
    message: Message = {"role": "assistant", "content": _BREAK.join(filter(None, texts))}
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    if thought := _BREAK.join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    return [message]


def _from_system(blocks: Sequence[_Block], where: str) -> list[Message]:
    del where
    said = filter(None, (text_in(block, "text") for block in blocks))
    return [{"role": "system", "content": _BREAK.join(said)}]


_ROLES: dict[str, Callable[[Sequence[_Block], str], list[Message]]] = {
    "user": _from_user,
    "assistant": _from_assistant,
    "system": _from_system,
}


def _result(block: _Block, where: str) -> tuple[Message, list[dict[str, Any]]]:
    """A tool message, and the pictures in the result, for which tool messages have no room."""
    content = block.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else []
    if not parts:
        for inner in _blocks(content, where):
            parts += _parts(inner, where)
    said, pictures = told_and_shown(parts)
    if block.get("is_error") is True and "error" not in said[:200].lower():
        said = f"Error: {said}"
    if pictures and not said:
        said = ONLY_SHOWN
    return {"role": "tool", "tool_call_id": text_in(block, "tool_use_id"), "content": said}, pictures


def _parts(block: _Block, where: str) -> list[dict[str, Any]]:
    """A block as parts of a user's message."""
    match block.get("type"):
        case "text":
            return [{"type": "text", "text": text_in(block, "text")}]
        case "image":
            return [{"type": "image_url", "image_url": {"url": _url(block.get("source"), where)}}]
        case "document":
            return _document(block, where)
        case "search_result":
            heading = {"type": "text", "text": f"{text_in(block, 'title')} ({text_in(block, 'source')})"}
            inner = [part for each in _blocks(block.get("content"), where) for part in _parts(each, where)]
            return [heading, *inner]
        case "tool_reference":
            return [{"type": "text", "text": text_in(block, "tool_name")}]
        case kind if _only_anthropic(kind):
            return []
        case kind:
            raise _unknown(kind, where)


def _document(block: _Block, where: str) -> list[dict[str, Any]]:
    told = _BREAK.join(filter(None, (text_in(block, "title"), text_in(block, "context"))))
    heading = [{"type": "text", "text": told}] if told else []
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    match source.get("type"):
        case "text":
            return [*heading, {"type": "text", "text": text_in(source, "data")}]
        case "content":
            content = source.get("content")
            if isinstance(content, str):
                return [*heading, {"type": "text", "text": content}]
            return [*heading, *(part for each in _blocks(content, where) for part in _parts(each, where))]
        case _:
            name = text_in(block, "title") or "document.pdf"
            return [{"type": "file", "file": {"filename": name, "file_data": _url(source, where)}}]


def _url(source: Any, where: str) -> str:
    """Where a picture or file is; one that is sent along becomes a `data:` URL."""
    source = source if isinstance(source, dict) else {}
    match source.get("type"):
        case "base64":
            return f"data:{text_in(source, 'media_type')};base64,{text_in(source, 'data')}"
        case "url":
            return text_in(source, "url")
        case kind:
            raise BadRequest(
                f"`{where}` has a source of the type {kind!r}, which the backends behind this proxy cannot fetch: send "
                "it as `base64` or as a `url`.",
                param=where,
            )


def _only_anthropic(kind: Any) -> bool:
    """Whether a block tells of something that Anthropic's servers did, and that means nothing elsewhere."""
    return isinstance(kind, str) and (kind in _NOT_SAID_AGAIN or kind.endswith("_tool_result"))


def _unknown(kind: Any, where: str) -> BadRequest:
    return BadRequest(
        f"`{where}` has a content block of the type {kind!r}, which is not known here. Send text, image, document, "
        "thinking, tool_use or tool_result blocks.",
        param=where,
    )


# -- options


def _tools(asked: Mapping[str, Any], messages: Sequence[Any]) -> list[_Block]:
    """Those offered at the beginning and those that were added since, less those that were removed."""
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return offered_after(_blocks(asked.get("tools"), "tools"), (b for b in blocks if isinstance(b, dict)))


def _left_out(asked: Mapping[str, Any], tools: Sequence[_Block]) -> tuple[str, ...]:
    """What the client asks for that nobody here does, and that it can do without."""
    kinds = [text_in(tool, "type") for tool in tools if is_answered(tool)]
    config = asked.get("output_config")
    budget = ["task_budget"] if isinstance(config, dict) and config.get("task_budget") else []
    return tuple(dict.fromkeys((*kinds, *unknown_edits(asked), *filter(asked.get, _UNMET), *budget)))


def _thinking(asked: Mapping[str, Any]) -> Thinking | None:
    """How much is to be thought: `thinking`, and `output_config.effort`, with which an adaptive model decides itself."""
    thinking, config = (
        value if isinstance(value, dict) else {}
        for value in (asked.get("thinking"), asked.get("output_config"))
    )
    effort = _effort_of_turn(asked) or effort_in(config, "effort")
    kind = text_in(thinking, "type")
    if kind == "disabled":
        return Thinking(on=False)
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        return Thinking(on=True, effort=effort, budget=budget if is_count(budget) else None)
    return Thinking(effort=effort) if effort else None


def _effort_of_turn(asked: Mapping[str, Any]) -> str:
    """The effort that system messages at the end say for this turn; empty: they do not."""
    for message in reversed(asked["messages"]):
        if message.get("role") != "system":
            break
        config = message.get("output_config")
        if isinstance(config, dict) and (effort := effort_in(config, "effort")):
            return effort
    return ""


def _format(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON schema that the answer has to follow, if any; it moved from `output_format` to `output_config`."""
    config = asked.get("output_config")
    places: Iterable[Any] = (
        config.get("format") if isinstance(config, dict) else None,
        asked.get("output_format"),
    )
    for form in places:
        if isinstance(form, dict) and form.get("type") == "json_schema":
            named = {"name": "answer", "schema": form.get("schema") or {}, "strict": True}
            return {"type": "json_schema", "json_schema": named}
    return None
