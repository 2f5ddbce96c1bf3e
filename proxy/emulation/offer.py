"""The tools that a request offers, which of them may be called, and their arguments against their schemas.

Wrong types are repaired where the meaning is clear; remaining mistakes are described in words. Types, required and additional
parameters, `enum`, `const` and alternatives are checked. All other keywords (bounds, formats, patterns) are left to the tool,
as with models that call tools natively. A client may send anything as a schema: anything but a schema allows everything, only
references within the schema are followed, and the work is bounded.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import is_not
from typing import Any, Literal, Self

from proxy.core.history.embedded import results_in
from proxy.core.jsontext import dig, dumps, omit
from proxy.core.piece import CallPart
from proxy.core.request import Message, Request, text_of
from proxy.emulation import values
from proxy.emulation.forms import Call, CallFault, Written, fault
from proxy.emulation.values import CUT, NOT_JSON, UNKNOWN_TOOL, WRONG_ARGUMENTS, Unreadable, json_text, read_json

_MOST = 10_000
"""Schemas that are checked for one call; nested alternatives multiply."""
_DEEPEST = 64
_REFERENCES = 8
"""References that are followed in a row to reach one schema."""
_MISTAKES = 3
_SHOWN = 60
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})(?:\.\d{1,20})?")
_WORDS: dict[str, dict[str, Any]] = {"boolean": {"true": True, "false": False}, "null": {"null": None, "none": None}}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
ALTERNATIVES = ("anyOf", "oneOf", "allOf")
Choice = Literal["auto", "none", "required", "named"]
MOST_FAULTS = 64
"""Calls of one answer that are checked."""
NATIVE = "native"
"""Name of the form of calls that the backend itself sent as calls."""


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str
    description: str = ""
    schema: Any = None
    """JSON schema of the parameters as the client sent it; may be any JSON."""


@dataclass(frozen=True)
class Offer:
    """Tools of a request, and how they may be called (OpenAI API, "Create chat completion")."""

    tools: Mapping[str, Tool] = field(hash=False)
    choice: Choice = "auto"
    callable: frozenset[str] = frozenset()
    """Names of the tools that may be called."""
    parallel: bool = True
    """Whether one answer may hold several calls."""
    messages: Sequence[Message] = field(default=(), repr=False, compare=False)
    """The conversation. A call in one of its results, or in the user's newest message, is only quoted if the model repeats it."""

    @cached_property
    def _quotable(self) -> list[str]:
        """Bare texts of the results and of the newest user message."""
        users = [text_of(message) for message in self.messages if message.get("role") == "user"]
        texts = [text_of(message) for message in self.messages if message.get("role") in ("tool", "function")]
        texts += (text[slice(*result.inside)] for text in users[:-1] for result in results_in(text))
        return [values.bare(text) for text in (*texts, *users[-1:])]

    def quotes(self, text: str, calls: Iterable[Call] = ()) -> bool:
        """Return whether a model only quotes: a result or the newest user message contains this text, or one of the calls."""
        text, wanted = values.bare(text), [(call.name, json.loads(call.arguments)) for call in calls]
        return any(text in each or any(values.holds_call(each, *call) for call in wanted) for each in self._quotable)

    def with_more(self, schemas: Mapping[str, Any]) -> Self:
        """Return the offer with additional tools of these names and schemas; unchanged if not all of its own may be called."""
        more = {name: Tool(name, schema=schema) for name, schema in schemas.items() if name not in self.tools}
        if not more or len(self.callable) < len(self.tools):
            return self
        return replace(self, tools={**self.tools, **more}, callable=self.callable | more.keys())

    def read(self, written: Written, *, cut: bool = False) -> tuple[str, bool]:
        """Return the arguments of a call as JSON text, and whether they were repaired. `cut`: they may be incomplete.

        Raises:
            Unreadable: the tool cannot be called like that; of kind `cut` if the end is missing.
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
        checked, wrong = check(tool.schema, value or {})
        if wrong:
            raise Unreadable(wrong, WRONG_ARGUMENTS)
        mended = bool(value) and checked is not value and not written.parameters
        return json_text(checked), repaired or mended


def faults_of(calls: Iterable[CallPart], offer: Offer, *, cut: bool) -> list[CallFault]:
    """Find the faults of calls that the backend itself sent as calls.

    `cut`: the answer was cut off at a token limit.
    """
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
"""Offer for a history with calls and results whose request offers no tools any more."""


def offer_of(body: Mapping[str, Any]) -> Offer | None:
    """Read the offer of a chat request, or None if it offers no function.

    Tools of other types and malformed ones are ignored: refusing them is left to the backend.
    """
    tools = _tools(body.get("tools"))
    if not tools:
        return None
    choice, names = _choice(body.get("tool_choice"), tools)
    return Offer(tools, choice, names, body.get("parallel_tool_calls") is not False, body.get("messages") or ())


def _tools(listed: Any) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in listed if isinstance(listed, list) else ():
        name, described = dig(tool, "function", "name"), dig(tool, "function", "description")
        if isinstance(name, str) and name:
            description = described.strip() if isinstance(described, str) else ""
            found[name] = Tool(name, description, dig(tool, "function", "parameters"))
    return found


def _choice(choice: Any, tools: Mapping[str, Tool]) -> tuple[Choice, frozenset[str]]:
    """Read `tool_choice`: the kind of choice, and the names that it allows."""
    names = frozenset(tools)
    if choice == "none":
        return "none", frozenset()
    if not isinstance(choice, Mapping):
        return "required" if choice == "required" else "auto", names
    if isinstance(allowed := choice.get("allowed_tools"), Mapping):
        mode: Choice = "required" if allowed.get("mode") == "required" else "auto"
        return mode, names & frozenset(_tools(allowed.get("tools")))
    name = dig(choice, "function", "name") or choice.get("name")
    return ("named", frozenset({name})) if isinstance(name, str) and name in names else ("auto", names)


# -- arguments against the schema of a tool


def check(schema: Any, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the arguments with repaired types (the same object if none was), and the remaining mistakes in words.

    Any JSON may be given as the schema.
    """
    # A walk of our own rather than jsonschema, which took four packages, 35 ms at the first call, guards against
    # schemas that multiply or fetch, and a second walk to repair types from its errors. Bounds and formats are the
    # tool's to check: it names a wrong number itself, where a correction here would cost another request.
    checker = _Checker(schema)
    fitted = checker.fit(arguments, schema, "", 0)
    return fitted, "; ".join([*dict.fromkeys(checker.faults)][:_MISTAKES])


