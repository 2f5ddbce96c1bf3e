"""Tools on demand: if tool definitions take too much of the window, the prompt lists most tools by a line, and a tool looks them up.

The tools that coding agents rely on are defined in full from the start, within an eighth of the window. After them come the tools
that the conversation has called or looked up. These stay for good, so that its prompts begin alike: calls are in the history, and
names that were looked up are stored under the history's chain. A call of a tool whose line is all that the model has seen is checked
against its schema. A valid call goes to the client, with types repaired; otherwise the model gets the schema, once.

This is on by default: such definitions leave no room for a conversation, and every tool can still be called. The policy
`standard` leaves them as they came.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, TypeAlias

from typing_extensions import override

from proxy.addon import AddOn
from proxy.compaction.policy import BYTES_PER_TOKEN
from proxy.core.history.checkpoint import chain
from proxy.core.history.turns import calls_of, newest_user
from proxy.core.jsontext import dumps, is_heavy
from proxy.core.piece import CallPart, arguments_of
from proxy.core.request import Request, leading_system
from proxy.dialects.bodies import function_of
from proxy.emulation.forms import Written
from proxy.emulation.offer import NO_TOOLS, offer_of
from proxy.emulation.prompt import signature
from proxy.emulation.values import Unreadable
from proxy.job import Job
from proxy.net.tasks import offload_if
from proxy.outcome import Outcome
from proxy.preparing import may_offer
from proxy.prompt import BuiltinTool, OfferedTools
from proxy.recall.block import NO_ROOM
from proxy.recall.words import terms
from proxy.shaping.shape import TOOLS_FIRST, ShapedPart, diet, diet_from, first_sentence, tool_name
from proxy.store import Store

NAME = "find_tools"
_FEW = 8
"""Fewest tools that are listed by lines: fewer are only shortened, since a lookup would cost more."""
_AT_ONCE = 5
"""Most tools that one lookup returns."""
_SHORT = 8
"""Characters of room below which a line has no description: it would say nothing."""
_CLOSE = 1 / 3
"""Share of the best tool's score that another tool must exceed to be found too."""
_ABOUT = (
    "Look up tools before you call them: by their names, or in words for what is to be done. Do so before you say that you have "
    "no tool for something. Tools to look up:"
)
_FOUND = "You can call these now (? marks optional parameters):"
NOTHING = "No tool is like that. Look it up by a name in the description of this tool."
NO_QUERY = (
    'The arguments hold no query. Call the tool with {"query": "names of tools, or words for what is to be done"}.'
)
_NOT_CALLED = "The tool was not called: {}. Call it once more, as it is defined (? marks optional parameters):"
_PutNames: TypeAlias = Callable[[Sequence[str]], Awaitable[bool]]
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAMES = re.compile(r"\w(?:[\w.:/-]*\w)?")


