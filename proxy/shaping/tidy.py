"""Cleaning and mending of histories, of which those seen lately are only gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_not, methodcaller

from proxy.history.prefixes import Found, Known, Prefixes
from proxy.neutral.request import Message, leading_system
from proxy.shaping.clean import clean_history
from proxy.shaping.repair import Halt, RepairRules, mend, repair

_ROLE = methodcaller("get", "role")


@dataclass(frozen=True, slots=True)
class _Seen:
    clean: Sequence[Message]
    halt: Halt | None


@dataclass(slots=True)
class Tidy:
    """Messages on their way to be tidied, and what came of it."""

    messages: Sequence[Message]
    """As backends take them; the same list if nothing was done."""
    rules: RepairRules
    found: Found[_Seen]
    kinds: Sequence[str] = ()
    """What was mended, see `repair`."""
    grown: Known[_Seen] | None = None

    @property
    def new(self) -> Sequence[Message]:
        """The messages that have to be gone through."""
        return self.found.new


def tidied(messages: Sequence[Message], rules: RepairRules) -> tuple[Sequence[Message], Sequence[str]]:
    """A history cleaned and mended, the same list if nothing was done, and what was mended; nothing is remembered of it."""
    # Only what answers say is cleaned, which there is none of in a conversation that has just begun.
    clean = clean_history(messages) if "assistant" in map(_ROLE, messages) else messages
    done, kinds = repair(clean, rules)
    return (done if kinds or any(map(is_not, messages, clean)) else messages), kinds


class Tidier:
    """Cleans and mends histories. `limit`: bytes that are remembered, about.

    `find` and `keep` are for one thread, and quick; `go_on` may take long, and be done in another.
    """

    def __init__(self, limit: int) -> None:
        self._known: Prefixes[_Seen] = Prefixes(limit)

    def find(self, messages: list[Message], rules: RepairRules) -> Tidy:
        """Begin with a history.

        Messages that are known are put into the list as the objects that came before: what is compared later is the same.
        """
        lead = leading_system(messages)
        found = self._known.longest(rules, messages[lead:])
        messages[lead : lead + found.common] = found.shared
        return Tidy(messages, rules, found)

    def go_on(self, tidy: Tidy) -> None:
        """Clean and mend it."""
        messages, common, seen = tidy.messages, tidy.found.common, tidy.found.value
        lead = len(messages) - len(tidy.found.messages)
        rest = messages[lead:]
        clean, begun = clean_history(rest[common:]), None
        if seen is not None:
            clean = [*seen.clean[:common], *clean]
            begun = seen.halt if seen.halt is not None and seen.halt.at <= common else None
        done, tidy.kinds, halt = mend([*messages[:lead], *clean], tidy.rules, begun)
        tidy.grown = tidy.found.grown(_Seen(clean, halt), self._known.limit)
        if tidy.kinds or any(map(is_not, rest, clean)):
            tidy.messages = done

    def keep(self, tidy: Tidy) -> None:
        """Remember what was done."""
        self._known.keep(tidy.found, tidy.grown)
