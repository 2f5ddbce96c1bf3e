"""The ladder: ways to shorten a history without a model. Each replaces messages one for one, or leaves out whole turns."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Any

from proxy.compaction.instructions import carried, kept_texts
from proxy.compaction.middles import cut_message
from proxy.compaction.policy import BYTES_PER_TOKEN, PruneLimits
from proxy.compaction.results import Cost, Result, by_message, ends_of, note_for, results_of, shell_prompts, with_texts
from proxy.compaction.shorten import (
    GAPS,
    HINT,
    LEAST,
    LEAST_LINE,
    LEAST_LINES,
    Bounds,
    fit,
    shorten,
    water_level,
    without_middle,
)
from proxy.core.history.marks import NOTED, is_summary
from proxy.core.history.turns import (
    bridge_needed,
    cut_points,
    is_result,
    is_system,
    is_user,
    newest_user,
    next_speakers,
    unread_from,
)
from proxy.core.jsontext import omit
from proxy.core.request import REASONING, Message

OMITTED = "[Earlier messages were left out here to fit the context window.]"
LEAST_SHARE = 1 / 10
"""Share of the user's words in the newest message that has to be left for it to be readable."""
_LEAST_OF_UNREAD = 1 / 2
"""Share of an even split that every unread result keeps at least."""
_STALE = 1 / 4
"""Size to which an outdated system message may be cut, one that a later one replaces, relative to that of others."""
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_COMMANDS = frozenset(
    re.findall(r"\w+", "bash sh shell zsh cmd command commands terminal console exec execute run powershell python")
)
_LISTINGS = frozenset(["ls", "dir", "directory", "tree", "glob", "folder"])
_SEARCHES = frozenset({"search", "grep"})
_LISTING_COMMAND = re.compile(r'^\{\s*"(?:command|cmd)"\s*:\s*"\s*(?:ls|dir|tree|find|fd)\b[^|;&"\\]*"')


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A history to shorten: the messages after the leading system messages, and the room they may take, in tokens."""

    messages: Sequence[Message]
    costs: Sequence[float]
    """Predicted tokens of each message."""
    floor: int
    """Index of the first message that may change: what is before it is pinned or frozen."""
    budget: float
    """Tokens to bring all messages together down to."""
    enough: float
    """Tokens at or below which no model has to be asked, at least `budget`."""
    limits: PruneLimits
    cost: Cost
    unread: float = math.inf
    """Tokens of unread results that stay, however little room there is."""
    roomy: float = math.inf
    """Tokens at or below which an answer still has room."""
    recallable: float = math.inf
    """Tokens to bring the history to if the newest user message has to be cut: then there is room to recall pieces of it."""
    uncut: Message | None = None
    """The newest user message as it was sent, if it was cut before; else None."""
    closes: bool = False
    """Whether the backend need not read again what follows text that is left out, only what follows text that is put in."""
    leans: Mapping[int, int] = field(default_factory=dict)
    """Index after the later message that a message points at, by the index of the latter. Both are covered together."""

    @cached_property
    def total(self) -> float:
        """Tokens of all messages."""
        return sum(self.costs)

    @property
    def excess(self) -> float:
        """Tokens to save in results, including those of the text that says that middles are missing (`GAPS`)."""
        return self.total - self.budget + (self.count(GAPS) if self.closes else 0.0)

    @cached_property
    def newest(self) -> int | None:
        """Index of the newest user message."""
        return newest_user(self.messages)

    @cached_property
    def results(self) -> dict[int, list[Result]]:
        """Tool results by message."""
        return by_message(results_of(self.messages))

    @cached_property
    def kept(self) -> dict[Result, str]:
        """Texts that results keep if they hold instructions or are never shortened."""
        return kept_texts([result for group in self.results.values() for result in group], self.limits)

    def instructions(self, start: int, end: int) -> list[Message]:
        """Return the instructions kept between two indexes, with the calls that brought them."""
        groups = {index: group for index, group in self.results.items() if start <= index < end}
        return carried(self.messages, groups, self.kept)

    @cached_property
    def read(self) -> int:
        """Index after which there are only results that the model has not read yet."""
        return unread_from(self.messages)

    def count(self, text: str) -> float:
        """Return the tokens of a message with this text."""
        return sum(self.cost([{"role": "tool", "content": text}]))

    def may_change(self, index: int, tail: int) -> bool:
        """Return whether a message lies between `floor` and `tail`, and is not the newest user message."""
        return self.floor <= index < tail and index != self.newest

    def with_changes(self, changes: Mapping[int, Message], **fields: Any) -> "Reduction":
        """Return a copy with some messages replaced one for one, or this very object if that saves nothing."""
        messages, costs = list(self.messages), list(self.costs)
        for (index, message), cost in zip(changes.items(), self.cost([*changes.values()]), strict=True):
            messages[index], costs[index] = message, cost
        return replace(self, messages=messages, costs=costs, **fields) if sum(costs) < self.total else self

    def with_results(self, texts: Mapping[Result, str]) -> "Reduction":
        """Return a copy with other texts in place of some results.

        If middles are left out without a mark, the newest result that the model has read says so: behind marks, all would be read again.
        """
        texts = {result: text for result, text in texts.items() if text != result.text}
        read = [result for at, group in self.results.items() if self.may_change(at, self.read) for result in group]
        said = max((result.index for result in read if result.text.endswith(GAPS)), default=-1)
        if self.closes and max((result.index for result in texts if result.index < self.read), default=-1) > said:
            texts |= {read[-1]: texts.get(read[-1], read[-1].text) + GAPS}
        groups = by_message(sorted(texts, key=attrgetter("index"))).items()
        return self.with_changes({at: with_texts(self.messages[at], {r: texts[r] for r in g}) for at, g in groups})


def drop_thoughts(reduction: Reduction, tail: int) -> Reduction:
    """Drop the reasoning of answers before the newest user message. That of the running turn stays: the model goes on from it."""
    changed: dict[int, Message] = {}
    for index, message in enumerate(reduction.messages[: min(tail, reduction.newest or 0)]):
        says = message.get("content") or message.get("tool_calls")
        if says and not message.keys().isdisjoint(REASONING) and reduction.may_change(index, tail):
            changed[index] = omit(message, *REASONING)
    return reduction.with_changes(changed)


def cap_results(reduction: Reduction, tail: int) -> Reduction:
    """Cap oversize results between `floor` and `tail` until the budget is kept, but none that the model has not read yet."""
    end, groups = min(tail, reduction.read), reduction.results.items()
    results = [result for index, group in groups if reduction.may_change(index, end) for result in group]
    limits, excess, kept_texts = reduction.limits, reduction.excess, reduction.kept

    def cap(result: Result, over: float) -> str:
        kept = kept_texts.get(result)
        return _capped(result, limits, over, reduction.count, gaps=reduction.closes) if kept is None else kept

    return _cap_in_turn(reduction, results, excess, cap)


def _cap_in_turn(
    reduction: Reduction, results: Iterable[Result], excess: float, cap: Callable[[Result, float], str]
) -> Reduction:
    """Cap results, the oldest first, until `excess` tokens are saved; the newer ones stay whole."""
    texts: dict[Result, str] = {}
    for result in results:
        if excess <= 0:
            break
        texts[result] = cap(result, excess)
        excess -= reduction.count(result.text) - reduction.count(texts[result])
    return reduction.with_results(texts)


def within_limits(messages: Sequence[Message], limits: PruneLimits) -> Sequence[Message]:
    """Cap every tool result at the limits, however much room there is; returns the same object if none exceeds them.

    The outcome depends on the result and its call alone, so it is the same on every turn and the backend's cached prefix
    stays valid. Messages that also hold the user's words are left alone.
    """

    def tokens(text: str) -> float:
        return len(text.encode(errors="surrogatepass")) / BYTES_PER_TOKEN

    done = list(messages)
    for index, results in by_message(results_of(messages)).items():
        if is_result(messages[index]):
            texts = {r: kept_texts([r], limits).get(r) or _capped(r, limits, math.inf, tokens) for r in results}
            done[index] = with_texts(messages[index], texts)
    return messages if all(new is old for new, old in zip(done, messages, strict=True)) else done


def _capped(
    result: Result, limits: PruneLimits, excess: float, count: Callable[[str], float], *, gaps: bool = False
) -> str:
    """Shorten a result to its limits, or only by `excess` tokens if that leaves more; the text itself if nothing is saved."""
    text = result.text
    if len(text) <= LEAST or result.is_note or (gaps and text.endswith(GAPS)):
        return text
    short, room = _fitted(text, limits.result_tokens, count, _bounds(result, limits), gaps=gaps), count(text) - excess
    if short != text and room > count(short) and count(fuller := _fitted(text, room, count, gaps=gaps)) <= room:
        short = fuller
    return short if count(short) < count(text) else text


def _fitted(
    text: str, tokens: float, count: Callable[[str], float], bounds: Bounds | None = None, *, gaps: bool = False
) -> str:
    """Shorten a result to `tokens`, as far as that is possible; with `gaps`, without marks in place of what is left out."""
    most, body = max(LEAST, len(text)), text.removesuffix(HINT)
    bounds = bounds or Bounds(max(LEAST_LINES, text.count("\n") + 1), max(LEAST_LINE, len(text)), most)

    def within(characters: int) -> str:
        room = max(LEAST, min(bounds.characters, characters))
        if gaps:
            return text if len(text) <= room else without_middle(text, room // 2, len(text) - room // 2)
        short = shorten(body, bounds._replace(characters=room - len(HINT) * (len(body) > room)))
        return text if short == body else f"{short}{HINT}"

    longest = within(most)
    short, used = fit(longest, len(longest), tokens, make=within, count=count)
    return short if used <= tokens else within(LEAST)


def _bounds(result: Result, limits: PruneLimits) -> Bounds:
    """Return the bounds of a result, by the kind of tool it comes from."""
    words = {word.lower() for word in _WORDS.findall(result.name)}
    command = bool(words & _COMMANDS)
    listing = (bool(words & _LISTINGS) or {"list", "files"} <= words) and not words & _SEARCHES
    listing |= command and _LISTING_COMMAND.match(result.arguments or "") is not None
    # One line more than there may be entries, for the mark that says how many are missing.
    lines = min(limits.lines, limits.entries + 1) if listing else limits.lines
    characters = limits.output_characters if command else len(result.text)
    return Bounds(max(LEAST_LINES, lines), max(LEAST_LINE, limits.line_characters), max(LEAST, characters))


def mask_results(reduction: Reduction, tail: int, protect: float | None = None) -> Reduction:
    """Replace results by notes or leave out their middles, the oldest first, until the budget is kept and the minimum is gained.

    The newest results stay, up to `protect` tokens together; the default is the limits' `protect_newest`.
    """
    limits = reduction.limits
    protect = limits.protect_newest if protect is None else protect
    old: dict[int, list[Result]] = {}
    protected = 0.0
    for index, group in reversed(reduction.results.items()):
        # Where results share a message with the user's words, count the results alone.
        alone = is_result(reduction.messages[index])
        protected += reduction.costs[index] if alone else sum(reduction.count(result.text) for result in group)
        if protected > protect and reduction.may_change(index, min(tail, reduction.read)):
            old[index] = group
    prompts = shell_prompts(r for group in reduction.results.values() for r in group)
    left = ends_of if reduction.closes else note_for
    texts: dict[Result, str] = {}
    saved, wanted = 0.0, max(reduction.excess, limits.minimum_gain)
    for index, group in reversed(old.items()):
        long = [result for result in group if result.is_long and result not in reduction.kept]
        short = {result: left(result, prompts) for result in long}
        masked = with_texts(reduction.messages[index], short)
        if (gain := reduction.costs[index] - sum(reduction.cost([masked]))) > 0:
            texts |= short
            saved += gain
        if saved >= wanted:
            break
    return reduction.with_results(texts) if saved >= limits.minimum_gain else reduction


def cut_oversize(reduction: Reduction, budget: float, least: float, *, words: bool) -> Reduction:
    """Cut the middles of user and system messages before the newest turn until the budget is kept, the largest first.

    No message is cut to less than `least` tokens, or a quarter of that for a system message that a later one replaces.
    Beginning and end stay, and a mark says how much is missing. The users' own words are cut only if `words` is set.
    """
    order: list[tuple[int, float]] = []
    stale = False
    for index in reversed(range(reduction.newest or 0)):
        message = reduction.messages[index]
        if is_system(message):
            order.append((index, least * (_STALE if stale else 1.0)))
            stale = True
        elif is_user(message) and not is_summary(message):
            order.append((index, least))
    order.sort(key=lambda at: at[1] - reduction.costs[at[0]])
    return _cut_each(reduction, budget, order, words=words)


def cut_middles(reduction: Reduction, budget: float) -> Reduction:
    """Cut the middle out of the largest texts until the budget is kept; the head and the newest user message last.

    Tool calls stay whole, since half a JSON object is useless. So do the marks around results written as text.
    """
    pinned = [index < reduction.floor or index == reduction.newest for index in range(len(reduction.messages))]
    order = sorted(range(len(pinned)), key=lambda index: (pinned[index], -reduction.costs[index]))
    return _cut_each(reduction, budget, [(index, 0.0) for index in order], words=True)


def _cut_each(reduction: Reduction, budget: float, order: Iterable[tuple[int, float]], *, words: bool) -> Reduction:
    """Cut messages in the given order until the budget is kept, each to no less than the tokens paired with its index."""
    changed: dict[int, Message] = {}
    excess = reduction.total - budget
    for index, least in order:
        cost, message = reduction.costs[index], reduction.messages[index]
        if excess > 0 and cost > least:
            short, tokens = cut_message(message, max(least, cost - excess), reduction.cost, words=words)
            if short is not message:
                changed[index] = short
                excess -= cost - tokens
    return reduction.with_changes(changed)


def cap_unread(reduction: Reduction) -> Reduction:
    """Shorten results that the model has not read yet, the oldest first, down to the goal; `unread` tokens stay.

    They are the last thing to give up, since the model has just asked for them. So each keeps at least half of what an even
    split would leave it; if the older ones cannot save enough that way, the newer ones are shortened too.
    """
    # When all were cut to the same size, the newest lost as much as the oldest.
    unread = [result for index, group in reduction.results.items() if index >= reduction.read for result in group]
    total = sum(reduction.costs[reduction.read :])
    excess = total - max(reduction.unread, reduction.enough - (reduction.total - total))
    sizes = [reduction.count(result.text) for result in unread]
    least = water_level(sizes, sum(sizes) - excess) * _LEAST_OF_UNREAD

    def cap(result: Result, over: float) -> str:
        if result in reduction.kept:
            return reduction.kept[result]
        return _fitted(result.text, max(least, reduction.count(result.text) - over), reduction.count)

    return _cap_in_turn(reduction, unread, excess, cap)


def drop_oldest(reduction: Reduction, budget: float, floor: int, tail: int) -> Reduction:
    """Leave out whole turns between `floor` and `tail` until the budget is kept, except for instructions that tools brought.

    Leaves out all of them if that is still not enough, and never a question without its answer. A note takes their place.
    """
    messages, end_at = reduction.messages, len(reduction.messages)
    first_user = next(
        (i for i in range(floor, end_at) if is_user(messages[i]) and messages[i]["content"] != OMITTED), end_at
    )
    # Tokens of everything before each index.
    upto = [0.0, *accumulate(reduction.costs)]
    note: Message = {"role": "assistant", "content": OMITTED}
    kept_tokens = sum(reduction.cost([*reduction.instructions(floor, tail), note]))
    speakers = next_speakers(messages)
    least, best = reduction.total, None
    for end in cut_points(messages):
        if not floor < end <= tail or (end > first_user and messages[end].get("role") == "assistant"):
            continue
        total = upto[-1] - (upto[end] - upto[floor]) + kept_tokens
        if total < least:
            least, best = total, end
        if total <= budget:
            break
    if best is None:
        return reduction
    shorter = _joined(messages[:floor], reduction.instructions(floor, best), messages[best:], speakers[best])
    return replace(reduction, messages=shorter, costs=reduction.cost(shorter), floor=floor)


def _joined(
    head: Sequence[Message], brought: Sequence[Message], rest: Sequence[Message], speaker: Message | None
) -> list[Message]:
    """Join parts of a history with a note about the gap, so that user and assistant alternate; `speaker` comes next."""
    front = [*head, *brought]
    if not head or head[-1].get("role") == "assistant":
        front = [*head, {"role": "user", "content": OMITTED}, *brought]
        bridge = bridge_needed(front[-1], rest)
        return [*front, *([{"role": bridge, "content": NOTED}] if bridge else []), *rest]
    if speaker is None or speaker.get("role") != "assistant":
        return [*front, {"role": "assistant", "content": OMITTED}, *rest]
    # In the middle of a turn, put the note into the assistant's next message: a user message would look like a new turn.
    text = speaker.get("content") or ""
    noted = [{"type": "text", "text": OMITTED}, *text] if isinstance(text, list) else f"{OMITTED}\n\n{text}".rstrip()
    return [*front, *({**each, "content": noted} if each is speaker else each for each in rest)]
