"""Points at which a conversation may be cut: a tool call and all of its results are never separated.

Calls and results are fields and roles of their own (OpenAI API, "Function calling"), or text in messages of the assistant
and the user (`proxy.core.history.embedded`); a history may hold both.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from proxy.core.history.embedded import calls_in, only_results, texts_of
from proxy.core.history.marks import is_instruction, is_summary
from proxy.core.jsontext import omit
from proxy.core.request import SYSTEM_ROLES, Message, leading_system

T = TypeVar("T")

_OTHER_SPEAKER = {"user": "assistant", "assistant": "user"}


def cut_points(messages: Sequence[Message]) -> list[int]:
    """Return the indexes before which the history may be cut, in order; 0 and the length are always among them.

    A cut is legal if the next message is not a tool result (results follow their call directly, OpenAI API, "Function
    calling") and no later result answers an earlier call.
    """
    if not messages:
        return [0]
    last_results = _last_results(messages)
    points, last_answered = [0], 0
    for index, message in enumerate(messages):
        if index > last_answered and not is_result(message):
            points.append(index)
        last_answered = max(last_answered, last_results.get(index, 0))
    return [*points, len(messages)]


def is_result(message: Message) -> bool:
    """Return whether a message holds tool results and nothing else, in either form."""
    role = message.get("role")
    return role == "tool" or (role == "user" and only_results(message))


def is_user(message: Message) -> bool:
    """Return whether the user speaks in a message.

    A user message that holds nothing but tool results does not count, nor one in which the system speaks.
    """
    return message.get("role") == "user" and not is_instruction(message) and not only_results(message)


def is_system(message: Message) -> bool:
    """Return whether the system speaks in a message: in a role of its own, or in a user message that holds nothing else."""
    role = message.get("role")
    return role in SYSTEM_ROLES or (role == "user" and is_instruction(message))


def calls_of(message: Message) -> list[dict[str, Any]]:
    """Return the tool calls of a message, leaving out malformed ones that are not objects."""
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _last_results(messages: Sequence[Message]) -> dict[int, int]:
    """Return the index of each calling message's last result, by the index of the caller; ids may be reused.

    A result as text has no id: it answers the assistant's latest message.
    """
    callers: dict[str, int] = {}
    written: int | None = None
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        role = message.get("role")
        call = callers.get(str(message.get("tool_call_id"))) if role == "tool" else written
        if role == "assistant":
            written = index if any(calls_in(text) for _, text in texts_of(message)) else None
        if role != "tool":
            callers.update((str(call.get("id")), index) for call in calls_of(message))
        if call is not None and is_result(message):
            last[call] = index
    return last


def bridge_needed(before: Message | None, after: Sequence[Message]) -> str | None:
    """Return the role that must speak between a message and its successors so that user and assistant alternate.

    None if they already do. System messages in between are skipped. A conversation begins with the user.
    """
    follower = next((m.get("role") for m in after if m.get("role") not in SYSTEM_ROLES), None)
    speaker = before.get("role") if before is not None else "assistant"
    if speaker != follower or speaker not in _OTHER_SPEAKER:
        return None
    return _OTHER_SPEAKER[str(speaker)]


def next_speakers(messages: Sequence[Message]) -> list[Message | None]:
    """Return, for every index and the end, the first message at or after it that is not the system's."""
    following: Message | None = None
    speakers = [following]
    for message in reversed(messages):
        following = following if message.get("role") in SYSTEM_ROLES else message
        speakers.append(following)
    return speakers[::-1]


def newest_user(messages: Sequence[Message]) -> int | None:
    """Return the index of the last message in which the user speaks; the newest user turn begins there."""
    for index in range(len(messages) - 1, -1, -1):  # each request needs it more than once
        if is_user(messages[index]):
            return index
    return None


def unread_from(messages: Sequence[Message]) -> int:
    """Return the index after which there are only results, which the model has not read yet."""
    end = len(messages)
    while end > 0 and is_result(messages[end - 1]):
        end -= 1
    return end


def newest_place(messages: Sequence[Message]) -> int | None:
    """Return the index of the first result that the model has not read yet, or else of the newest user message."""
    unread = unread_from(messages)
    return unread if unread < len(messages) else newest_user(messages)


def first_user(messages: Sequence[Message]) -> int | None:
    """Return the index of the user's first message, which stays pinned because it usually states the task.

    None if a summary has replaced it.
    """
    return next((None if is_summary(message) else i for i, message in enumerate(messages) if is_user(message)), None)


def in_front(message: Message, text: str) -> Message:
    """Return a message with a text in front of its own words, which stay unchanged."""
    content: Any = message.get("content") or ""
    front: Any = [{"type": "text", "text": text}] if isinstance(content, list) else f"{text}\n\n"
    return {**message, "content": front + content}


def signed(message: Message) -> Message:
    """Move the speaker's name from its field to the front of the text, so that the message can be joined with others."""
    name, content = message.get("name"), message.get("content")
    if not isinstance(name, str) or not content:
        return message
    signed = f"{name}: {content}" if isinstance(content, str) else [{"type": "text", "text": f"{name}: "}, *content]
    return {**omit(message, "name"), "content": signed}


def joined(messages: Sequence[Message]) -> Message:
    """Join messages of one role into one, with blank lines between; of a field that several have, the latest value counts.

    System text comes last, since its mark makes everything up to the end of the message the system's.
    """
    # Without this, messages of several speakers had only the last one's name.
    if len(messages) == 1:
        return messages[0]
    fields: Message = {}
    if len({message.get("name") for message in messages}) > 1:  # the field could name only one of the speakers
        messages = [signed(message) for message in messages]
    for message in messages:
        fields.update(message)
    ordered = sorted(messages, key=lambda m: m.get("role") == "user" and is_instruction(m))
    contents = [content for message in ordered if (content := message.get("content"))]
    if not any(isinstance(content, list) for content in contents):
        return {**fields, "content": "\n\n".join(map(str, contents))}
    parts: list[Any] = []
    for content in contents:
        parts += [{"type": "text", "text": "\n\n"}] if parts else []
        parts += content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
    return {**fields, "content": parts}


def without_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with the leading system messages moved to the beginning of the first user message."""
    lead = leading_system(messages)
    begin = lead + any(message.get("role") == "user" for message in messages[lead : lead + 1])
    first = [{**message, "role": "user"} for message in messages[:begin]]
    return [joined(first), *messages[begin:]] if lead else messages


class Pending(Generic[T]):
    """Queue of calls that wait for their results. Keys are any JSON, and several values may share one.

    Taking a key's first value takes constant time, however many values wait.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[int, T] = OrderedDict()
        self._numbers: defaultdict[Any, deque[int]] = defaultdict(deque)
        self._added = 0

    def __iter__(self) -> Iterator[T]:
        return iter(self._values.values())

    def __bool__(self) -> bool:
        return self._added > 0

    def add(self, key: Any, value: T) -> None:
        """Append a value."""
        self._values[self._added] = value
        self._numbers[_hashable(key)].append(self._added)
        self._added += 1

    def take(self, key: Any) -> T | None:
        """Remove and return the first value of a key, or None."""
        numbers = self._numbers.get(_hashable(key), ())
        while numbers:
            if (number := numbers.popleft()) in self._values:
                return self._values.pop(number)
        return None

    def take_first(self) -> T | None:
        """Remove and return the first value, or None."""
        return self._values.popitem(last=False)[1] if self._values else None


def _hashable(key: Any) -> Any:
    return key if key is None or isinstance(key, str) else (repr(key),)
