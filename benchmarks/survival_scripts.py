"""The scripted sessions: what each client does, turn by turn, in sizes that follow from the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, TypeAlias

from benchmarks.survival_texts import chinese, printed, prose

MAIN, OTHER = "m", "n"
"""Models; `OTHER` has another window, on a backend of its own."""
FACTS = 12
"""Facts planted in a session: few enough for a summary of an eighth of 2,000 tokens to hold them all."""

Sizes: TypeAlias = Sequence[tuple[float, float, float]]
"""Least and most as shares of the window, and how often."""

LIGHT = ((0.003, 0.008, 0.76), (0.008, 0.02, 0.18), (0.02, 0.06, 0.06))
"""Sizes of short talk: 0.9 % of the window in the mean, so that a turn takes 1.8 %, which is 150 tokens in 8k."""
HEAVY_ASKED = ((0.01, 0.02, 0.5), (0.02, 0.06, 0.5))
HEAVY_ANSWERED = ((0.01, 0.02, 0.5), (0.02, 0.05, 0.5))
RESULTS = ((0.003, 0.03, 0.68), (0.03, 0.15, 0.22), (0.2, 0.8, 0.08), (1.0, 3.0, 0.02))
"""Tool results, up to three windows."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that the model makes, and what the client's tool gives back."""

    name: str
    arguments: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of a client.

    `user` is added to the history before it (empty: the history goes on after tool results); `answer` is the
    length of the model's text in tokens. `back` takes that many of the newest user turns off the history first,
    as an edit does; `keep` remembers what is taken off, `revert` returns to what was remembered.
    """

    user: str = ""
    answer: int = 0
    calls: tuple[Call, ...] = ()
    asked: str = ""
    """Name of the fact that is asked for."""
    tenant: int = 0
    model: str = MAIN
    back: int = 0
    keep: bool = False
    revert: bool = False
    restart: bool = False
    stream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A script, and what the clients are like."""

    name: str
    steps: Callable[[Maker, int], Iterator[Step]]
    chat: bool = True
    """Whether it is plain chat of ordinary length, for which the aims on summaries and the whole prefix hold."""
    light: bool = False
    tools: bool = False
    clock: bool = False
    """The system prompt tells the time."""
    store: Literal["memory", "sqlite"] = "memory"
    answer_limit: float | None = None
    """`max_tokens` of the client, as a share of the window."""


@dataclass(slots=True)
class Maker:
    """Makes the texts of one session."""

    window: int
    light: bool = False
    write: Callable[[Random, int], str] = prose
    rng: Random = field(default_factory=lambda: Random(8484))

    def tokens(self, sizes: Sizes) -> int:
        """A size drawn from a table."""
        low, high, _ = self.rng.choices(sizes, weights=[weight for *_, weight in sizes])[0]
        return max(3, int(self.window * self.rng.uniform(low, high)))

    def say(self, number: int, text: str = "") -> Step:
        """An ordinary turn of chat."""
        asked, answered = (LIGHT, LIGHT) if self.light else (HEAVY_ASKED, HEAVY_ANSWERED)
        user = f"Turn {number}. {text} {self.write(self.rng, self.tokens(asked))}"
        return Step(user=user, answer=self.tokens(answered), stream=number % 5 != 4)

    def result(self) -> str:
        """What a tool gives back."""
        return printed(self.rng, self.tokens(RESULTS))


