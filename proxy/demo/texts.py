"""Texts of the demo model: short explanations, and two texts that are longer than its window."""

from __future__ import annotations

LARGEST_COUNT = 10_000

_ABOUT = (
    "Spillway stands between your client and your model. When a conversation no longer fits into the model's "
    "context window, Spillway shortens it before the model has to refuse it; when the window fills up in the "
    "middle of an answer, Spillway pauses, makes room, and lets the model go on in the same stream."
)
_REAL = (
    "To talk to a real model, start LM Studio, Ollama, llama-server or vLLM on this machine: it is found within "
    'seconds, and this demo is off. Or name one: SPILLWAY_BACKENDS=\'[{"url": "http://127.0.0.1:11434"}]\'.'
)
_TRY = (
    'To see it work, ask me to "count to 3000" or to "write a long story": neither fits into my window. Number by '
    "number you can check that nothing is lost or said twice where one part ends and the next begins."
)
_PLACES = ("a mill", "the old ferry", "a field of hops", "the brick bridge", "two herons", "a boathouse", "the weir")
_DEEDS = (
    "{who} waves from the bank as the barge slides past {place}.",
    "The rope hums, and {who} lets out another arm's length near {place}.",
    "Rain comes down over {place}, and {who} pulls a tarpaulin across the sacks.",
    "{who} reads the water mark at {place} and writes the level into the book.",
    "Behind {place} the gate opens a hand's breadth, and {who} listens to the water find its way.",
)
_PEOPLE = ("the lock keeper", "Old Marten", "the skipper's daughter", "a boy with a lantern")
_SENTENCES = 240


def short(question: str, *, used: int, window: int) -> str:
    """A reply to a short message; `used` and `window` are in tokens."""
    flat = " ".join(question.split())
    quoted = f'You wrote: "{flat[:80]}{"…" if len(flat) > 80 else ""}"\n\n' if flat else "\n\n"
    fill = f"This prompt takes {used:,} of my {window:,} tokens: my window is {used * 100 // window}% full."
    return (
        f"I am Spillway's built-in demo: a script, not a language model. {quoted}{_ABOUT}\n\n{_REAL}\n\n{fill} {_TRY}"
    )


def count(last: int) -> str:
    """The numbers from 1 to `last`, at most `LARGEST_COUNT`."""
    last = max(1, min(last, LARGEST_COUNT))
    numbers = ", ".join(map(str, range(1, last + 1)))
    return f"This is Spillway's demo model, counting to {last:,}.\n\n{numbers}.\n\nThat was all of it."


def story() -> str:
    """A story in numbered sentences, about half as long again as the window."""
    opening = "This is Spillway's demo model with a long story; every sentence has a number.\n\n"
    sentences = [f"({number}) {_sentence(number)}" for number in range(1, _SENTENCES + 1)]
    paragraphs = [" ".join(sentences[at : at + 6]) for at in range(0, _SENTENCES, 6)]
    return opening + "\n\n".join(paragraphs) + "\n\nHere the river meets the sea, and the story ends."


def _sentence(number: int) -> str:
    text = _DEEDS[number % 5].format(who=_PEOPLE[number % 4], place=_PLACES[number % 7])
    return text[0].upper() + text[1:]
