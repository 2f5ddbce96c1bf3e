"""History repair, only where a backend would refuse: what is valid comes back as the same object.

Every step looks at what came before a message, not at what comes later, so that a history which extends
another is repaired in the same way as far as that went: the backend's prefix cache and stored prefix rewrites
keep working. Only the last message, calls that are open at the end, and a conversation in which no user has
spoken yet may turn out otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from proxy.core.history.marks import INSTRUCTION, is_instruction
from proxy.core.history.turns import RESULT_ROLES, Pending, calls_of, is_result
from proxy.core.jsontext import dumps, loads
from proxy.core.request import SYSTEM_ROLES, THOUGHT_FIELDS, Message, leading_system, text_of
from proxy.emulation import NO_TOOLS, as_text

LOST = "[The result of this tool call was lost. Call the tool again if it is still needed.]"
BEGIN = "[The conversation begins here.]"
NOTED = "Noted."

_ALTERNATING = re.compile(
    r"(mi[sx]tral|ministral|codestral|devstral|magistral|pixtral|gemma|llama-?2(?![\d.]))", re.IGNORECASE
)
"""Ids of models whose chat templates raise "conversation roles must alternate" (templates of Mistral Small
and Devstral, Gemma 2 and 3, Llama 2)."""
_ONE_SYSTEM = re.compile(r"qwen-?(3\.[5-9]|[4-9])", re.IGNORECASE)
"""Ids of models whose templates raise "System message must be at the beginning" (Qwen from 3.5 on)."""
_SPEAKERS = ("user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRules:
    """Demands of a model's chat template beyond those of every backend."""

    alternate: bool = False
    """User and assistant have to take turns, beginning with the user; tool batches do not count."""
    one_system: bool = False
    """A system message is refused anywhere but at the very beginning."""
    keep_last: bool = False
    """The last message is an answer to be continued, which may be empty."""


@lru_cache(maxsize=256)
def rules_for(model: str) -> RepairRules:
    """The rules for a model id, by its family."""
    alternate = _ALTERNATING.search(model) is not None
    return RepairRules(alternate=alternate, one_system=alternate or _ONE_SYSTEM.search(model) is not None)


def repair(messages: Sequence[Message], rules: RepairRules) -> tuple[Sequence[Message], list[str]]:
    """Mend a conversation.

    Returns the messages, the same object if there was nothing to do, and the kinds of repairs in order:
    `alternation`, `arguments`, `empty_answer`, `leading_system`, `middle_system`, `no_user`, `orphaned_call`,
    `orphaned_result`. Applying it again changes nothing.
    """
    if _is_plain(messages, rules):
        return messages, []
    lead = leading_system(messages)
    head, rest = list(messages[:lead]), messages[lead:]
    mending = _Mending(rules)
    for index, message in enumerate(rest, 1):
        if message.get("role") in RESULT_ROLES:
            mending.result(message)
        elif _says_nothing(message) and not (rules.keep_last and index == len(rest)):
            mending.kinds.add("empty_answer")
        else:
            mending.other(message)
    done, kinds = mending.end(), mending.kinds
    if len(head) > 1 and rules.one_system:
        kinds.add("leading_system")
        head = [_joined(head)]
    # A request without any message is the backend's to refuse.
    if messages and not any(message.get("role") == "user" for message in done):
        kinds.add("no_user")
        done.insert(0, {"role": "user", "content": BEGIN})
    return ([*head, *done], sorted(kinds)) if kinds else (messages, [])


def _is_plain(messages: Sequence[Message], rules: RepairRules) -> bool:
    """Return whether it is nothing but words of a system, a user and an assistant, in which there is nothing to mend."""
    has_user, before = False, ""
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if len(message) > 2 or type(content) is not str:
            return False
        if role == "user":
            has_user = True
        elif role == "assistant":
            if not has_user or not content or content.isspace():
                return False
        elif index or role != "system":
            return False
        if role == before and rules.alternate:
            return False
        before = role
    return has_user


class _Open(NamedTuple):
    """A call that has no result yet, and the role that its result would have."""

    call_id: Any
    name: str
    role: str


