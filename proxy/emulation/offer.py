"""The tools that a request offers, and which of them may be called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

from proxy.emulation.arguments import Arguments, Unreadable, read_arguments, read_parameters
from proxy.emulation.cursor import Words
from proxy.emulation.forms.base import RawCall
from proxy.emulation.schema import Checker
from proxy.emulation.tolerant import CUT, UNKNOWN_TOOL, WRONG_ARGUMENTS
from proxy.wire.jsontext import dumps, loads

Choice = Literal["auto", "none", "required", "named"]


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str
    description: str = ""
    schema: Any = None
    """JSON schema of the parameters, as the client sent it; anything."""

    @cached_property
    def checker(self) -> Checker:
        """Checks arguments for it; the same as in other requests with this schema, since it takes long to make."""
        try:
            return _checker(dumps(self.schema))
        except ValueError:  # nested too deeply
            return Checker(None)


@lru_cache(maxsize=256)
def _checker(schema: bytes) -> Checker:
    return Checker(loads(schema))


@dataclass(frozen=True)
class Offer:
    """What a request says of tools (OpenAI API, "Create chat completion")."""

    tools: Mapping[str, Tool] = field(hash=False)
    choice: Choice = "auto"
    callable: frozenset[str] = frozenset()
    """Names that count as calls."""
    parallel: bool = True
    """Whether one answer may hold several calls."""
    legacy: bool = False
    """Whether the client asked with `functions`, and wants `function_call` back."""

    @cached_property
    def words(self) -> Words:
        """The names that count, to be asked letter by letter."""
        return Words(self.callable)

    @property
    def required(self) -> bool:
        """Whether a call has to be made."""
        return self.choice in ("required", "named")

    def read(self, written: RawCall, *, cut: bool) -> Arguments:
        """The arguments of a call. `cut`: the text may end where more was to come.

        Raises:
            Unreadable: it can't be called like that; `cut` if its end is missing.
        """
        tool = self.tools.get(written.name) if written.name in self.callable else None
        if not written.closed and (cut or tool is None or written.misplaced):
            raise Unreadable(CUT)
        if tool is None:
            raise Unreadable(f"there is no tool {written.name!r}", UNKNOWN_TOOL)
        if written.broken:
            raise Unreadable("it is not valid JSON")
        if written.misplaced:
            raise Unreadable('its parameters must be put into an object under "arguments"', WRONG_ARGUMENTS)
        if written.parameters is not None:
            if not written.closed:
                raise Unreadable(CUT)
            return read_parameters(written.parameters, tool.checker)
        found = read_arguments(written.arguments or "", tool.checker)
        open_end = () if written.closed else ("missing_brackets",)
        return Arguments(found.text, tuple(dict.fromkeys((*written.repairs, *open_end, *found.repairs))))


NO_TOOLS = Offer({}, "none")
"""For histories of calls and results where none are offered any more."""


def offer_of(body: Mapping[str, Any]) -> Offer | None:
    """The offer of a chat request; None where no function is offered.

    Tools of other types and malformed ones are left out: that they are there is the backend's to refuse.
    """
    listed = body.get("tools")
    legacy = not isinstance(listed, list) or not listed
    tools = _tools(body.get("functions") if legacy else _functions(listed))
    if not tools:
        return None
    choice, names = _choice(body.get("function_call" if legacy else "tool_choice"), tools)
    parallel = not legacy and body.get("parallel_tool_calls") is not False
    return Offer(tools, choice, names, parallel=parallel, legacy=legacy)


def _functions(listed: Any) -> list[Any]:
    tools = listed if isinstance(listed, list) else ()
    return [tool.get("function") for tool in tools if isinstance(tool, Mapping)]


def _tools(functions: Any) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for function in functions if isinstance(functions, Iterable) else ():
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name:
            described = function.get("description")
            description = described.strip() if isinstance(described, str) else ""
            found[name] = Tool(name, description, function.get("parameters"))
    return found


def _choice(choice: Any, tools: Mapping[str, Tool]) -> tuple[Choice, frozenset[str]]:
    """What `tool_choice` or `function_call` says, and the names that it leaves."""
    names = frozenset(tools)
    if choice == "none":
        return "none", frozenset()
    if not isinstance(choice, Mapping):
        return "required" if choice == "required" else "auto", names
    if isinstance(allowed := choice.get("allowed_tools"), Mapping):
        mode: Choice = "required" if allowed.get("mode") == "required" else "auto"
        return mode, names & frozenset(_tools(_functions(allowed.get("tools"))))
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    return ("named", frozenset({name})) if isinstance(name, str) and name in names else ("auto", names)
