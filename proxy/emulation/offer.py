"""The tools that a request offers, and which of them may be called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from proxy.core.piece import CallPart
from proxy.emulation.calls import CallFault, fault
from proxy.emulation.forms import Written
from proxy.emulation.schema import Checker
from proxy.emulation.values import CUT, NOT_JSON, UNKNOWN_TOOL, WRONG_ARGUMENTS, Unreadable, json_text, read_json

Choice = Literal["auto", "none", "required", "named"]
MOST_FAULTS = 64
"""Calls of one answer that are looked at."""
NATIVE = "native"
"""Stands for the form of a call that the backend sent as one."""


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str
    description: str = ""
    schema: Any = None
    """JSON schema of the parameters, as the client sent it; anything."""

    @cached_property
    def checker(self) -> Checker:
        """Checks arguments for it."""
        return Checker(self.schema)


@dataclass(frozen=True)
class Offer:
    """Tools of a request, and how they may be called (OpenAI API, "Create chat completion")."""

    tools: Mapping[str, Tool] = field(hash=False)
    choice: Choice = "auto"
    callable: frozenset[str] = frozenset()
    """Names that count as calls."""
    parallel: bool = True
    """Whether one answer may hold several calls."""

    @property
    def required(self) -> bool:
        """Return whether a call has to be made."""
        return self.choice in ("required", "named")

    def read(self, written: Written, *, cut: bool = False) -> tuple[str, bool]:
        """The arguments of a call as JSON text, and whether they were repaired. `cut`: they may end where more was to come.

        Raises:
            Unreadable: it can't be called like that; `cut` if its end is missing.
        """
        tool = self.tools.get(written.name) if written.name in self.callable else None
        if tool is None:
            raise Unreadable(f"there is no tool {written.name!r}", UNKNOWN_TOOL)
        value, repaired = written.arguments, written.repaired
        if written.parameters:
            value = {name: text.removeprefix("\n").removesuffix("\n") for name, text in value.items()}
        for _ in range(2):  # the form of OpenAI's API: the object as a string
            if isinstance(value, str):
                value, mended = read_json(value.strip() or "null", cut=cut)
                repaired |= mended
        if not isinstance(value, dict | None):
            raise Unreadable("the arguments must be one JSON object", WRONG_ARGUMENTS)
        checked, wrong = tool.checker.check(value or {})
        if wrong:
            raise Unreadable(wrong, WRONG_ARGUMENTS)
        mended = bool(value) and checked is not value and not written.parameters
        return json_text(checked), repaired or mended


def faults_of(calls: Iterable[CallPart], offer: Offer, *, cut: bool) -> list[CallFault]:
    """Faults of calls that the backend sent as such. `cut`: the answer ended for want of room."""
    found: list[CallFault] = []
    for call in islice(calls, MOST_FAULTS):
        if not call.name:
            continue
        try:
            offer.read(Written(call.name, call.arguments), cut=cut)
        except Unreadable as wrong:
            found.append(fault(CUT if cut and wrong.kind == NOT_JSON else wrong.kind, call.name, NATIVE))
    return found


NO_TOOLS = Offer({}, "none")
"""For histories of calls and results where none are offered any more."""


def offer_of(body: Mapping[str, Any]) -> Offer | None:
    """The offer of a chat request; None where no function is offered.

    Tools of other types and malformed ones are left out: that they are there is the backend's to refuse.
    """
    tools = _tools(body.get("tools"))
    if not tools:
        return None
    choice, names = _choice(body.get("tool_choice"), tools)
    return Offer(tools, choice, names, parallel=body.get("parallel_tool_calls") is not False)


def _tools(listed: Any) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in listed if isinstance(listed, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name, str) and name:
            described = function.get("description")
            found[name] = Tool(
                name, described.strip() if isinstance(described, str) else "", function.get("parameters")
            )
    return found


def _choice(choice: Any, tools: Mapping[str, Tool]) -> tuple[Choice, frozenset[str]]:
    """Read `tool_choice`, and the names that it leaves."""
    names = frozenset(tools)
    if choice == "none":
        return "none", frozenset()
    if not isinstance(choice, Mapping):
        return "required" if choice == "required" else "auto", names
    if isinstance(allowed := choice.get("allowed_tools"), Mapping):
        mode: Choice = "required" if allowed.get("mode") == "required" else "auto"
        return mode, names & frozenset(_tools(allowed.get("tools")))
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    return ("named", frozenset({name})) if isinstance(name, str) and name in names else ("auto", names)
