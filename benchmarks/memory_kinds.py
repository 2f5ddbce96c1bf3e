"""Chats with a model that answers at length, and sessions of a tool that prints dense lists, written by seeded generators.

What is said in them and asked at their end is in `data/memory`: `facts.txt`, and `held.txt` for checking that no rule is
fitted to the former. Answers are advice made of the topic's nouns; those of the held-out chats are of Python's manual.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from pydoc_data.topics import topics as manual
from random import Random

from benchmarks.memory_data import Asked, Dialogue
from proxy.core.request import Message

DATA = Path(__file__).parent / "data" / "memory"
ANSWER = 1450
"""Characters of an answer: about 500 tokens as the scripted engine counts, whose tokens have at most four letters."""
_SESSION = 12
"""Turns on one topic before the next."""
_ASKS = """
    Where should I start with the {}?|How do people usually handle the {} and the {}?|What should I keep in mind about the {}?
    I'm a bit lost with the {}. Any ideas?|Could you help me plan the {}?|Write me a short checklist for the {} please.
    Does the {} depend on the {}?|What mistakes do beginners make with the {}?|Thanks! And what about the {}?
    Let's talk about the {} for a moment.|Which matters more, the {} or the {}?|Compare two ways to deal with the {}.
    Is it normal to worry about the {}?|Ok, that makes sense. Tell me more about the {}.|Explain the {} in simple words.
    I read that the {} is overrated, do you agree?|How much time does the {} take?|Give me three tips for the {}.
"""
_ADVICE = """
    Start with the {} and write down what you already know about it before you look at the {}.|A good {} saves you trouble later.
    Many people underestimate how much the {} depends on the {}, so plan both together.|Set a date for the {} and keep it.
    If the {} worries you, talk to somebody who has done it before.|Keep a small reserve for the {}; surprises are normal.
    Compare at least three options for the {} and note the price of each.|The {} can wait until the {} is settled.
    It helps to take photos of the {} as you go.|Ask early about the {}, because answers take time.
    Break the {} into small steps and tick them off one by one.|Don't let the {} decide about the {}.
    There is no perfect {}, but there is one that fits your situation.|Review the {} every week and adjust the {} where needed.
    Be honest with yourself about the {}: what do you need, and what would only be nice to have?|Put the {} in writing.
    A simple list for the {} is often better than an app.|Your {} will thank you for a calm look at the {}.
    When the {} changes, check what that means for the {}.|Sleep on it before you make a decision about the {}.
    Experience shows that the {} takes about twice as long as planned.|Look for reviews of the {}, but read the bad ones first.
    You mentioned the {}; that is a reasonable thing to think about at this stage.|Celebrate when the {} is done!
    In my view the most important thing about the {} is consistency.|Avoid doing the {} and the {} on the same day.
    As for money, the {} is usually cheaper in the quiet season.|Try the {} on a small scale first.
