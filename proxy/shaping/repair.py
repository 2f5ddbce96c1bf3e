"""Cleaning and repair of histories; valid parts stay the same objects.

Cleaning removes Spillway's own status text from answers, and from all messages the marks that only Spillway may set: a client
never gets one of Spillway's blocks, so a block that it sends is a quotation or a forgery. It marks what a tool brought in the
user's role. Repair changes anything that a backend
would refuse.

Every step looks only at earlier messages, so a history that extends another is repaired in the same way up to the other's end,
and the backend's prefix cache and stored prefix rewrites keep working. Only the last message, calls still open at the end, and a
conversation in which no user has spoken yet may be repaired differently once more messages follow.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import is_not
from typing import Any

import regex

from proxy.backends.profile import TEMPLATE_RULES, RepairRules
from proxy.core.history.embedded import only_results, texts_of, with_parts
from proxy.core.history.marks import BEGIN, BRACKET, INSTRUCTION, defanged, forges_block
from proxy.core.history.turns import Pending, calls_of, is_result, joined, newest_user
from proxy.core.jsontext import dig, dumps, is_heavy, loads
from proxy.core.request import REASONING, SYSTEM_ROLES, THOUGHT_FIELDS, Message, is_text_part, leading_system, text_of
from proxy.emulation.prompt import calls_as_text
from proxy.shaping.dropped import meeting
from proxy.stream.status import strip_status

LOST = "[The result of this tool call was lost. Call the tool again if it is still needed.]"
NOTED = "Noted."
GO_ON = "[Go on from where your last message ends.]"

_ALTERNATING = re.compile(
    r"(mi[sx]tral|ministral|codestral|devstral|magistral|pixtral|gemma|llama-?2(?![\d.]))", re.IGNORECASE
)
"""Ids of models whose chat templates raise "conversation roles must alternate" (templates of Mistral Small
and Devstral, Gemma 2 and 3, Llama 2)."""
_ONE_SYSTEM = re.compile(r"qwen-?(3\.[5-9]|[4-9])", re.IGNORECASE)
"""Ids of models whose templates raise "System message must be at the beginning" (Qwen from 3.5 on)."""
_SLICE = 2**18
# Without this, a base64 file was read as a document, in 26 parts.
_BINARY = regex.compile(
    r"(?:data:(?P<type>[\w.+-]{1,80}/[\w.+-]{1,80})(?:;[\w.=-]{1,80}){0,3};base64,)?"
    r"(?:(?<=\\[rnt])|(?<![A-Za-z0-9+/_\\-]))(?P<run>[A-Za-z0-9+/_-]{60,}+(?:(?:\\{1,4}[rn]|[\r\n])++[ \t>]*+[A-Za-z0-9+/_-]{60,}+)*+"
    r"(?:(?:\\{1,4}[rn]|[\r\n])++[ \t>]*+(?:[A-Za-z0-9+/_-]{20,}+|[A-Za-z0-9+/_-]++=))?={0,2})"
)
"""Base64 or hexadecimal digits, in one piece or in lines, also as JSON writes them."""
_LEAST_BINARY, _LINE, _KINDS = 1_000, 60, 14
"""Length from which binary data may be replaced, length of one of its lines, and number of distinct characters it must have."""
_ANNOUNCED = re.compile(r"\s*Skill [\"']([^\"'<>\n]{1,100})[\"'] (?:loaded|activated|launched)\b[^\n]{0,200}\Z")
"""Result of a tool for skills that says only that the skill's text follows."""
_SKILL_END = "</skill_content>"
_SPEAKERS = ("user", "assistant")
_BRIDGES: dict[str, Message] = {
    "user": {"role": "assistant", "content": NOTED},
    "assistant": {"role": "user", "content": BEGIN},
}
"""Filler message between two turns of one role, by that role."""


