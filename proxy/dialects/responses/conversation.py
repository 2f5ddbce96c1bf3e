"""The messages that the items of a conversation come to.

Kinds: OpenAI API reference, "Create a model response" (2026), and PyPI `openai` 3.54.0, `types/responses/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.core.errors import BadRequest
from proxy.core.jsontext import dumps
from proxy.core.request import Message
from proxy.dialects.bodies import ONLY_SHOWN, joined, split_result, text_in
from proxy.dialects.responses.tools import SEARCH, function_name, functions_offered, is_run_by_client, written_freely

Item: TypeAlias = Mapping[str, Any]

ADDED = "added_tools"
"""Where what was made available on the way is kept beside the fields of a request, for whoever writes its answer."""
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_OMITTED = {
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("computer_call", "computer_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request"),
    *("mcp_approval_response", "configuration_update", "program", "program_output", "additional_tools"),
}
"""Items that tell of something on OpenAI's servers."""
_SEARCHES = (f"{SEARCH}_call", f"{SEARCH}_output")
"""The same, but where the client looks for tools."""


def items_in(value: Any) -> list[Item]:
    """The items of an `input`.

    Raises:
        BadRequest: it is neither a text nor a list of objects.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest("`input` must be a string or a list of items.", param="input")
    return value


def messages_of(items: Sequence[Item]) -> list[Message]:
    """The messages that these items come to.

    Raises:
        BadRequest: one of them is malformed, or of a kind that is not known.
    """
    conversation = _Conversation()
    for index, item in enumerate(items):
        kind = text_in(item, "type") or "message"
        if kind in _OMITTED or (kind in _SEARCHES and not is_run_by_client(item)):
            continue
        take = _TAKES.get(kind)
        if take is None:
            raise BadRequest(f"`input[{index}]` is of the type {kind!r}, which is not known here.", param="input")
        take(conversation, item, f"input[{index}]")
    conversation.show_pictures()
    return conversation.messages


class _Conversation:
    """Messages made of items: an assistant's thought, words and calls are items of their own, and one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._message: Message | None = None
        """The assistant's message that is being put together."""
        self._pictures: list[dict[str, Any]] = []
        """Of results, for which tool messages have no room."""

    def message(self, item: Item, where: str) -> None:
        """Words of anyone."""
        role = _ROLES.get(text_in(item, "role"))
        if role is None:
            raise BadRequest(f"`{where}.role` must be user, assistant, system or developer.", param=where)
        content = _content(item.get("content"), where)
        if role != "assistant":
            self.show_pictures()
            self._add({"role": role, "content": content})
            return
        text = content if isinstance(content, str) else ""
        self._open_message()["content"] = text

    def thought(self, item: Item, where: str) -> None:
        """Reasoning, as far as it is told."""
        del where
        parts = [*parts_of(item.get("content")), *parts_of(item.get("summary"))]
        if text := "\n\n".join(filter(None, (text_in(part, "text") for part in parts))):
            self._open_message()["reasoning_content"] = text

    def call(self, item: Item, where: str) -> None:
        """A tool call, of any kind."""
        del where
        kind = text_in(item, "type")
        name = text_in(item, "name") or kind.removesuffix("_call")
        match kind:
            case "function_call":
                arguments = text_in(item, "arguments")
            case "custom_tool_call":
                arguments = dumps(written_freely(text_in(item, "input"))).decode()
            case "tool_search_call":
                value = item.get("arguments")
                arguments = dumps(value if isinstance(value, dict) else {}).decode()
            case _:
                value = item.get("operation" if kind == "apply_patch_call" else "action")
                arguments = dumps(value if isinstance(value, dict) else {}).decode()
        function = {"name": function_name(name, text_in(item, "namespace")), "arguments": arguments}
        call_id = text_in(item, "call_id") or text_in(item, "id")
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def result(self, item: Item, where: str) -> None:
        """Add the result of a tool."""
        output = item.get("output")
        if isinstance(output, list) and not _is_content(output):
            output = dumps(output).decode()  # a shell's: outputs with their exit codes
        content = _content(output if output is not None else text_in(item, "status"), where)
        text = content if isinstance(content, str) else ""
        if isinstance(content, list):
            text, pictures = split_result(content)
            self._pictures += pictures
            text = text or ONLY_SHOWN
        call_id = text_in(item, "call_id") or text_in(item, "id")
        self._add({"role": "tool", "tool_call_id": call_id, "content": text})

    def found(self, item: Item, where: str) -> None:
        """Add the result of a search for tools; they are offered like all others (`tools_added`)."""
        names = ", ".join(functions_offered(parts_of(item.get("tools"))))
        self.result({**item, "output": f"Can be called now: {names}." if names else "No tool was found."}, where)

    def show_pictures(self) -> None:
        """Add the pictures of the results before."""
        if self._pictures:
            self._add({"role": "user", "content": self._pictures})
            self._pictures = []

    def _open_message(self) -> Message:
        """The assistant's message if nothing but thought is in it, else another one."""
        if self._message is not None and (self._message["content"] is not None or "tool_calls" in self._message):
            self._message = None
        return self._assistant()

    def _assistant(self) -> Message:
        if self._message is None:
            self.show_pictures()
            message: Message = {"role": "assistant", "content": None}
            self._add(message)
            self._message = message
        return self._message

    def _add(self, message: Message) -> None:
        self._message = None
        self.messages.append(message)


