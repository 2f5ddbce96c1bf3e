"""Translation of a Messages request's system prompt and conversation into neutral messages.

Blocks: Anthropic API reference, "Create a Message" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`.
"""

from collections.abc import Sequence
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.jsontext import JsonObject, are_objects, dumps
from proxy.core.piece import joined_fields
from proxy.core.request import COMPACTION, Message
from proxy.dialects.bodies import ONLY_SHOWN, dict_in, enclosed_in, joined, split_result, text_in

_ROLES = {"user", "assistant", "system"}
_OMITTED = {
    *("redacted_thinking", "server_tool_use", "container_upload", "fallback", COMPACTION),
    *("tool_addition", "tool_removal"),
}
"""Kinds of blocks left out; compactions too, because the newest one with content was read before (`request._since_compaction`)."""
_BREAK = "\n\n"


def system_of(system: Any) -> list[Message]:
    """Return the system prompt as one message; no message if it is empty."""
    text = system if isinstance(system, str) else _text_of(blocks_in(system, "system"))
    return [{"role": "system", "content": text}] if text else []


def messages_of(messages: Sequence[Any]) -> list[Message]:
    """Translate the messages of a request.

    Raises:
        BadRequest: a message is malformed, or has a block of an unknown kind.
    """
    result: list[Message] = []
    reminders: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = text_in(message, "role") if isinstance(message, dict) else ""
        if role not in _ROLES:
            raise BadRequest(f"`{where}` must be an object with the role user, assistant or system.", param=where)
        content = message.get("content")
        blocks = [] if isinstance(content, str) else blocks_in(content, f"{where}.content")
        if role == "system" and result:
            reminders += filter(None, [content if isinstance(content, str) else _text_of(blocks)])
            continue
        _remind(result, reminders)
        if isinstance(content, str):
            result.append({"role": role, "content": content})
        elif role == "user":
            result += _from_user(blocks, where)
        else:
            result += system_of(blocks) if role == "system" else [_from_assistant(blocks, where)]
    _remind(result, reminders)
    return result


def _remind(result: list[Message], reminders: list[str]) -> None:
    """Add system messages from the middle of a conversation to the message before them, and clear `reminders`.

    Many chat templates refuse system messages there. A user message of their own would be the newest, and begin a turn that
    nobody asked for. The tag is the one with which Claude Code (2.1) itself marks its own words in user messages.
    """
    if not reminders:
        return
    tagged = [f"<system-reminder>\n{text}\n</system-reminder>" for text in reminders]
    reminders.clear()
    before = result[-1]
    if before["role"] == "assistant":
        result.append({"role": "user", "content": _BREAK.join(tagged)})
    elif isinstance(before["content"], list):
        before["content"] += [{"type": "text", "text": each} for each in tagged]
    else:
        before["content"] = _BREAK.join((before["content"], *tagged))


def blocks_in(content: Any, where: str) -> list[JsonObject]:
    """Return the blocks of a content; empty if it is None. `where` names it in the error.

    Raises:
        BadRequest: the content is not a list of objects.
    """
    if content is None:
        return []
    if not are_objects(content):
        raise BadRequest(f"`{where}` must be a string or a list of content blocks.", param=where)
    return content


def _text_of(blocks: Sequence[JsonObject], name: str = "text") -> str:
    return _BREAK.join(filter(None, (text_in(block, name) for block in blocks)))


# -- messages by role


def _from_user(blocks: Sequence[JsonObject], where: str) -> list[Message]:
    """Translate a user's message: results first, since they have to follow their calls, then the user's words and all pictures."""
    result: list[Message] = []
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            answer, pictures = _result(block, where)
            result.append(answer)
            parts += pictures
        else:
            parts += _parts(block, where)
    if parts:
        result.append({"role": "user", "content": joined(parts)})
    return result


def _from_assistant(blocks: Sequence[JsonObject], where: str) -> Message:
    """Translate an assistant's message into one with reasoning, text and calls."""
    by_kind: dict[str, list[JsonObject]] = {"text": [], "thinking": [], "tool_use": []}
    for block in blocks:
        kind = text_in(block, "type")
        if kind in by_kind:
            by_kind[kind].append(block)
        elif not _is_omitted(kind):
            raise _unknown(kind, where)
    calls = [
        {
            "id": text_in(block, "id"),
            "type": "function",
            "function": {"name": text_in(block, "name"), "arguments": dumps(block.get("input") or {}).decode()},
        }
        for block in by_kind["tool_use"]
    ]
    message: Message = {"role": "assistant", "content": _text_of(by_kind["text"])}
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    if thought := _text_of(by_kind["thinking"], "thinking"):
        message["reasoning_content"] = thought
    for block in by_kind["thinking"]:
        message |= joined_fields(message, enclosed_in(text_in(block, "signature")))
    return message


def _result(block: JsonObject, where: str) -> tuple[Message, list[dict[str, Any]]]:
    """Return a result as a tool message, and its pictures separately, since tool messages take text only."""
    text, pictures = split_result(_inner_parts(block.get("content"), where))
    if block.get("is_error") is True and "error" not in text[:200].lower():
        text = f"Error: {text}"
    if pictures and not text:
        text = ONLY_SHOWN
    return {"role": "tool", "tool_call_id": text_in(block, "tool_use_id"), "content": text}, pictures


def _inner_parts(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for block in blocks_in(content, where) for part in _parts(block, where)]


def _parts(block: JsonObject, where: str) -> list[dict[str, Any]]:
    """Return a block as parts of a user's message."""
    kind = text_in(block, "type")
    if kind in ("text", "tool_reference"):
        return [{"type": "text", "text": text_in(block, "text") or text_in(block, "tool_name")}]
    if kind == "image":
        return [{"type": "image_url", "image_url": {"url": _url(block, where)}}]
    if kind in ("document", "search_result"):
        return _document(block, where)
    if _is_omitted(kind):
        return []
    raise _unknown(kind, where)


def _document(block: JsonObject, where: str) -> list[dict[str, Any]]:
    """Return a document or a search result as parts: its heading, and its text or file."""
    source = dict_in(block, "source")
    heading = _BREAK.join(filter(None, (text_in(block, name) for name in ("title", "source", "context"))))
    parts = [{"type": "text", "text": heading}] if heading else []
    if block.get("type") == "search_result" or source.get("type") == "content":
        return [*parts, *_inner_parts(source.get("content", block.get("content")), where)]
    if source.get("type") == "text":
        return [*parts, {"type": "text", "text": text_in(source, "data")}]
    name = text_in(block, "title") or "document.pdf"
    return [{"type": "file", "file": {"filename": name, "file_data": _url(block, where)}}]


def _url(block: JsonObject, where: str) -> str:
    """Return the URL of a picture or file; base64 content becomes a `data:` URL."""
    source = dict_in(block, "source")
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


def _is_omitted(kind: str) -> bool:
    """Return whether a block only makes sense to Anthropic's servers, and so is left out."""
    return kind in _OMITTED or kind.endswith("_tool_result")


def _unknown(kind: str, where: str) -> BadRequest:
    return BadRequest(
        f"`{where}` has a content block of the type {kind!r}, which is not known here. Send text, image, document, "
        "thinking, tool_use or tool_result blocks.",
        param=where,
    )
