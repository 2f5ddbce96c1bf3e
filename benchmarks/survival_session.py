"""One session: a script played through the real proxy against real servers."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import httpx
import orjson

from benchmarks.survival_model import Director, asks_summary
from benchmarks.survival_scripts import MAIN, OTHER, Scenario, Step, steps_of
from benchmarks.survival_tally import CANARY, Sent, Tally, Watcher
from benchmarks.survival_texts import prose
from proxy.core.settings import BackendSetting
from tests.fakes import FAKES, FakeBackend, FakeModel, FakeTokenizer, Recorded, ToolCall
from tests.fakes.model import Message
from tests.fakes.reading import chunks, tool_calls
from tests.proxying import Proxy, read_stream, running_proxy

TENANTS = ("alice", "bob")
TRIGGER, TARGET = 0.8, 0.5
"""Spillway's own, as shares of the window: what is between them is the room that a compaction makes."""
SMALLEST = 2048
"""Tokens of the smallest window: the other model's is half of the main one's, but no smaller than this."""
_TOKENIZER = FakeTokenizer()
_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": _PARAMETERS}}
    for name, text in (
        ("read_file", "Read a file."),
        ("search", "Search below a folder."),
        ("run_command", "Run a command."),
    )
]


@dataclass(frozen=True, slots=True)
class Cell:
    """One session: a scenario against a kind of backend in a window of so many tokens."""

    scenario: Scenario
    kind: str
    window: int
    turns: int


@dataclass(slots=True)
class Client:
    """A client without memory at the server: it sends its whole history each time."""

    credential: str
    system: str
    clock: bool
    history: list[Message] = field(default_factory=list)
    branch: list[Message] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    """Models whose last prompt the history has left by an edit."""
    number: int = 0

    def begin(self, step: Step) -> None:
        """Change the history as the step says, up to its question."""
        self.number += 1
        if step.revert and self.branch:
            self.history, self.branch = self.branch, self.history
            self.moved = {MAIN, OTHER}
        if step.back:
            asked = [at for at, message in enumerate(self.history) if message["role"] == "user"]
            cut = asked[-min(step.back, len(asked))] if asked else 0
            self.branch = list(self.history) if step.keep else self.branch
            del self.history[cut:]
            self.moved = {MAIN, OTHER}
        if step.user:
            self.history.append({"role": "user", "content": step.user})

    def messages(self) -> list[Message]:
        """All messages of the next request."""
        time = f" It is {self.number // 60:02d}:{self.number % 60:02d} o'clock." if self.clock else ""
        return [{"role": "system", "content": self.system + time}, *self.history]

    def end(self, text: str, calls: list[dict[str, str]], step: Step) -> None:
        """Keep the answer with white space trimmed, and the tools' results."""
        answer: Message = {"role": "assistant", "content": text.strip()}
        if calls:
            answer["tool_calls"] = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls
            ]
        self.history.append(answer)
        for call, done in zip(calls, step.calls, strict=False):
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": done.result})


def play(cell: Cell, trace: Callable[[str], None] | None = None) -> Tally:
    """Play a session. `trace` is given a line per turn."""
    logging.getLogger("spillway").addHandler(logging.NullHandler())
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="spillway-survival-") as folder, ExitStack() as stack:
        session = Session(cell, Path(folder), stack, trace)
        for step in steps_of(cell.scenario, cell.window, cell.turns):
            session.turn(step)
        session.stop()
        tally = session.result()
    tally.seconds = perf_counter() - started
    return tally


