"""Cleaning and mending of histories, of which those seen lately are only gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_not

from proxy.history.prefixes import LEAST, Prefixes
from proxy.neutral.request import Message, leading_system
from proxy.shaping.clean import clean_history
from proxy.shaping.repair import Halt, RepairRules, mend, repair


@dataclass(frozen=True, slots=True)
class _Seen:
    clean: Sequence[Message]
    halt: Halt | None


class Tidier:
    """Cleans and mends histories. `limit`: bytes that are remembered, about."""

    def __init__(self, limit: int) -> None:
        self._known: Prefixes[_Seen] = Prefixes(limit)

    def tidy(self, messages: list[Message], rules: RepairRules) -> tuple[Sequence[Message], list[str]]:
        """The messages as backends take them, and what was mended, see `repair`; the same list if nothing was done.

        Those that are known are put into the list as the objects that came before: what is compared later is the same.
        """
        if len(messages) < LEAST:
            clean = clean_history(messages)
            done, kinds = repair(clean, rules)
            return (done if kinds or any(map(is_not, messages, clean)) else messages), kinds
        lead = leading_system(messages)
        found = self._known.longest(rules, messages[lead:])
        common, seen = found.common, found.value
        messages[lead : lead + common] = found.shared
        rest = messages[lead:]
        clean, begun = clean_history(rest[common:]), None
        if seen is not None:
            clean = [*seen.clean[:common], *clean]
            begun = seen.halt if seen.halt is not None and seen.halt.at <= common else None
        cleaned = any(map(is_not, rest, clean))
        done, kinds, halt = mend([*messages[:lead], *clean], rules, begun)
        self._known.keep(found, _Seen(clean, halt))
        return (done if cleaned or kinds else messages), kinds