"""
_HEADS = "**{}**|### {}|1. **{}**|- {}:|{} first|Next: {}"
_WRAPS = "{fact}|{fact}|{fact} {ask}|{ask} {fact}|Quick update: {fact}|{fact} Just so you know. {ask}"


@dataclass(slots=True)
class _Topic:
    name: str
    nouns: Sequence[str]
    lines: list[list[str]] = field(default_factory=list)


def chats(tokens: int, count: int, *, held: bool) -> list[Dialogue]:
    """So many chats with long answers, of about so many tokens each; what is said in them is the same, in another order."""
    topics = _topics(DATA / ("held.txt" if held else "facts.txt"))
    return [_chat(Random(f"{seed} {held}"), topics, tokens, held=held) for seed in range(count)]


def _topics(path: Path) -> list[_Topic]:
    found: list[_Topic] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if head := re.fullmatch(r"\[(.+): (.+)\]", line):
            found.append(_Topic(head[1], head[2].split(", ")))
        elif not line.startswith("#"):
            found[-1].lines.append(line.split(" | "))
    return found


def _chat(rng: Random, topics: Sequence[_Topic], tokens: int, *, held: bool) -> Dialogue:
    """Sessions on the topics in turn; statements stand at random turns of their topic, those that change in order."""
    turns = max(tokens * 3 // ANSWER, sum(len(_statements(line)) for topic in topics for line in topic.lines))
    numbers = {topic.name: list[int]() for topic in topics}
    for start, topic in zip(range(0, turns, _SESSION), cycle(topics), strict=False):
        numbers[topic.name] += range(start, min(turns, start + _SESSION))
    said: dict[int, tuple[str, str]] = {}
    for topic in topics:
        free = numbers[topic.name]
        rng.shuffle(free)
        for line in topic.lines:
            statements = _statements(line)
            places = sorted(free.pop() if free else rng.choice([*set(range(turns)) - said.keys()]) for _ in statements)
            said |= {place: (line[0], statement) for place, statement in zip(places, statements, strict=True)}
    messages: list[Message] = []
    owner = {
        number: topic
        for topic in topics
        for number in range(turns)
        if number // _SESSION % len(topics) == topics.index(topic)
    }
    for number in range(turns):
        kind, fact = said.get(number, ("", ""))
        nouns = owner[number].nouns
        ask = _filled(rng, rng.choice(_split(_ASKS)), nouns)
        text = rng.choice(_WRAPS.split("|")).format(fact=fact, ask=ask) if kind not in ("", "a") else ask
        answer = _pages(rng, nouns) if held else _advice(rng, nouns, text)
        if kind == "a":
            middle = rng.choice([at.end() for at in re.finditer(r"[.:]\s", answer)])
            answer = f"{answer[:middle]}{fact} {answer[middle:]}"
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return Dialogue("chat", tuple(messages), tuple(asked for topic in topics for asked in _asked(topic)))


def _statements(line: Sequence[str]) -> list[str]:
    return [] if line[0] == "n" else line[1].split(" >> ")


def _asked(topic: _Topic) -> Iterator[Asked]:
    names = {"u": "facts", "a": "assistant's facts", "c": "changed"}
    for kind, *fields in topic.lines:
        if kind == "n":
            yield Asked(fields[0], (), (), "never said")
        elif kind == "e":
            yield Asked(fields[1], tuple(fields[0].split(" >> ")), (), "overviews")
        else:
            said, question, request, answer, *old = fields
            words, newest = tuple(answer.split(", ")), (said.split(" >> ")[-1],)
            before = tuple(old[0].split(", ")) if old else ()
            yield Asked(question, newest, words, names[kind], before)
            yield Asked(request, newest, words, "requests", before)


def _split(text: str) -> list[str]:
    return [each.strip() for line in text.strip().splitlines() for each in line.split("|")]


def _filled(rng: Random, frame: str, nouns: Sequence[str]) -> str:
    return frame.format(*rng.sample(nouns, frame.count("{}")))


def _advice(rng: Random, nouns: Sequence[str], ask: str) -> str:
    """An answer as models give them: it takes up the message, then has headings and sentences about much the same."""
    nouns = [*rng.sample(nouns, 8), *re.findall(r"\w{5,}", ask)[-6:]]
    lines = [f"Good question! {ask.rstrip('?.!')}: let's look at it step by step."]
    while sum(map(len, lines)) < ANSWER:
        lines.append("\n" + rng.choice(_HEADS.split("|")).format(rng.choice(nouns).capitalize()))
        lines += [_filled(rng, frame, nouns) for frame in rng.sample(_split(_ADVICE), 4)]
    return "\n".join(lines)


def _pages(rng: Random, nouns: Sequence[str]) -> str:
    """Some of Python's manual that has one of the nouns in it."""
    text = rng.choice([page for page in manual.values() if rng.choice(nouns) in page and len(page) > ANSWER])
    start = text.find("\n", rng.randrange(len(text) - ANSWER + 1)) + 1
    return f"From what I know:\n\n{text[start : start + ANSWER]} "


# -- dense lists


def lists(tokens: int, *, held: bool) -> list[Dialogue]:
    """A session whose tool prints lists of items, some once more with another state; a few keys are set by the user."""
    rng = Random(f"lists {held}")
    state = {number: _item(rng, number, held=held) for number in range(tokens // 18)}
    numbers = list(state)
    rng.shuffle(numbers)
    messages: list[Message] = []
    old: dict[int, str] = {}
    keys: dict[str, str] = {}
    for batch, start in enumerate(range(0, len(numbers), 24)):
        again = rng.sample(numbers[: max(3, start)], 3) if start else []
        for number in again:
            old[number], state[number] = state[number], _item(rng, number, held=held)
        printed = ("\n" if held else "; ").join(state[number] for number in [*numbers[start : start + 24], *again])
        name, value = f"{'limit' if held else 'key'}{batch}", f"v{rng.randrange(10**6)}"
        keys[name] = f"{name} {'is set to' if held else ':='} {value}"
        call = {
            "id": f"call{batch}",
            "type": "function",
            "function": {"name": "run", "arguments": f'{{"batch": {batch}}}'},
        }
        messages += [
            {"role": "user", "content": f"Run batch {batch}. {keys[name]}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call{batch}", "content": printed},
            {"role": "assistant", "content": f"Batch {batch} is done, nothing unusual."},
        ]
    return [Dialogue("lists", tuple(messages), tuple(_items_asked(rng, state, old, keys, held=held)))]


def _item(rng: Random, number: int, *, held: bool) -> str:
    code = f"{rng.randrange(16**6):06x}"
    if held:
        return f"INV-{2000 + number},{rng.randrange(10**6) / 100:.2f} EUR,{rng.choice(('open', 'paid', 'void'))},{code}"
    return f"work-item-{number}:{rng.choice(('READY', 'DONE', 'FAILED'))}|receipt={code}"


def _items_asked(
    rng: Random, state: dict[int, str], old: dict[int, str], keys: dict[str, str], *, held: bool
) -> Iterator[Asked]:
    forms = ("What is the amount of {}?", "show {}", "status of {}") if held else (
        "What is the receipt of {}?", "ASK {}", "Tell me the state of {}."
    )  # fmt: skip
    chosen = [*rng.sample(list(state.keys() - old.keys()), 24), *rng.sample(list(old), min(12, len(old)))]
    for number, form in zip(chosen, cycle(forms), strict=False):
        item = state[number]
        before = (old[number],) if number in old else ()
        name = re.split("[:,]", item)[0]
        yield Asked(form.format(name), (item,), (item[-6:],), "changed items" if before else "items", before)
    for name in rng.sample(list(keys), min(12, len(keys))):
        yield Asked(
            rng.choice(("ASK {}", "What is {}?")).format(name), (keys[name],), (keys[name].split()[-1],), "keys"
        )
