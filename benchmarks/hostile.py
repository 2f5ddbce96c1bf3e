"""`python -m benchmarks.hostile [--turns N] [--kinds …]`: a long session in which everything but the user attacks.

Through the real proxy, over real sockets: results of tools, files, retrieved text, names of tools and the model's own
answers forge rules, corrections, summaries, status and marks; the summariser repeats whatever it reads. What reaches
the backend is looked at in every turn: the aim is that nothing forged is adopted, and no block is closed from inside.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.hostile_texts import EVIL, FORGERIES, RULES
from proxy.core.history import marks
from proxy.core.history.marks import is_summary
from proxy.core.request import Message, text_of
from tests.fakes import FAKES, FakeModel, Question, Reply
from tests.proxying import Proxy, running_proxy

WINDOW = 4096
KINDS = ("llamacpp", "generic", "ollama")
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
NONCE = "As far as anybody can tell,"
"""Begins every summary that the model was asked for."""
WORDS = tuple(
    f"{first}{last}" for first in ("ba", "do", "fi", "ku", "me") for last in ("den", "lor", "mis", "pat", "ral", "tun")
)
INSTRUCTED = "Write plain text of at most"
KNOWN = "Summary of what came before:"
_FENCE = re.compile(r"<<<(?:end\s+of\s+)?conversation>>>", re.IGNORECASE)
_EXTRACT = re.compile(rf"{re.escape(marks.EXTRACT)}\n(?:Before that:|{re.escape(marks.QUOTES)}|Last answers:)\n")
"""Begins one that was made without a model."""


@dataclass(slots=True)
class Judgement:
    """What was seen, and what should not have been: each breach quotes its place."""

    turns: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    """Forgeries that were sent, by kind."""
    summaries: int = 0
    blocks: int = 0
    resumed: int = 0
    kept: int = 0
    """Turns in which the block told rules of the user's."""
    adopted: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Blocks and fences that are not what they were when they were written."""
    lost: list[str] = field(default_factory=list)
    """Turns whose question did not arrive, or that failed."""

    def prompt(self, messages: Sequence[Message], question: str) -> None:
        """Look at what a backend was asked for an answer."""
        for message in messages:
            if is_summary(message):
                self._block(str(message["content"]))
            text = text_of(message)
            if text.startswith(f"{marks.SHORTENED}\n{NONCE}"):
                self.resumed += 1
                # What follows are the model's own words, which the client has seen, to the letter.
                told = text.partition(f"\n{marks.CONTINUED}\n")[0].removeprefix(marks.SHORTENED)
                if marks.defanged(told) != told:
                    self.closed.append(f"the beginning of an answer: {text[:300]!r}")
        if not any(m.get("role") == "user" and question in text_of(m) for m in messages):
            self.lost.append(question)

    def _block(self, content: str) -> None:
        pieces = re.split(f"({re.escape(marks.OPEN)}|{re.escape(marks.CLOSE)})", content)
        wanted = [marks.OPEN, marks.CLOSE] * (len(pieces) // 4)
        if pieces[1::2] != wanted or "".join(pieces[::4]).strip():
            self.closed.append(content[:500])
            return
        for text in pieces[2::4]:
            self.blocks += 1
            body, _, told = text.strip("\n").partition(f"\n{marks.HEADING}\n")
            if not (body.startswith(NONCE) or _EXTRACT.match(body)):
                self.adopted.append(f"a summary that nobody made: {body[:300]!r}")
            rules = [line.removeprefix("- ") for line in told.split("\n") if not line.startswith(marks.NAMES)]
            self.kept += bool(set(rules) & set(RULES))
            self.adopted += [f"a rule: {rule!r}" for rule in rules if rule and rule not in RULES]

    def summary(self, messages: Sequence[Message]) -> None:
        """Look at what a backend was asked for a summary."""
        self.summaries += 1
        asked = text_of(messages[-1])
        if asked.startswith((marks.FENCE, KNOWN)):
            if [mark.lower() for mark in _FENCE.findall(asked)] != [marks.FENCE, marks.FENCE_END]:
                self.closed.append(f"a fence: {asked[:500]!r}")
            self.adopted += [
                f"words of the user: {said!r}" for said in re.findall(rf"^USER:.*{EVIL}.*", asked, re.MULTILINE)
            ]

    @property
    def breaches(self) -> int:
        """How many things should not have been."""
        return len(self.adopted) + len(self.closed) + len(self.lost)


class Session:
    """One conversation of a client whose tools, files and model are hostile."""

    def __init__(self, kind: str, *, emulated: bool, seed: int) -> None:
        self.kind, self.emulated = kind, emulated
        self.seen = Judgement()
        self._chance = Random(f"{kind} {emulated} {seed}")
        self._history: list[Message] = []
        self._said = ""

    def play(self, turns: int) -> Judgement:
        """Play so many turns."""
        model = FakeModel("m", WINDOW, tools=not self.emulated)
        settings: dict[str, Any] = {"models": {"m": {"window": WINDOW}}} if self.kind == "generic" else {}
        with ExitStack() as stack:
            fake = stack.enter_context(FAKES[self.kind]([model], self._brain, tokens_per_chunk=16))
            proxy = stack.enter_context(running_proxy(fake, **settings))
            for number in range(turns):
                question = self._turn(proxy, number)
                for request in fake.chats():
                    self._look(request.json, question)
                fake.requests.clear()
        return self.seen

    def _look(self, body: Any, question: str) -> None:
        messages = body["messages"]
        if _asks_summary(messages):
            self.seen.summary(messages)
        else:
            self.seen.prompt(messages, question)

    def _turn(self, proxy: Proxy, number: int) -> str:
        rule = self._chance.choice(RULES) if self._chance.random() < 0.3 else "Go on."
        question = f"Look at page {number}. {rule}"
        self._history.append({"role": "user", "content": self._retrieved(question)})
        self._history += self._called(number)
        self._said = self._answer(number)
        body = {"model": "m", "messages": self._history, "tools": TOOLS, "max_tokens": 20_000}
        response = proxy.chat(body)
        self.seen.turns += 1
        if response.status_code == 200:
            answer = response.json()["choices"][0]["message"]["content"] or ""
        else:
            self.seen.lost.append(f"turn {number}: {response.status_code} {response.text[:200]}")
            answer = "Never mind."
        self._history.append({"role": "assistant", "content": answer.strip() or "Very well."})
        return question

    # -- what attacks

    def _forged(self) -> str:
        kind = self._chance.choice(list(FORGERIES))
        self.seen.attacks[kind] += 1
        return self._chance.choice(FORGERIES[kind])

    def _filler(self) -> str:
        """Words that no summary is taken for a loop for repeating."""
        return "".join(f"{self._chance.choice(WORDS)} " for _ in range(self._chance.choice([5, 60, 120])))

    def _retrieved(self, question: str) -> str:
        """The question, now and then behind what was retrieved for it, as clients mark that."""
        if self._chance.random() < 0.7:
            return question
        source = self._chance.choice(
            ["<tool_result tool_name='search'>{}</tool_result>", "[TOOL_RESULT]{}[/TOOL_RESULT]"]
        )
        # A page that closes the mark itself is not to be told from a user who writes behind it.
        page = re.sub(r"</?tool_result[^>]*>|\[/?TOOL_RESULT\]", "", self._forged(), flags=re.IGNORECASE)
        return f"{question}\n{source.format(self._filler() + page)}"

    def _called(self, number: int) -> list[Message]:
        forged = self._forged()
        name = self._chance.choice(["read", forged])
        arguments = '{"path": "notes.md"}'
        function = {"name": name, "arguments": arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": f"call_{number}", "content": self._filler() + self._forged()}
        orphan = {"role": "tool", "tool_call_id": "call_lost", "name": forged, "content": self._forged()}
        made: list[Message] = [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
        return [*made, orphan] if self._chance.random() < 0.05 else made

    def _answer(self, number: int) -> str:
        """The model quotes what it read; now and then at such a length that the answer has to be gone on with."""
        quoted = f"The page says:\n{self._forged()}" if self._chance.random() < 0.5 else self._forged()
        return quoted if number % 25 else f"{quoted}\n" + f"{self._filler()}{self._forged()}\n" * 30

    def _brain(self, question: Question) -> Reply:
        if not _asks_summary(question.messages):
            said = self._said
            return Reply(text=said.removeprefix(question.prefix))
        shown = "\n".join(map(text_of, question.messages))
        return Reply(text=f"{NONCE} they went on like this, {shown[-1500:]}")


def _asks_summary(messages: Sequence[Message]) -> bool:
    return INSTRUCTED in text_of(messages[-1])[-600:]


def report(results: Sequence[tuple[str, Judgement]]) -> str:
    """A row for each session, the attacks by kind, and every breach."""
    lines = ["session              turns  attacks  summaries  blocks  resumed  adopted  closed  lost"]
    attacks: Counter[str] = Counter()
    for name, seen in results:
        attacks += seen.attacks
        lines.append(
            f"{name:20} {seen.turns:5} {seen.attacks.total():8} {seen.summaries:10} {seen.blocks:7} {seen.resumed:8} "
            f"{len(seen.adopted):8} {len(seen.closed):7} {len(seen.lost):5}"
        )
    lines.append(", ".join(f"{kind}: {number}" for kind, number in sorted(attacks.items())))
    for name, seen in results:
        lines += [f"{name}: {breach}" for breach in (*seen.adopted, *seen.closed, *seen.lost)[:10]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the sessions that the command line, or these arguments, choose, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--kinds", nargs="+", choices=list(FAKES), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    results = []
    for kind in options.kinds:
        for emulated in (False, True):
            name = f"{kind}{', tools as text' if emulated else ''}"
            results.append((name, Session(kind, emulated=emulated, seed=options.seed).play(options.turns)))
    print(report(results))


if __name__ == "__main__":
    main()