class ToolsOnDemand(AddOn):
    """Offers a few tools in full, and a tool that looks up the others."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    async def offer(self, job: Job, offered: OfferedTools, *, emulate: bool) -> None:
        """Replace definitions that are too large together by lines, or shorten them where the model cannot look tools up."""
        request, window, tools = offered.request, job.window, offered.request.body.get("tools")
        if job.settings.policy == "standard" or window is None or not isinstance(tools, list):
            return
        heavy, room = is_heavy(tools), diet_from(window)
        if len(await offload_if(heavy, dumps, tools)) <= room:
            return
        kind: Literal["tools", "on_demand"] = "tools"
        changed: Sequence[Any]
        if len(tools) >= _FEW and may_offer(job, request):
            found, put = await self._found(job)
            listing = await offload_if(heavy, _Listing, job, offered, room, found, put)
            listing.record(job)
            kind, changed = "on_demand", listing.tools
        else:
            changed = await offload_if(heavy, diet, tools)
        if changed != tools:
            offered.request = request.changed(tools=changed)
            offered.parts.append(ShapedPart(kind, request, offered.request))

    @override
    async def forgotten(self, scope: str, links: Sequence[bytes], outcomes: Sequence[Outcome] = ()) -> None:
        """Delete the names of tools that were looked up in a conversation."""
        for link in links if outcomes else ():
            await self._store.drop_document(f"{scope}|tools", link.hex())

    async def _found(self, job: Job) -> tuple[Sequence[str], _PutNames]:
        """Read the names of tools looked up in the conversation, stored under the newest link that its history shares.

        Also returns what stores all names for its next request.
        """
        messages, owner = job.request.messages[leading_system(job.request.messages) :], f"{job.scope}|tools"
        links = [link.hex() for link in await offload_if(is_heavy(messages), chain, messages)] or [""]
        stored = await self._store.document(owner, *links[::-1])
        # Store under the message before the newest user message, which clients may rewrite later.
        link = links[(newest_user(messages) or 1) - 1]
        return (stored or {}).get("names", ()), lambda names: self._store.put_document(owner, link, {"names": [*names]})


class _Listing:
    """Tools of one prompt, either defined in it or listed by a line. It may take long to make."""

    def __init__(self, job: Job, offered: OfferedTools, room: int, found: Sequence[str], put: _PutNames) -> None:
        """Divide the tools within `room` bytes; calls that Spillway answers or checks are added to `offered.builtin`.

        `found`: names of tools that the conversation has looked up; `put` stores them.
        """
        tools, received = offered.request.body["tools"], {tool_name(tool): tool for tool in job.request.body["tools"]}
        functions = offer_of({"tools": tools})
        names = () if functions is None else (name for name in functions.tools if name not in offered.builtin)
        most = 0 if job.settings.policy == "local" else room // 8
        self._put = put
        self._forms = {name: _form(received[name], most) for name in names}
        """Definitions by name: as received, or shortened if they are long."""
        first = _first(self._forms, room // 2)
        lines = {name: form for name, form in self._forms.items() if name not in first}
        self._offer = offer_of({"tools": list(map(_strict, diet([*lines.values()])))}) or NO_TOOLS
        self._known = [*dict.fromkeys(name for name in (*found, *_picked(job.request)) if name in lines)]
        """Names of listed tools that are defined after all because they were looked up or called, in that order."""
        self._explained: set[str] = set()
        others = [tool for tool in tools if tool_name(tool) not in self._forms]
        defined = [self._forms[name] for name in (*first, *self._known)]
        self.tools = [*others, *defined]
        if lines:
            name = offered.free_name(NAME)
            self.tools = [_finder(name, lines, room // 2), *self.tools]
            offered.builtin[name] = BuiltinTool(partial(self._find, job))
            explain = partial(self._explain, job)
            for tool in self._offer.tools.values():
                if tool.name not in self._known:
                    offered.builtin[tool.name] = BuiltinTool(explain, tool.schema, self._passed)

    async def _find(self, job: Job, call: CallPart, room: float, before: Sequence[str]) -> str:
        """Look up tools for the model, within `room` tokens, and return the tool's result."""
        del before
        words = " ".join(map(str, arguments_of(call.arguments).values()))
        if not words.strip():
            return NO_QUERY
        names, found = self._ranked(words)[:_AT_ONCE], list[str]()
        if not names:
            return NOTHING
        for name in names:
            room -= len(dumps(self._forms[name])) / BYTES_PER_TOKEN
            found += [name] if room >= 0 else []
        if not found:
            return NO_ROOM
        await self._define(job, found, "found")
        return "\n".join((_FOUND, *(signature(self._offer.tools[name]) for name in found)))

    async def _explain(self, job: Job, call: CallPart, room: float, before: Sequence[str]) -> str:
        """Return the result of a wrong call: what is wrong, and the tool's signature."""
        del room, before
        self._explained.add(call.name)
        await self._define(job, [call.name], "called")
        return "\n".join((_NOT_CALLED.format(self._read(call)[1]), signature(self._offer.tools[call.name])))

    def _passed(self, call: CallPart) -> CallPart | None:
        """Return the call of a listed tool as the client gets it, or None if the model has to be shown the schema first."""
        arguments, wrong = self._read(call)
        if wrong:
            return call if call.name in self._explained else None
        return call if arguments is None else replace(call, arguments=arguments)

    def _read(self, call: CallPart) -> tuple[str | None, str]:
        """Return a call's arguments if they were repaired, else None, and the fault if they cannot be; empty if they are valid."""
        try:
            arguments, repaired = self._offer.read(Written(call.name, call.arguments))
        except Unreadable as wrong:
            return None, str(wrong)
        return (arguments if repaired else None), ""

    async def _define(self, job: Job, names: Sequence[str], why: str) -> None:
        """Define tools in the prompt from now on; if tools are emulated as text, only from the next prompt on."""
        new, prompt = [name for name in names if name not in self._known], job.prompt
        self._known += new
        if new and prompt.offer is None:
            defined = [*prompt.request.body["tools"], *(self._forms[name] for name in new)]
            job.prompt = replace(prompt, request=prompt.request.changed(tools=defined))
        job.outcome.add("tools_given", why=why, tools=len(names))
        self.record(job)
        await self._put(self._known)

    def record(self, job: Job) -> None:
        """Record how many of the tools are defined in full."""
        lines = len(self._offer.tools)
        job.outcome.add("tools_on_demand", sent=len(self._forms) - lines + len(self._known), of=len(self._forms))

    def _ranked(self, words: str) -> list[str]:
        """Return the tools named in these words, or else those whose definitions share the most (and rarest) terms, best first."""
        tools, query = self._offer.tools, set(_terms(words))
        if named := [name for name in dict.fromkeys(_NAMES.findall(words)) if name in tools]:
            return named
        texts = {name: set(_terms(dumps(self._forms[name]).decode())) for name in tools}
        rarity = Counter(term for text in texts.values() for term in text)
        scores = {name: sum(1 / rarity[term] for term in query & text) for name, text in texts.items()}
        least = max(scores.values()) * _CLOSE
        return sorted((name for name in scores if scores[name] > least), key=lambda name: -scores[name])