_CALLS = ("function", "custom_tool", "local_shell", "shell", "apply_patch")
_TAKES: Mapping[str, Callable[[_Conversation, Item, str], None]] = {
    "message": _Conversation.message,
    "reasoning": _Conversation.thought,
    f"{SEARCH}_call": _Conversation.call,
    f"{SEARCH}_output": _Conversation.found,
    **{f"{kind}_call": _Conversation.call for kind in _CALLS},
    **{f"{kind}_call_output": _Conversation.result for kind in _CALLS},
}


def tools_in(form: Mapping[str, Any]) -> list[Item]:
    """The tools of a request, with those that were made available on the way."""
    return [*parts_of(form.get("tools")), *parts_of(form.get(ADDED))]


def tools_added(items: Sequence[Item]) -> list[Item]:
    """Tools that were made available on the way: by the developer, or because a search of the client's found them."""
    added = [item for item in items if text_in(item, "type") in ("additional_tools", "tool_search_output")]
    return [tool for item in added for tool in parts_of(item.get("tools"))]


def updated(items: Sequence[Item], name: str, value: Any) -> dict[str, Any]:
    """An option (`reasoning`, `text`) as the request says it, with what the conversation has changed of it since."""
    options = dict(value) if isinstance(value, dict) else {}
    for item in items:
        if text_in(item, "type") == "configuration_update" and isinstance(update := item.get(name), dict):
            options |= update
    return options


# -- content


def _content(content: Any, where: str) -> Any:
    """A text, or parts where there is anything else."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise BadRequest(f"`{where}` must have a string or a list of parts.", param=where)
    return joined([_part(part, where) for part in content])


def _part(part: Item, where: str) -> dict[str, Any]:
    match text_in(part, "type"):
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return {"type": "text", "text": text_in(part, "text")}
        case "refusal":
            return {"type": "text", "text": text_in(part, "refusal")}
        case "input_image" if url := text_in(part, "image_url"):
            detail = text_in(part, "detail")
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        case "input_file" if data := text_in(part, "file_data") or text_in(part, "file_url"):
            return {"type": "file", "file": {"filename": text_in(part, "filename") or "file", "file_data": data}}
        case "input_audio":
            return dict(part)
        case kind:
            raise BadRequest(
                f"`{where}` has a part of the type {kind!r} that cannot be read here: send text, or an image or a file "
                "with its data or URL; files are not kept here.",
                param=where,
            )


def parts_of(content: Any) -> list[Item]:
    """The objects in a list; none in anything else."""
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _is_content(output: Sequence[Any]) -> bool:
    return all(isinstance(part, dict) and text_in(part, "type").startswith(("input_", "output_")) for part in output)