class Session:
    """The servers, the proxy and the clients of one cell."""

    def __init__(self, cell: Cell, folder: Path, stack: ExitStack, trace: Callable[[str], None] | None) -> None:
        self._cell = cell
        self._trace = trace
        self._director = Director()
        self._grown = 0
        """Tokens by which the histories of all clients grew."""
        self._rng = Random(4848)
        self.fakes = self._backends(stack)
        self._settings = self._chosen(folder)
        self._proxy_stack = stack.enter_context(ExitStack())
        self._proxy = self._start()
        tenants = TENANTS if cell.scenario.name == "tenants" else TENANTS[:1]
        self.watcher = Watcher(tenants, cell.window, clock=cell.scenario.clock)
        self._clients = [self._client(number, name) for number, name in enumerate(tenants)]

    def _backends(self, stack: ExitStack) -> list[FakeBackend]:
        cell, windows = self._cell, {MAIN: self._cell.window}
        if cell.scenario.name == "switch":
            windows[OTHER] = cell.window // 2 if cell.window > SMALLEST else cell.window * 2
        pace = max(1, cell.window // 1024)
        return [
            stack.enter_context(
                FAKES[cell.kind]([FakeModel(name, window)], self._director.brain, tokens_per_chunk=pace)
            )
            for name, window in windows.items()
        ]

    def _chosen(self, folder: Path) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if self._cell.scenario.store == "sqlite":
            settings["store"] = f"sqlite:///{folder}/store.sqlite3"
        if self._cell.kind == "generic":
            models = {model.id: {"window": model.window} for fake in self.fakes for model in fake.models}
            settings["models"] = models
        return settings

    def _start(self) -> Proxy:
        named = [BackendSetting(url=fake.url, name=f"b{at}") for at, fake in enumerate(self.fakes)]
        return self._proxy_stack.enter_context(running_proxy(*named, **self._settings))

    def stop(self) -> None:
        """Stop the proxy, so that the store is written."""
        self._proxy_stack.close()

    def result(self) -> Tally:
        """What was counted."""
        tally, cell = self.watcher.tally, self._cell
        self.watcher.backends(self.fakes)
        tally.floor = max(0.0, (self._grown / cell.window - TARGET * len(self._clients)) / (TRIGGER - TARGET))
        return tally

    def _client(self, number: int, name: str) -> Client:
        rules = prose(Random(5), self._cell.window // 60)
        secret = f"The code of tenant is {CANARY.format(number)}."
        return Client(name, f"You are brief. {secret} {rules}", self._cell.scenario.clock)

    # One turn

    def turn(self, step: Step) -> None:
        """Play one step: the client's request, its answer, and a look at what the backends got."""
        if step.restart:
            self.stop()
            self._proxy = self._start()
        client = self._clients[step.tenant]
        known = _tokens(client.history)
        client.begin(step)
        messages = client.messages()
        self._expect(step, client)
        answer = Answer(step.stream)
        answer.ask(self._proxy, client.credential, self._body(step, messages))
        self._check(answer, step)
        got = self._drain()
        grown = step.model not in client.moved
        client.moved.discard(step.model)
        sent = Sent(step.tenant, step.model, messages, grown, answer.action, step.asked, answer.text, got)
        self.watcher.turn(sent)
        if answer.flaws:
            answer.text, answer.calls = self._director.planned()  # the session goes on as if all were well
        client.end(answer.text, answer.calls, step)
        self._grown += max(0, _tokens(client.history) - known)
        if self._trace is not None:
            self._trace(self._line(client.number, step, answer, messages, got))

    def _expect(self, step: Step, client: Client) -> None:
        calls = [ToolCall(call.name, call.arguments, f"call{client.number}x{at}") for at, call in enumerate(step.calls)]
        text = prose(self._rng, step.answer) if step.answer else ""
        if self._cell.scenario.name == "tenants":
            text = prose(Random(step.user), step.answer)
        self._director.expect(text, calls, step.asked)

    def _body(self, step: Step, messages: list[Message]) -> dict[str, Any]:
        scenario = self._cell.scenario
        body: dict[str, Any] = {"model": step.model, "messages": messages, "stream": step.stream}
        if scenario.tools:
            body["tools"] = TOOLS
        if scenario.answer_limit is not None:
            body["max_tokens"] = int(scenario.answer_limit * self._cell.window)
        return body

    def _check(self, answer: Answer, step: Step) -> None:
        said = self._director.said
        if not answer.flaws and said is not None and answer.text.strip() != said.strip():
            answer.flaws.append(f"the text differs: {answer.text[-60:]!r} for {said[-60:]!r}")
        named = [(call["name"], orjson.loads(call["arguments"])) for call in answer.calls]
        if not answer.flaws and named != [(call.name, orjson.loads(call.arguments)) for call in step.calls]:
            answer.flaws.append(f"the calls differ: {named}")
        at = self.watcher.tally.turns + 1
        self.watcher.tally.errors += [f"turn {at}: {flaw}" for flaw in answer.flaws]

    def _drain(self) -> list[Recorded]:
        got: list[Recorded] = []
        for fake in self.fakes:
            got += fake.chats()
            fake.requests.clear()
        return got

    def _line(self, number: int, step: Step, answer: Answer, messages: list[Message], got: list[Recorded]) -> str:
        """What became of a turn: estimate, and the requests that the backends got, with their true sizes."""
        fake = next(fake for fake in self.fakes if any(model.id == step.model for model in fake.models))
        whole = fake.count({"model": step.model, "messages": messages})
        requests = ", ".join(
            f"{'summary ' if asks_summary(body['messages']) else ''}{request.status}: {fake.count(body)} "
            f"in {len(body['messages'])}"
            for request in got
            if (body := request.json)
        )
        return (
            f"{number:4d} {step.model} {answer.action:10s} fill {answer.fill:>7} of {fake.models[0].window}, "
            f"client {whole} in {len(messages)}; {requests} {' '.join(answer.flaws)}"
        )


@dataclass(slots=True)
class Answer:
    """What a client makes of a response."""

    stream: bool
    text: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    action: str = ""
    fill: str = ""
    flaws: list[str] = field(default_factory=list)

    def ask(self, proxy: Proxy, credential: str, body: dict[str, Any]) -> None:
        """Send the request and read the response; whatever is wrong with it goes to `flaws`."""
        headers = {"authorization": f"Bearer {credential}", "content-type": "application/json"}
        try:
            response = proxy.client.post("/v1/chat/completions", content=orjson.dumps(body), headers=headers)
        except httpx.HTTPError as error:
            self.flaws.append(f"{type(error).__name__}: {error}")
            return
        self.action = response.headers.get("x-spillway-action", "")
        self.fill = response.headers.get("x-spillway-fill", "-")
        if response.status_code != 200:
            self.flaws.append(f"status {response.status_code}: {response.text[:300]}")
        elif self.stream:
            self._read_stream(response.content)
        else:
            self._read_whole(response.json())

    def _read_stream(self, content: bytes) -> None:
        seen = read_stream(content)
        self.text = seen.text
        self.calls = tool_calls(chunks(content))
        self.flaws += [f"error in the stream: {error}" for error in seen.errors]
        wanted = ["tool_calls"] if self.calls else ["stop"]
        if not seen.errors and (seen.done, seen.finishes) != (1, wanted):
            self.flaws.append(f"finish {seen.finishes}, {seen.done} times [DONE]")

    def _read_whole(self, parsed: dict[str, Any]) -> None:
        if not parsed.get("choices"):
            self.flaws.append(f"no choices: {str(parsed)[:300]}")
            return
        choice = parsed["choices"][0]
        message = choice["message"]
        self.text = message.get("content") or ""
        self.calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
        if choice["finish_reason"] not in {"stop", "tool_calls"}:
            self.flaws.append(f"finish {choice['finish_reason']}")


def _tokens(messages: list[Message]) -> int:
    return sum(map(_cost, messages))


def _cost(message: Message) -> int:
    calls = sum(len(call["function"]["arguments"]) // 3 for call in message.get("tool_calls", ()))
    return 4 + calls + _TOKENIZER.count(message["content"])
