"""What models say. A brain is any callable from `Turn` to `Reply`; these are the usual ones."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from proxy.core.request import text_of
from tests.fakes.model import Brain, Message, Question, Reply

WORD = re.compile(r"\bw(\d+)")
FACT = re.compile(r"the code of ([\w-]+) is (?:now )?([\w-]+)", re.IGNORECASE)
QUESTION = re.compile(r"what is the code of ([\w-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Walk:
    """Counts in words, "w1 w2 w3 …", without end, so that a lost or doubled word at a seam shows.

    Goes on after the last word of the prefix, else after the last one in the prompt, else begins at w1. A prefix
    that ends inside a word is completed. `last` is the number of the word after which it stops; `overlap` how many
    words it repeats when it goes on without a prefix; `restart` makes it begin at w1 again then.
    """

    last: int | None = None
    overlap: int = 0
    restart: bool = False

    def __call__(self, question: Question) -> Reply:
        if question.prefix:
            return Reply(text=self._after(question.prefix))
        said = 0 if self.restart else max(0, _last_word(question.messages) - self.overlap)
        return Reply(text=self._words(said + 1, ""))

    def _after(self, prefix: str) -> Iterator[str]:
        said, begun = _position(prefix)
        if begun is not None:  # the prefix ends inside a word
            yield str(said + 1).removeprefix(begun)
            said += 1
        yield from self._words(said + 1, "" if prefix[-1:].isspace() and begun is None else " ")

    def _words(self, first: int, space: str) -> Iterator[str]:
        number = first
        while self.last is None or number <= self.last:
            yield f"{space}w{number}"
            number, space = number + 1, " "


def _position(text: str) -> tuple[int, str | None]:
    """The last whole word of a text, and the digits of one begun after it (None: none begun)."""
    numbers = WORD.findall(text)
    if re.search(r"\bw$", text):
        return (int(numbers[-1]) if numbers else 0), ""
    if not numbers:
        return 0, None
    before = int(numbers[-2]) if len(numbers) > 1 else 0
    expected, last = str(before + 1), numbers[-1]
    if text.endswith(last) and last != expected and expected.startswith(last):
        return before, last
    return int(last), None


def _last_word(messages: Sequence[Message]) -> int:
    for message in reversed(messages):
        if text_of(message) and WORD.search(text_of(message)):
            return _position(text_of(message))[0]
    return 0


def walk(*, last: int | None = None, overlap: int = 0, restart: bool = False) -> Brain:
    """Words in order; see `Walk`."""
    return Walk(last, overlap, restart)


STRAYS: dict[str, Callable[[int, int], str]] = {
    "restarts": lambda said, last: words(1, last),
    "restarts in other words": lambda said, last: reworded(words(1, last)),
    "restarts behind a preamble": lambda said, last: f"Of course! Here is all of it:\n\n{words(1, last)}",
    "repeats its end": lambda said, last: words(max(1, said - 25), last),
    "repeats its end behind a preamble": lambda said, last: f"Sure, continuing:\n\n{words(said - 25, last)}",
    "repeats its end behind a space": lambda said, last: f" {words(said - 25, last)}",
    "goes on without a space": lambda said, last: words(said + 1, last),
    "says nothing": lambda said, last: "",
}
"""What a model says after its own answer, of so many words out of so many, if that is a finished turn to it."""


def reworded(text: str) -> str:
    """A text with a word put in now and then."""
    said = text.split()
    return " ".join(f"{word} indeed" if not number % 14 else word for number, word in enumerate(said, 1))


def strays(how: str, last: int) -> Brain:
    """Words up to `last`, but does one of `STRAYS` where its own answer is the last message."""

    def brain(question: Question) -> Reply:
        if question.prefix or question.messages[-1].get("role") != "assistant":
            return walk(last=last)(question)
        return Reply(text=STRAYS[how](_last_word(question.messages), last))

    return brain


def words(first: int, last: int) -> str:
    return " ".join(f"w{number}" for number in range(first, last + 1))


def echo(question: Question) -> Reply:
    """Repeats the last user message; a prefix of it is completed."""
    return Reply(text=_rest(question.last_user, question.prefix))


def scripted(replies: Sequence[Reply | str]) -> Brain:
    """Says these in turn; asked once more than that, it fails the request loudly."""
    left = [Reply(text=reply) if isinstance(reply, str) else reply for reply in replies]

    def brain(question: Question) -> Reply:
        del question
        return left.pop(0) if left else Reply(error="the script has ended")

    return brain


def facts(messages: Sequence[Message]) -> dict[str, str]:
    """The codes a history tells of; of several for one name the last holds."""
    return {name.lower(): code for message in messages for name, code in FACT.findall(text_of(message))}


def qa(*, filler: int = 0) -> Brain:
    """Knows what the messages it is shown say: "remember: the code of X is Y" answers "what is the code of X?".

    Every answer is followed by `filler` words, to fill the window.
    """

    def brain(question: Question) -> Reply:
        text = _qa_answer(question) + "".join(f" word{number}" for number in range(filler))
        return Reply(text=_rest(text, question.prefix))

    return brain


def _qa_answer(question: Question) -> str:
    asked = QUESTION.findall(question.last_user)
    if not asked:
        return "Noted."
    known = facts(question.messages)
    name = asked[-1]
    code = known.get(name.lower())
    return f"I do not know the code for {name}." if code is None else f"The code of {name} is {code}."


def asks_summary(question: Question) -> bool:
    """Whether the last user message asks for a summary."""
    return "summar" in question.last_user.lower()


def summariser(inner: Brain, predicate: Callable[[Question], bool] = asks_summary, *, extra: str = "") -> Brain:
    """Answers requests for a summary with all facts it was shown, and leaves the rest to `inner`.

    `extra` is added to every summary, to make it longer.
    """

    def brain(question: Question) -> Reply:
        if not predicate(question):
            return inner(question)
        return Reply(text=_rest(_summary(question.messages, extra), question.prefix))

    return brain


def _summary(messages: Sequence[Message], extra: str) -> str:
    known = [f"- the code of {name} is {code}" for name, code in facts(messages).items()]
    number = _last_word(messages)
    sections = {
        "Goal and constraints": "The user tells codes and asks for them later; answers are short.",
        "Decisions and reasons": "None were needed.",
        "State of the work": f"The last word was w{number}." if number else "The conversation goes on.",
        "Files and identifiers": "\n".join(known) or "None.",
        "Errors and fixes": "None.",
        "Open items and next step": f"Answer the next question. {extra}".strip(),
    }
    return "\n\n".join(f"## {title}\n{text}" for title, text in sections.items())


def _rest(text: str, prefix: str) -> str:
    return text.removeprefix(prefix)
