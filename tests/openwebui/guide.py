"""The model that speaks: a travel guide whose every word is known beforehand, whatever prompt reaches it."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, count

import orjson

from proxy.core.request import text_of
from tests.fakes import Gate, Question, Reply, ToolCall, asks_summary
from tests.fakes.brains import facts

TITLE = "🚲 Riding to the Algarve"
TAGS = ["travel", "portugal"]
FOLLOW_UPS = ["Which day is the hardest?", "Where can I swim on the way?", "What does the whole ride cost?"]
TASKS = {"follow_ups": FOLLOW_UPS, "tags": TAGS, "title": TITLE}
"""What each background task of Open WebUI asks for in its JSON, and what it gets."""

QUESTION = "What do my notes say about ferries?"
FERRIES = """The same **ferry** comes up every seven days, and it takes only two bicycles at a time:

- with four of you, plan two crossings;
- be at the landing early, before the market opens;
- on days of more than 60 km cross first and rest afterwards.

Nothing in the notes says what it costs."""

_TOWNS = ("Lisbon", "Setúbal", "Évora", "Beja", "Mértola", "Serpa", "Alcoutim", "Tavira", "Faro", "Silves", "Lagos")
_SIGHTS = (
    "a Roman temple with fourteen columns", "the salt pans, white as snow", "a market that opens before the sun is up",
    "cork oaks with numbers painted on them", "storks on every chimney", "a ferry that takes two bicycles at a time",
    "a bakery with cakes of almonds and figs",
)  # fmt: skip
_NOTED = re.compile(r"Day (\d+)\. From (\w+) towards (\w+): (\d+) km\. On the way: (.+?)\.")
_MOST_WORDS = re.compile(r"at most (\d+) words")
_SUMMARY = (
    "## Goal and constraints\nThe user plans a bicycle ride from Lisbon to the Algarve in spring, at most 70 km a day, "
    "without motorways.\n\n## Decisions and reasons\nThey start in Lisbon, because the train takes bicycles there.\n\n"
    "## State of the work\nThe notes of these days were read and commented:\n{noted}\n\n"
    "## Open items and next step\nAnswer the next question about the route."
)


def day(number: int) -> str:
    here, there = _TOWNS[number % len(_TOWNS)], _TOWNS[(number * 3 + 1) % len(_TOWNS)]
    length = 31 + number * 17 % 40
    sight = _SIGHTS[number % len(_SIGHTS)]
    return f"**Day {number}.** From {here} towards {there}: {length} km. On the way: {sight}."


def plan(days: int) -> str:
    """A plan of so many days, no two of them alike."""
    return "\n\n".join(day(number) for number in range(1, days + 1))


def notes(title: str, tokens: int, count_tokens: Callable[[str], int]) -> str:
    """A user's own notes of about so many tokens."""
    lines = [title]
    for number in count(1):
        lines.append(f"Note {number}: {day(number + 100).replace('**', '')}")
        if count_tokens("\n".join(lines)) >= tokens:
            break
    return "\n".join(lines)


class Guide:
    """A brain for the fake backend. What it says next is set by the scene.

    A partial answer is continued wherever it ends; background tasks get the JSON they ask for.
    """

    def __init__(self) -> None:
        self.answer = Reply(text="Noted.")
        """The next answers; its text is a whole string."""
        self.call: ToolCall | None = None
        """Made once, before the next answer to a user who offers tools."""
        self.summaries: Gate | None = None
        """Holds the summaries."""
        self.summarised = 0
        """How many summaries were asked for."""
        self.rides = count(1)
        """Numbers for chats, so that no two begin alike: what is compacted in one would be in the other."""

    def __call__(self, question: Question) -> Reply:
        asked = question.last_user
        if asked.startswith("### Task:"):
            task = next((name for name in TASKS if f'"{name}"' in asked), None)
            # None: its own compaction.
            return Reply(text=_summary(question) if task is None else orjson.dumps({task: TASKS[task]}).decode())
        if asks_summary(question):
            self.summarised += 1
            return Reply(text=_summary(question), gate=self.summaries)
        if self.call is not None and question.tools and question.messages[-1].get("role") == "user":
            call, self.call = self.call, None
            return Reply(tool_calls=[call])
        assert isinstance(self.answer.text, str)
        return replace(self.answer, text=_rest(self.answer.text, question.prefix))


def _summary(question: Question) -> str:
    """A summary of the notes in the prompt in as many words as it asks for: towns and sights, then day by day."""
    noted = _NOTED.findall("\n".join(map(text_of, question.messages)).replace("**", ""))
    towns = dict.fromkeys(town for _, here, there, *_ in noted for town in (here, there))
    sights = dict.fromkeys(sight for *_, sight in noted)
    codes = [f"The code of {name} is {code}." for name, code in facts(question.messages).items()]
    lines = [*codes, f"Towns: {', '.join(towns)}.", f"On the way: {', '.join(sights)}."]
    lines += dict.fromkeys(f"Day {number}: {km} km, to {there}." for number, _, there, km, _ in noted)
    asked = _MOST_WORDS.search(question.last_user)
    left = (int(asked[1]) if asked else 300) - len(_SUMMARY.split())
    spent = accumulate(len(line.split()) for line in lines)
    shown = [line for line, words in zip(lines, spent, strict=True) if words <= left]
    return _SUMMARY.format(noted="\n".join(shown))


def _rest(text: str, prefix: str) -> str:
    tail = prefix[-150:]  # more than a day, so that its number is there
    return text[text.index(tail) + len(tail) :] if tail else text
