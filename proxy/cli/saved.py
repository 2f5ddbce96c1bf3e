"""Saved conversations, as the requests that their turns were: a chat request, lines of them, or an export of Open WebUI or ChatGPT."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.cli import CommandError

Json = Mapping[str, Any]


class Saved(NamedTuple):
    """A saved conversation."""

    title: str
    requests: Sequence[dict[str, Any]]
    """Chat requests, one for each turn."""


def conversations_in(text: str) -> Iterator[Saved]:
    """Yield the conversations in a file; requests that are saved as JSON Lines are the turns of one.

    Raises:
        CommandError: the file holds none.
    """
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = [_line(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    entries = [each for each in (parsed if isinstance(parsed, list) else [parsed]) if isinstance(each, dict)]
    requests = [each for each in entries if isinstance(each.get("messages"), list)]
    chats = [{"chat": _of_chatgpt(each)} if isinstance(each.get("mapping"), dict) else each for each in entries]
    chats = [each for each in chats if isinstance(each.get("chat"), dict)]
    if not (requests or chats):
        raise CommandError(
            "the file has neither chat requests (`messages`) nor chats exported from Open WebUI (`chat`) or ChatGPT (`mapping`)"
        )
    if requests:
        yield Saved("", requests)
    for each in chats:
        yield Saved(str(each.get("title") or each["chat"].get("title") or ""), [*_turns(each["chat"])])


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CommandError(f"line {number} is not JSON: {error}") from None


def _turns(chat: Json) -> Iterator[dict[str, Any]]:
    """Yield the request of each turn of a chat of Open WebUI (0.5 and later: a tree of messages; before: a list)."""
    system = chat.get("system") or (chat.get("params") or {}).get("system")
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    model = next(iter(chat.get("models") or ()), None)
    for message in _branch(chat):
        sent.append({"role": message.get("role"), "content": message.get("content") or ""})
        if message.get("role") == "user":
            named = next(iter(message.get("models") or ()), model)
            yield {"messages": list(sent)} | ({"model": named} if named else {})


def _branch(chat: Json) -> Sequence[Json]:
    """Return the messages of the branch that the chat shows."""
    history = chat.get("history") or {}
    known, at, seen = history.get("messages") or {}, history.get("currentId"), dict[str, Json]()
    while isinstance(at, str) and at in known and at not in seen:
        seen[at] = known[at]
        at = known[at].get("parentId")
    return [each for each in reversed(seen.values()) if each.get("role")] or chat.get("messages") or ()


def _of_chatgpt(chat: Json) -> Json:
    """Return a chat in `conversations.json` in the form of Open WebUI's; messages without text, such as hidden ones, have no role."""
    known = {}
    for name, node in chat["mapping"].items():
        message = node.get("message") or {}
        content = message.get("content") or {}
        # Code and what it printed have `text` instead of `parts`; a part is a text, an image, or a recording with its `text`.
        parts = [*(content.get("parts") or ()), content]
        texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
        text = "\n".join(each for each in texts if isinstance(each, str))
        role = text and (message.get("author") or {}).get("role")
        known[name] = {"parentId": node.get("parent"), "role": role, "content": text}
    return {**chat, "history": {"messages": known, "currentId": chat.get("current_node")}}
