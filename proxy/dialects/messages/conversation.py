"""The messages that the system prompt and the conversation of a Messages request come to.

Blocks: Anthropic API reference, "Create a Message" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps
from proxy.core.request import Message
from proxy.dialects.bodies import ONLY_SHOWN, joined, split_result, text_in
from proxy.dialects.messages.managing import COMPACTION

ContentBlock: TypeAlias = Mapping[str, Any]

_OMITTED = {
    *("redacted_thinking", "server_tool_use", "container_upload", "fallback", COMPACTION),
    *("tool_addition", "tool_removal"),
}
"""A compaction among them, because the newest one that says anything was read before."""
_BREAK = "\n\n"


def system_of(system: Any) -> list[Message]:
    """The system prompt as one message; none if there is none."""
    texts = [system] if isinstance(system, str) else [text_in(block, "text") for block in blocks_in(system, "system")]
    filled = [each for each in texts if each]
    return [{"role": "system", "content": _BREAK.join(filled)}] if filled else []


def messages_of(messages: Sequence[Any]) -> list[Message]:
    """The messages that those of a request come to.

    Raises:
        BadRequest: one of them is malformed, or of a kind that is not known.
    """
    result: list[Message] = []
    reminders: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = text_in(message, "role") if isinstance(message, dict) else ""
        if role not in _ROLES:
            raise BadRequest(f"`{where}` must be an object with the role user, assistant or system.", param=where)
        content = message.get("content")
        if isinstance(content, str):
            converted: list[Message] = [{"role": role, "content": content}]
        else:
            converted = _ROLES[role](blocks_in(content, f"{where}.content"), where)
        if role == "system" and (not converted[0]["content"] or _is_cleared(messages, index)):
            continue
        if role == "system" and result:
            reminders.append(converted[0]["content"])
        else:
            _remind(result, reminders)
            result += converted
    _remind(result, reminders)
    return result


def _is_cleared(messages: Sequence[Any], index: int) -> bool:
    """Return whether a system message is of an earlier turn, and was only meant for that."""
    later = messages[index + 1 :] if messages[index].get("clear_at") == "next_user_message" else ()
    return any(isinstance(message, dict) and message.get("role") == "user" for message in later)


def _remind(result: list[Message], reminders: list[str]) -> None:
    """System messages in the middle, said with the message before them; none are left.

    Many chat templates refuse one there. As a user's message it would be the newest, and begin a turn that nobody
    asked for. The tag is the one that Claude Code (2.1) itself puts around what it says in a user's name.
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


def blocks_in(content: Any, where: str) -> list[ContentBlock]:
    """The blocks of a content, which stands `where`; none where there is no content.

    Raises:
        BadRequest: it is no list of objects.
    """
    if content is None:
        return []
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadRequest(f"`{where}` must be a string or a list of content blocks.", param=where)
    return content


# -- what each role says


def _from_user(blocks: Sequence[ContentBlock], where: str) -> list[Message]:
    """Results first, as the call before them wants it; then what the user says. A result's pictures go with that."""
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


def _from_assistant(blocks: Sequence[ContentBlock], where: str) -> list[Message]:
    """One message: what it thought, said and called."""
    thoughts, texts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(text_in(block, "text"))
            case "thinking":
                thoughts.append(text_in(block, "thinking"))
            case "tool_use":
                function = {"name": text_in(block, "name"), "arguments": dumps(block.get("input") or {}).decode()}
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


def _from_system(blocks: Sequence[ContentBlock], where: str) -> list[Message]:
    del where
    texts = filter(None, (text_in(block, "text") for block in blocks))
    return [{"role": "system", "content": _BREAK.join(texts)}]


_ROLES: dict[str, Callable[[Sequence[ContentBlock], str], list[Message]]] = {
    "user": _from_user,
    "assistant": _from_assistant,
    "system": _from_system,
}


def _result(block: ContentBlock, where: str) -> tuple[Message, list[dict[str, Any]]]:
    """A tool message, and the pictures in the result, for which tool messages have no room."""
    content = block.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else []
    if not parts:
        for inner in blocks_in(content, where):
            parts += _parts(inner, where)
    text, pictures = split_result(parts)
    if block.get("is_error") is True and "error" not in text[:200].lower():
        text = f"Error: {text}"
    if pictures and not text:
        text = ONLY_SHOWN
    return {"role": "tool", "tool_call_id": text_in(block, "tool_use_id"), "content": text}, pictures


def _parts(block: ContentBlock, where: str) -> list[dict[str, Any]]:
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
            inner = [part for each in blocks_in(block.get("content"), where) for part in _parts(each, where)]
            return [heading, *inner]
        case "tool_reference":
            return [{"type": "text", "text": text_in(block, "tool_name")}]
        case kind if _only_anthropic(kind):
            return []
        case kind:
            raise _unknown(kind, where)


def _document(block: ContentBlock, where: str) -> list[dict[str, Any]]:
    title = _BREAK.join(filter(None, (text_in(block, "title"), text_in(block, "context"))))
    heading = [{"type": "text", "text": title}] if title else []
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    match source.get("type"):
        case "text":
            return [*heading, {"type": "text", "text": text_in(source, "data")}]
        case "content":
            content = source.get("content")
            if isinstance(content, str):
                return [*heading, {"type": "text", "text": content}]
            return [*heading, *(part for each in blocks_in(content, where) for part in _parts(each, where))]
        case _:
            name = text_in(block, "title") or "document.pdf"
            return [{"type": "file", "file": {"filename": name, "file_data": _url(source, where)}}]


def _url(source: Any, where: str) -> str:
    """The URL of a picture or file; one that is sent along becomes a `data:` URL."""
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
    """Return whether a block tells of something that Anthropic's servers did, and that means nothing elsewhere."""
    return isinstance(kind, str) and (kind in _OMITTED or kind.endswith("_tool_result"))


def _unknown(kind: Any, where: str) -> BadRequest:
    return BadRequest(
        f"`{where}` has a content block of the type {kind!r}, which is not known here. Send text, image, document, "
        "thinking, tool_use or tool_result blocks.",
        param=where,
    )
