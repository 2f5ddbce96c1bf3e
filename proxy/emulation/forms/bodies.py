"""What several forms are made of: JSON that holds calls, the arguments of one, parameters, and marks that close them."""

from __future__ import annotations

import re
from functools import partial

from proxy.emulation.cursor import Cursor
from proxy.emulation.forms.base import Body, RawCall, Reading, Step, Until
from proxy.emulation.forms.envelope import begins, calls_of_json
from proxy.emulation.nesting import Nesting

_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_FUNCTION_END = "</function>"
_NAME = re.compile(r"[^<>\n]{0,256}+")
_BETWEEN = re.compile(r"[\s,}\]]*+")


def calls(cursor: Cursor, reading: Reading, then: Step, *, marked: bool = True) -> Body | bool:
    """An object or an array of calls, if it begins like one. `marked`: what stands before it says that it is."""
    start = cursor.at
    if cursor.peek() not in ("{", "[") or not begins(cursor, reading.names):
        return False
    cursor.at = start

    def use(text: str) -> bool:
        found = calls_of_json(text, reading.names, marked=marked)
        reading.calls += found or ()
        return found is not None

    return Body(Nesting(lenient=True), use, then)


def arguments(name: str, reading: Reading, then: Step) -> Body:
    """The arguments of a call; none at all if the text ends here."""
    nesting = Nesting(lenient=True)

    def use(text: str) -> bool:
        reading.calls.append(RawCall(name, text or None, closed=nesting.closed))
        return True

    return Body(nesting, use, then)


def between(cursor: Cursor, reading: Reading) -> tuple[int, str]:
    """Pass over white space, commas, and closing brackets that are too many; where the last of those ends, and what follows."""
    start = cursor.at
    following = cursor.run(_BETWEEN)
    end = max(start, *(cursor.text.rfind(bracket, start, cursor.at) + 1 for bracket in "}]"))
    if end > start:
        reading.calls[-1].repairs = ("extra_brackets",)
    return end, following


def close(cursor: Cursor, *marks: str, end: int | None = None) -> bool:
    """Consume closing marks with white space before them; without any, go back to the end of what is known.

    Models leave them out at the end of an answer, so one that the end of the text cut short counts. True, as the form ends.
    """
    end = cursor.at if end is None else end
    for mark in marks:
        cursor.run()
        if cursor.literal(mark):
            end = cursor.at
        elif cursor.rest and mark.startswith(cursor.rest):
            end = len(cursor.text)
        cursor.at = end
    return True


def function(cursor: Cursor, reading: Reading, *marks: str) -> Body | bool:
    """Behind `<function=`: a name, then JSON arguments (Llama 3.1) or parameters (Qwen3-Coder); `marks` close what is around it."""
    name = cursor.word(reading.names)
    if name not in reading.names or not cursor.literal(">"):
        return False
    if cursor.run() == "{":
        return arguments(name, reading, lambda cursor, _: close(cursor, _FUNCTION_END, *marks))
    return _parameters(name, [], marks, cursor, reading)


def _parameters(
    name: str, found: list[tuple[str, str]], marks: tuple[str, ...], cursor: Cursor, reading: Reading
) -> Body | bool:
    """The next parameter, or the end of the function; what was `found` are names and values."""
    cursor.run()
    closed = cursor.literal(_FUNCTION_END)
    if closed or (cursor.ended and any(mark.startswith(cursor.rest) for mark in (_PARAMETER, _FUNCTION_END))):
        reading.calls = [RawCall(name, parameters=found, closed=closed)]
        return not closed or close(cursor, *marks)
    if not cursor.literal(_PARAMETER):
        return False
    parameter = cursor.whole(_NAME)
    if not cursor.literal(">"):
        return False

    def use(text: str) -> bool:
        # One that breaks off makes a call that is not closed, and can't be made.
        found.append((parameter, text.removesuffix(_PARAMETER_END)))
        return True

    return Body(Until(_PARAMETER_END), use, partial(_parameters, name, found, marks))