@lru_cache(maxsize=256)
def rules_for(model: str, known: frozenset[str] = frozenset()) -> RepairRules:
    """Return the rules for a model: those `known` of its chat template, by field name, and those of the family its id names."""
    alternate = "alternate" in known or _ALTERNATING.search(model) is not None
    one_system = alternate or not known.isdisjoint(("one_system", "no_system")) or bool(_ONE_SYSTEM.search(model))
    rules = {str(rule): rule in known for rule in TEMPLATE_RULES}
    return RepairRules(**{**rules, "alternate": alternate, "one_system": one_system})


def violates(messages: Sequence[Message], rule: str) -> bool:
    """Return whether a chat template with this rule (a field name of `RepairRules`) refuses a conversation."""
    if rule == "no_system":
        return leading_system(messages) > 0
    return repair(messages, RepairRules(**{rule: True}))[0] is not messages


def tidied(messages: Sequence[Message], rules: RepairRules) -> tuple[Sequence[Message], Sequence[str]]:
    """Clean and repair a history; return it, the same object if nothing changed, and the kinds of repairs."""
    clean = clean_history(messages)
    done, kinds = repair(clean, rules)
    return (done if kinds or any(map(is_not, messages, clean)) else messages), kinds


def without_binary(messages: Sequence[Message], window: int) -> Sequence[Message]:
    """Replace encoded binary data that takes much of the window, given in tokens, by a note of its size.

    In the newest user message, data without a media type is replaced only if it has as many characters as the window has tokens.
    """
    least, newest = max(_LEAST_BINARY, window // 4), newest_user(messages)
    done = [
        _without_binary(message, window if index == newest else least, least) if is_heavy(message, least) else message
        for index, message in enumerate(messages)
    ]
    return done if any(map(is_not, done, messages)) else messages


def _without_binary(message: Message, least: int, typed: int) -> Message:
    def noted(found: regex.Match[str]) -> str:
        run, kind = found["run"], found["type"]
        digits = sum(map(run.count, "0123456789"))
        if len(run) < (typed if kind else least) or len(set(run)) < _KINDS or not 0.05 < digits / len(run) < 0.9:
            return found.group()
        return f"[{kind or 'binary data'}, {max(1, len(run) * 3 // 4000)} kB]"

    texts = {
        p: text
        for p, text in texts_of(message)
        if len(text) >= typed and any(max(map(len, part.split()), default=0) >= _LINE for part in _slices(text))
    }
    short = {part: new for part, text in texts.items() if (new := _BINARY.sub(noted, text, concurrent=True)) != text}
    message = with_parts(message, short)
    if any(len(str(dig(call, "function", "arguments"))) >= typed for call in calls_of(message)):
        calls = [_with_arguments(call, lambda text: _BINARY.sub(noted, text)) for call in message["tool_calls"]]
        message = {**message, "tool_calls": calls} if calls != message["tool_calls"] else message
    return message


def _slices(text: str) -> Iterator[str]:
    """Yield a text in parts, so that no single operation holds the interpreter for long."""
    return (text[at : at + _SLICE] for at in range(0, len(text), _SLICE))


def _with_arguments(call: Any, change: Callable[[str], str]) -> Any:
    function = dig(call, "function")
    written = function.get("arguments") if isinstance(function, dict) else None
    return {**call, "function": {**function, "arguments": change(written)}} if isinstance(written, str) else call


def clean_history(messages: Sequence[Message]) -> list[Message]:
    """Remove marks from messages and status text from answers, and mark skills; all other messages stay the same objects."""
    # All of it each time: 400 kB in 400 messages take 0.7 ms. A cache of how far a history had been cleaned took 200
    # lines, which every change of a repair had to keep right.
    messages = _with_marked_skills(messages) if any(each.get("role") == "tool" for each in messages) else messages
    return [
        _clean(each)
        if each.get("role") == "assistant" or not isinstance(each.get("content"), str) or BRACKET in each["content"]
        else each
        for each in messages
    ]


def _with_marked_skills(messages: Sequence[Message]) -> list[Message]:
    """Mark the texts of skills that a tool only announces, and that come in user messages after its results (LibreChat).

    Without the mark they would be the user's own words: rules of theirs, and a turn of the conversation.
    """
    done: list[Message] = []
    callers: set[Any] = set()
    names: list[str] = []
    for message in messages:
        role, content, marked = message.get("role"), message.get("content"), message
        if role == "user" and names and isinstance(content, str):
            name = names.pop(0)
            if not (only_results(message) or _SKILL_END in content):
                marked = {**message, "content": f'<skill_content name="{name}">\n{content}\n{_SKILL_END}'}
        elif role == "tool" and message.get("tool_call_id") in callers:
            names += [found[1] for found in (_ANNOUNCED.match(text_of(message)),) if found is not None]
        elif role != "tool":
            calls = (call for call in calls_of(message) if "skill" in str(dig(call, "function", "name")).lower())
            callers, names = {call.get("id") for call in calls}, []
        done.append(marked)
    return done


def _clean(message: Message) -> Message:
    fields = {name: message[name] for name in ("content", *THOUGHT_FIELDS) if message.get(name)}
    clean = {name: _clean_content(value, message.get("role")) for name, value in fields.items()}
    return message if clean == fields else {**message, **clean}


def _clean_content(value: Any, role: Any) -> Any:
    if isinstance(value, list):
        return [{**part, "text": _clean_content(part["text"], role)} if is_text_part(part) else part for part in value]
    if not isinstance(value, str):
        return value
    text = strip_status(value) if role == "assistant" else value
    return defanged(text) if forges_block(text) else text


def repair(messages: Sequence[Message], rules: RepairRules) -> tuple[Sequence[Message], list[str]]:
    """Repair a conversation.

    Returns the messages, the same object if there was nothing to do, and the sorted kinds of repairs:
    `alternation`, `arguments`, `developer`, `empty_answer`, `leading_system`, `middle_system`, `no_user`, `orphaned_call`,
    `orphaned_result`, `reasoning`. Applying it again changes nothing.
    """
    kinds: set[str] = set()
    lead = leading_system(messages)
    head, rest = list(messages[:lead]), list(messages[lead:])
    if rules.one_system or rules.no_developer:
        head, rest = ([_as_system(message, kinds) for message in part] for part in (head, rest))
    last = rest[-1] if rest and rules.keep_last else None
    done = [message for message in rest if message is last or not _says_nothing(message)]
    if len(done) < len(rest):
        kinds.add("empty_answer")
    # Before roles alternate: a result without its call becomes a user message.
    done = _paired([_with_valid_arguments(message, kinds) for message in done], kinds)
    if rules.one_system:
        done = [_as_users(message, kinds) for message in done]
        if len(head) > 1:
            kinds.add("leading_system")
            head = [joined(head)]
    if rules.ends_with_user and done and done[-1].get("role") == "assistant":
        kinds.add("prefill")
        done.append({"role": "user", "content": GO_ON})
    # The last step for roles, since each step before may leave two messages of one role next to each other.
    if rules.alternate:
        done = _alternated(done, kinds)
    # After messages were joined, because a server checks the messages that it gets.
    demanded = with_demanded(done, rules)
    if demanded is not done:
        kinds.add("reasoning")
        done = demanded
    # Refusing a request without any message is left to the backend.
    if messages and not any(message.get("role") == "user" for message in done):
        kinds.add("no_user")
        done.insert(0, {"role": "user", "content": BEGIN})
    return ([*head, *done], sorted(kinds)) if kinds else (messages, [])


def with_demanded(messages: list[Message], rules: RepairRules) -> list[Message]:
    """Return the messages as a server demands them (see `proxy.shaping.dropped`); the same object if it demands nothing."""
    return meeting(messages, rules) if rules.thoughts or rules.signatures or rules.no_extras else messages


def _paired(messages: Sequence[Message], kinds: set[str]) -> list[Message]:
    """Give every call a result, and move results without a call, as text, to the end of their batch."""
    done: list[Message] = []
    names: dict[str, str] = {}
    lost: Pending[Message] = Pending()
    """Placeholder results of the open calls, used if no other result comes."""
    late: list[Message] = []

    def end_batch() -> None:
        nonlocal lost, late
        missing = list(lost)
        kinds.update(("orphaned_call",) if missing else ())
        done.extend((*missing, *late))
        lost, late = Pending(), []

    for message in messages:
        if message.get("role") == "tool":
            # A result that names no call answers the first open one (Ollama).
            wanted = message.get("tool_call_id")
            answered = lost.take_first() if wanted is None else lost.take(wanted) or lost.take(None)
            if answered is None:
                kinds.add("orphaned_result")
                late.append(_result_as_text(message, names))
            else:
                done.append(message)
            continue
        if lost or late:
            end_batch()
        done.append(message)
        for call in calls_of(message):
            call_id = call.get("id")
            names[str(call_id)] = str(dig(call, "function", "name") or "a tool")
            which = {} if call_id is None else {"tool_call_id": call_id}
            lost.add(call_id, {"role": "tool", **which, "content": LOST})
    end_batch()
    return done


def _alternated(messages: Sequence[Message], kinds: set[str]) -> list[Message]:
    """Make user and assistant alternate: join messages of one role, or put a filler between them.

    The user's words are not joined with results as text, so that they stay unchanged when the results are shortened. A
    message with calls does not count as a turn (template of Mistral Small 3.2).
    """
    groups: list[list[Message]] = []
    newest: tuple[Any, bool] | None = None
    speaker = "assistant"
    for message in messages:
        role = message.get("role")
        if role not in _SPEAKERS:
            groups.append([message])
            newest = None
            continue
        calls, kind = calls_of(message), (role, is_result(message))
        if kind == newest:
            groups[-1].append(message)
        else:
            groups += [[_BRIDGES[role]], [message]] if role == speaker and not calls else [[message]]
        if not calls:
            speaker = role
        elif kind == newest:
            speaker = "user"
        newest = kind
    done = [joined(group) for group in groups]
    if len(done) != len(messages) or any(map(is_not, done, messages)):
        kinds.add("alternation")
    return done


def _with_valid_arguments(message: Message, kinds: set[str]) -> Message:
    """Wrap arguments that are not a JSON object in one: Ollama answers 400 to anything else."""
    if not calls_of(message):
        return message
    calls = [_valid_call(call) for call in message["tool_calls"]]
    if not any(map(is_not, calls, message["tool_calls"])):
        return message
    kinds.add("arguments")
    return {**message, "tool_calls": calls}


def _valid_call(call: Any) -> Any:
    function = dig(call, "function")
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
    """Return whether a message is an assistant message without any content."""
    if message.get("role") != "assistant" or calls_of(message):
        return False
    if any(message.get(name) for name in (*REASONING, "refusal", "audio")):
        return False
    content = message.get("content")
    if isinstance(content, list) and not all(map(is_text_part, content)):
        return False
    return not text_of(message).strip() and (not content or isinstance(content, str | list))


def _result_as_text(message: Message, names: dict[str, str]) -> Message:
    """Rewrite a result whose call is missing as a user message that says so, in the form of results as text."""
    call_id = message.get("tool_call_id")
    name = message.get("name") or names.get(str(call_id))
    which = f"{f' of the tool {name}' if name else ''}{f' ({call_id})' if call_id else ''}"
    head = f"[Tool result{which} whose call is not in this conversation]"
    result = {"role": "tool", "name": name, "content": _after(head, message.get("content"))}
    return calls_as_text([result])[0]


def _as_system(message: Message, kinds: set[str]) -> Message:
    if message.get("role") != "developer":
        return message
    kinds.add("developer")
    return {**message, "role": "system"}


def _as_users(message: Message, kinds: set[str]) -> Message:
    if message.get("role") not in SYSTEM_ROLES:
        return message
    kinds.add("middle_system")
    return {**message, "role": "user", "content": _after(INSTRUCTION, message.get("content"))}


def _after(head: str, content: Any) -> Any:
    """Put a line before content."""
    if isinstance(content, list):
        return [{"type": "text", "text": f"{head}\n"}, *content]
    return f"{head}\n{content or '' if isinstance(content, str | None) else dumps(content).decode()}"