def _form(tool: Any, most: int) -> Any:
    """Return a definition as received, or shortened if it has more than `most` bytes."""
    return tool if len(dumps(tool)) <= most else diet([tool])[0]


def _first(forms: Mapping[str, Any], room: int) -> list[str]:
    """Return the tools to define from the start, in their order: those that agents rely on, within `room` bytes."""
    first = set[str]()
    for name in (name for glob in TOOLS_FIRST for name in forms if fnmatchcase(name.lower(), glob)):
        size = 0 if name in first else len(dumps(forms[name]))
        if size <= room:
            room -= size
            first.add(name)
    return [name for name in forms if name in first]


def _strict(tool: Any) -> Any:
    """Return a definition that rejects unknown arguments: a model that calls the tool by its line has to guess their names."""
    function = tool["function"]
    schema = function.get("parameters")
    if not isinstance(schema, Mapping) or "properties" not in schema or "additionalProperties" in schema:
        return tool
    return {**tool, "function": {**function, "parameters": {**schema, "additionalProperties": False}}}


def _picked(request: Request) -> Iterator[str]:
    """Yield the names of tools called in a history, and of those that its client's `tool_choice` names."""
    for message in (*request.restored, *request.messages):
        yield from map(tool_name, calls_of(message))
    choice = request.body.get("tool_choice")
    if isinstance(choice, Mapping):
        allowed = choice.get("allowed_tools")
        tools = allowed.get("tools") if isinstance(allowed, Mapping) else [choice]
        yield from map(tool_name, tools if isinstance(tools, list) else ())


def _finder(name: str, forms: Mapping[str, Any], room: int) -> dict[str, Any]:
    """Return the tool that looks up others; its description has a line for each, within `room` characters in all.

    Where there are many tools, lines are names alone, in at most twice as many characters; tools left out can be found by words.
    """
    # Names alone of 500 tools filled half of a window of 8k. A name whose description had no room used to end in an
    # ellipsis, as if the name itself went on.
    width, lines, spent = room // len(forms), [_ABOUT], 0
    for number, (each, form) in enumerate(forms.items()):
        line = _line(each, form["function"].get("description"), width)
        spent += len(line)
        if spent > 2 * room:
            lines.append(f"- and {len(forms) - number} more, to be looked up in words")
            break
        lines.append(line)
    query = {"type": "string", "description": "Names of tools, or words for what is to be done."}
    parameters = {"type": "object", "properties": {"query": query}, "required": ["query"]}
    return function_of(name, {"description": "\n".join(lines)}, parameters)


def _line(name: str, about: Any, width: int) -> str:
    line = f"- {name}"
    if not isinstance(about, str) or not about.strip() or len(line) + _SHORT > width:
        return line
    return textwrap.shorten(f"{line}: {first_sentence(about)}", width, placeholder="…")


def _terms(text: str) -> list[str]:
    return terms(_HUMP.sub(" ", text))