class _Mending:
    """One pass over a history; `kinds` says what had to be mended."""

    def __init__(self, rules: RepairRules) -> None:
        self.kinds: set[str] = set()
        self._rules = rules
        self._done: list[Message] = []
        self._run: list[Message] = []
        """Messages behind those that are done, to be joined in one."""
        self._kind: tuple[Any, bool] | None = None
        """Who speaks in them, and whether they are results, where others may be joined with them."""
        self._names: dict[str, str] = {}
        """Tools by the ids of their calls."""
        self._speaker: str | None = None
        self._batch: Pending[_Open] = Pending()
        self._late: list[Message] = []
        """Results without a call, told after the batch."""

    def result(self, message: Message) -> None:
        """A tool result: it answers a call of the batch before it, or is told as text."""
        if self._answers(message.get("tool_call_id")):
            self._add(message)
            return
        self.kinds.add("orphaned_result")
        self._late.append(_as_text(message, self._names))

    def _answers(self, wanted: Any) -> bool:
        """Return whether an open call is answered. What names no call answers the first (Ollama, function role)."""
        if wanted is None:
            return self._batch.take_first() is not None
        return (self._batch.take(wanted) or self._batch.take(None)) is not None

    def other(self, message: Message) -> None:
        """Any message that is no tool result."""
        self._close()
        calls = calls_of(message)
        if calls:
            message = self._with_valid_arguments(message)
        if message.get("role") in SYSTEM_ROLES and self._rules.one_system:
            self.kinds.add("middle_system")
            message = _marked(message)
        self._say(message)
        for call in calls:
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            self._batch.add(call.get("id"), _Open(call.get("id"), str(name or "a tool"), "tool"))
            self._names[str(call.get("id"))] = str(name or "a tool")
        legacy = message.get("function_call")
        if not calls and isinstance(legacy, dict):
            self._batch.add(None, _Open(None, str(legacy.get("name")), "function"))

    def end(self) -> list[Message]:
        """The mended messages, all there are."""
        self._close()
        self._flush()
        return self._done

    def _close(self) -> None:
        """End the batch: calls without a result get one, results without a call are told."""
        if not (self._batch or self._late):
            return
        for call_id, name, role in self._batch:
            self.kinds.add("orphaned_call")
            key = {"name": name} if role == "function" else {"tool_call_id": call_id}
            self._add({"role": role, **({} if None in key.values() else key), "content": LOST})
        late, self._batch, self._late = self._late, Pending(), []
        for message in late:
            self._say(message)

    def _say(self, message: Message) -> None:
        """Add a message; where roles must alternate, join it with the one before or put a word between.

        What the user says is not joined with results as text: it stays as it is while those are shortened.
        """
        role = message.get("role")
        if not self._rules.alternate or role not in _SPEAKERS:
            self._add(message)
            return
        before = self._run[0].get("role") if self._run else None
        kind = role, is_result(message)
        if kind == self._kind:
            self.kinds.add("alternation")
            self._run.append(message)
        else:
            self._bridge(message)
            self._add(message)
            self._kind = kind
        # A message with calls does not count as a turn (template of Mistral Small 3.2).
        if not _calls(message):
            self._speaker = str(role)
        elif before == role:
            self._speaker = "user"

    def _add(self, message: Message) -> None:
        self._flush()
        self._run, self._kind = [message], None

    def _flush(self) -> None:
        if self._run:
            self._done.append(_joined(self._run))
            self._run = []

    def _bridge(self, message: Message) -> None:
        role = message.get("role")
        if _calls(message) or (self._speaker or "assistant") != role:
            return
        self.kinds.add("alternation")
        text, other = (NOTED, "assistant") if role == "user" else (BEGIN, "user")
        self._add({"role": other, "content": text})

    def _with_valid_arguments(self, message: Message) -> Message:
        """Arguments that are no JSON object are wrapped in one: Ollama answers 400 to anything else."""
        calls = [_valid_call(call) for call in message["tool_calls"]]
        if all(new is old for new, old in zip(calls, message["tool_calls"], strict=True)):
            return message
        self.kinds.add("arguments")
        return {**message, "tool_calls": calls}


def _valid_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or isinstance(function.get("arguments"), dict):
        return call
    arguments = function.get("arguments")
    try:
        value = loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        value = arguments if str(arguments).strip() else None
    if isinstance(value, dict):
        return call
    wrapped = {} if value is None else {"input": value}
    return {**call, "function": {**function, "arguments": dumps(wrapped).decode()}}


def _says_nothing(message: Message) -> bool:
    """Return whether it is an assistant message in which there is nothing at all."""
    if message.get("role") != "assistant" or _calls(message):
        return False
    if any(message.get(name) for name in (*THOUGHT_FIELDS, "reasoning_details", "refusal", "audio")):
        return False
    content = message.get("content")
    if isinstance(content, list) and any(not isinstance(p, dict) or p.get("type") != "text" for p in content):
        return False
    return not text_of(message).strip() and (not content or isinstance(content, str | list))


def _calls(message: Message) -> bool:
    return bool(calls_of(message)) or bool(message.get("function_call"))


def _as_text(message: Message, names: dict[str, str]) -> Message:
    """A result whose call is not there, as a user message that says what it is, in the form of results as text."""
    call_id = message.get("tool_call_id")
    name = message.get("name") or names.get(str(call_id))
    which = " ".join(
        part for part in (f"of the tool {name}" if name else "", f"({call_id})" if call_id else "") if part
    )
    head = f"[Tool result {which} whose call is not in this conversation]".replace("  ", " ")
    result = {"role": "tool", "name": name, "content": _after(head, message.get("content"))}
    return as_text([result], NO_TOOLS)[0]


def _marked(message: Message) -> Message:
    return {**message, "role": "user", "content": _after(INSTRUCTION, message.get("content"))}


def _after(head: str, content: Any) -> Any:
    """Content behind a line of its own."""
    if isinstance(content, list):
        return [{"type": "text", "text": f"{head}\n"}, *content]
    if content is None or isinstance(content, str):
        return f"{head}\n{content or ''}"
    return f"{head}\n{dumps(content).decode()}"


def _joined(messages: Sequence[Message]) -> Message:
    """Messages of one role as one, a blank line between; fields that several have are the latest one's.

    What the system says comes behind what the user says: it goes on to the end of a message.
    """
    if len(messages) == 1:
        return messages[0]
    fields: Message = {}
    for message in messages:
        fields.update(message)
    ordered = sorted(messages, key=lambda m: m.get("role") == "user" and is_instruction(m))
    return {**fields, "content": _joined_contents([message.get("content") for message in ordered])}


def _joined_contents(contents: Sequence[Any]) -> Any:
    plain = next((at for at, content in enumerate(contents) if isinstance(content, list)), len(contents))
    text = "\n\n".join(str(content) for content in contents[:plain] if content)
    if plain == len(contents):
        return text
    parts = _parts(text) if plain else []
    for at, content in enumerate(contents[plain:], plain):
        parts += [{"type": "text", "text": "\n\n"}] if at else []
        parts += _parts(content)
    return parts


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": str(content)}] if content else []