class _Checker:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST
        self.faults: list[str] = []

    def fit(self, value: Any, schema: Any, path: str, depth: int) -> Any:
        """Return the value converted to the schema, the same object if it fits; mistakes are added to `faults`."""
        schema = resolved(self._root, schema)
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            return value
        if choices := alternatives(schema):
            value = self._fit_one(value, choices, path, depth)
        fitted, wrong = _fit_type(value, schema, path)
        if wrong:
            self.faults.append(wrong)
        elif isinstance(fitted, dict):
            return self._fit_object(fitted, schema, path, depth)
        elif isinstance(fitted, list) and isinstance(items := schema.get("items"), Mapping):
            new = [self.fit(item, items, f"{path}[{at}]", depth + 1) for at, item in enumerate(fitted)]
            return new if any(map(is_not, new, fitted)) else fitted
        return fitted

    def _fit_one(self, value: Any, choices: Sequence[Any], path: str, depth: int) -> Any:
        """Return the value converted to one of the schemas; one that it fits unchanged is preferred."""
        before, tried = self.faults, []
        for choice in choices:
            self.faults = []
            tried.append((self.fit(value, choice, path, depth + 1), self.faults))
        fitting = [new for new, faults in tried if not faults]
        self.faults = before if fitting else before + tried[0][1]
        return next((new for new in fitting if new is value), fitting[0]) if fitting else tried[0][0]

    def _fit_object(self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        properties, more, required = (schema.get(key) for key in ("properties", "additionalProperties", "required"))
        known = properties if isinstance(properties, Mapping) else {}
        inside = f' in "{path}"' if path else ""
        names = required if isinstance(required, list) else []
        if missing := [name for name in names if isinstance(name, str) and name not in value]:
            self.faults.append(f"{_names(missing)} missing{inside}")
        unknown = [name for name in value if name not in known]
        if more is False and unknown and "patternProperties" not in schema:
            self.faults.append(f"{_names(unknown)} not known{inside}")
        above = f"{path}." if path else ""
        new = {name: self.fit(item, known.get(name, more), f"{above}{name}", depth + 1) for name, item in value.items()}
        return new if any(map(is_not, new.values(), value.values())) else value


def resolved(root: Any, schema: Any) -> Mapping[str, Any]:
    """Follow references within `root` from a schema, keeping their sibling keywords; empty for one that cannot be followed."""
    for _ in range(_REFERENCES):
        reference = dig(schema, "$ref")
        if not isinstance(reference, str):
            break
        found: Any = root if reference.startswith("#") else None
        for step in reference.removeprefix("#").split("/")[1:]:
            found = dig(found, step.replace("~1", "/").replace("~0", "~"))
        siblings = omit(schema, "$ref")
        schema = {**found, **siblings} if isinstance(found, Mapping) else siblings
    return schema if isinstance(schema, Mapping) else {}


def alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of which a value must fit one. `allOf` counts too: it nearly always wraps a single reference."""
    return next((schema[key] for key in ALTERNATIVES if isinstance(schema.get(key), list)), [])


def _fit_type(value: Any, schema: Mapping[str, Any], path: str) -> tuple[Any, str]:
    """Return the value converted to a type that the schema names, and the mistake in words; empty if there is none."""
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    kinds = [kind for kind in names if isinstance(kind, str) and kind in _TYPES]
    if kinds and path and not any(_is(value, kind) for kind in kinds):
        mended = _mended(value, kinds)
        if mended is None:
            return value, f'"{path}" must be {" or ".join(kinds)}, not {_short(value)}'
        value = mended[0]
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list) and value not in options:
        return value, f'"{path}" must be one of {", ".join(map(_short, options))}'
    return value, ""


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    integral = kind == "integer" and isinstance(value, float) and value.is_integer()
    return integral or isinstance(value, _TYPES[kind])


def _mended(value: Any, kinds: Sequence[str]) -> tuple[Any] | None:
    """Return the intended value in a tuple, since it may itself be None; None if the intention is not clear."""
    if isinstance(value, str):
        return next((found for kind in kinds if (found := _from_text(value.strip(), kind))), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and "string" in kinds:
        return (json_text(value),)
    return ([value],) if "array" in kinds and value is not None else None


def _from_text(text: str, kind: str) -> tuple[Any] | None:
    if kind in {"integer", "number"} and _NUMBER.fullmatch(text):
        number = json.loads(text)
        return (number,) if kind == "number" or isinstance(number, int) else None
    if kind == "array" and text[:1] not in {"[", "{"}:
        return ([text],)
    if kind in {"array", "object"} and text[:1] == {"array": "[", "object": "{"}[kind]:
        try:
            return (read_json(text)[0],)
        except Unreadable:
            return None
    words = _WORDS.get(kind, {})
    return (words[text.lower()],) if text.lower() in words else None


def _names(names: Sequence[Any]) -> str:
    return f"{', '.join(map(_short, names))} {'is' if len(names) == 1 else 'are'}"


def _short(value: Any) -> str:
    text = dumps(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def offer_to_emulate(request: Request) -> Offer | None:
    """Build the offer of tools for a model that has none of its own, or None if there is nothing to emulate.

    A history of calls is rewritten even if the request offers no tools any more.
    """
    offer = offer_of(request.body)
    if offer is None and any(message.get("tool_calls") or message["role"] == "tool" for message in request.messages):
        return NO_TOOLS
    return offer