def _chat(maker: Maker, turns: int) -> Iterator[Step]:
    """Facts are planted in the first third, some of them are corrected, and all are asked for, late ones last."""
    every = max(2, turns // (3 * FACTS))
    for number in range(turns):
        text, asked = "", ""
        which, rest = divmod(number, every)
        if rest == 0 and which < FACTS:
            text = f"Remember: the code of item{which} is red{which}."
        elif rest == 0 and which < FACTS * 3 // 2:
            text = f"Correction: the code of item{(which - FACTS) * 2} is now blue{which}."
        elif rest == 1 and number > turns // 2:
            asked = f"item{number // every % FACTS}"
            text = f"What is the code of {asked}?"
        yield replace(maker.say(number, text), asked=asked)


def _calls(maker: Maker, number: int) -> tuple[Call, ...]:
    names = ("read_file", "search", "run_command")
    count = maker.rng.choice((1, 1, 1, 2, 3))
    return tuple(
        Call(maker.rng.choice(names), f'{{"path": "src/part{number}_{at}.py"}}', maker.result()) for at in range(count)
    )


def _agent(maker: Maker, turns: int) -> Iterator[Step]:
    """One task of the user, and then tool calls only."""
    task = "Repair every module below src, run the tests after each, and tell the result. "
    task += maker.write(maker.rng, maker.window // 50)
    for number in range(turns):
        said = maker.rng.choice((0, 0, maker.window // 100))
        yield Step(user="" if number else task, answer=said, calls=_calls(maker, number), stream=number % 3 > 0)


def _coder(maker: Maker, turns: int) -> Iterator[Step]:
    """Chat in which most user turns set off some tool calls."""
    for number, step in enumerate(_chat(maker, turns // 4)):
        work = 0 if step.asked else maker.rng.choice((0, 2, 4, 6))
        yield replace(step, calls=_calls(maker, number) if work else ())
        for left in reversed(range(work)):
            more = _calls(maker, number) if left else ()
            yield Step(answer=0 if more else step.answer, calls=more, stream=step.stream)


def _cjk(maker: Maker, turns: int) -> Iterator[Step]:
    maker.write = chinese
    yield from _chat(maker, turns)


def _edits(maker: Maker, turns: int) -> Iterator[Step]:
    """The last question put differently, older ones edited, branches left and returned to.

    What a branch is told that is left later must not be known in the other one.
    """
    for number, step in enumerate(_chat(maker, turns)):
        item = f"item{number // 20 % FACTS}"
        match number % 20:
            case 7:
                yield replace(step, back=1)
            case 8 | 9 | 10 | 11:
                told = f"{step.user} Correction: the code of {item} is now green{number}."
                yield replace(step, user=told)
            case 12:
                yield replace(step, back=6, keep=True)
            case 13:
                yield replace(step, user=f"{step.user} What is the code of {item}?", asked=item)
            case 16:
                yield replace(step, revert=True)
            case 19 if number == 19:
                yield replace(step, back=turns)
            case _:
                yield step


def _tenants(maker: Maker, turns: int) -> Iterator[Step]:
    """Two credentials with the same history, which part in the last quarter."""
    for number, step in enumerate(_chat(maker, turns // 2)):
        own = number >= turns * 3 // 8
        for tenant in (0, 1):
            text = f"{step.user} My vault is vault-{tenant}." if own else step.user
            yield replace(step, tenant=tenant, user=text)


def _switch(maker: Maker, turns: int) -> Iterator[Step]:
    """To a model with another window and back, after a third of the way each."""
    for number, step in enumerate(_chat(maker, turns)):
        yield replace(step, model=OTHER if turns // 3 <= number < turns * 2 // 3 else MAIN)


def _restart(maker: Maker, turns: int) -> Iterator[Step]:
    for number, step in enumerate(_chat(maker, turns)):
        yield replace(step, restart=number > 0 and number % max(2, turns // 4) == 0)


SCENARIOS = (
    Scenario(name="chat", steps=_chat, light=True),
    Scenario(name="dense", steps=_chat, chat=False),
    Scenario(name="agent", steps=_agent, chat=False, tools=True, answer_limit=0.1),
    Scenario(name="coder", steps=_coder, chat=False, tools=True),
    Scenario(name="cjk", steps=_cjk, chat=False),
    Scenario(name="edits", steps=_edits, chat=False),
    Scenario(name="clock", steps=_chat, light=True, clock=True),
    Scenario(name="tenants", steps=_tenants, chat=False),
    Scenario(name="switch", steps=_switch, chat=False),
    Scenario(name="restart", steps=_restart, chat=False, store="sqlite"),
)


def steps_of(scenario: Scenario, window: int, turns: int) -> Iterator[Step]:
    """The session of a scenario in a window of so many tokens."""
    return scenario.steps(Maker(window, light=scenario.light), turns)
