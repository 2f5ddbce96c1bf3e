"""Spillway before a model with a small window, at the two moments at which a stream gets status frames."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

import httpx
import pytest
from typing_extensions import override

from tests.e2e.clients.talk import MODEL, NEXT, Ask, Body, Job, Seen, fields_of, two_turns
from tests.fakes import FakeModel, LlamaCppFake, Question, Recorded, Reply, ToolCall, summariser, walk, words
from tests.histories import function
from tests.proxying import Proxy, running_proxy
from tests.wording import NEVER_SENT

WINDOW = 512
LARGE = "large"
"""The model that summarises."""
NOTED = "noted"
CALLS = (
    ToolCall("get_weather", '{"city": "Berlin", "unit": "celsius"}', "call_first"),
    ToolCall("get_weather", '{"city": "Oslo"}', "call_second"),
)
TOOLS: list[Body] = [function("get_weather", "The weather in a city.", city="string", unit="string")]


@dataclass(frozen=True, slots=True)
class Scene:
    """A first turn whose stream carries status. `last` is the number of the last word of its answer."""

    name: str
    messages: list[Body]
    last: int
    tools: bool = False
    usage: bool = False

    @override
    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        return words(1, self.last)

    @property
    def early(self) -> bool:
        """Whether the status comes before the first byte of the answer."""
        return self.messages is not GO

    def brain(self, question: Question) -> Reply:
        """Counts up, then calls the tools if there are any; the second question is answered in a word."""
        if question.last_user.endswith(NEXT):  # what was recalled may stand in front of it
            return Reply(text=NOTED)
        if isinstance(question.body.get("response_format"), dict):
            return Reply(text='{"count": 5}')
        said = walk(last=self.last)(question)
        return replace(said, tool_calls=CALLS) if question.tools else said


def _long_history() -> list[Body]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": f"{number} " + "word " * 60} for number in range(9)]


GO: list[Body] = [{"role": "user", "content": "go"}]
EARLY = Scene("before-the-first-byte", _long_history(), 5)
MIDDLE = Scene("in-mid-answer", GO, 280, usage=True)
EARLY_TOOLS = replace(EARLY, name="before-the-first-byte-tools", tools=True, usage=True)
MIDDLE_TOOLS = replace(MIDDLE, name="in-mid-answer-tools", tools=True, usage=False)
SCENES = (EARLY, MIDDLE, EARLY_TOOLS, MIDDLE_TOOLS)


@dataclass(frozen=True, slots=True)
class Stage:
    """A running scene, under a key of this test's own."""

    scene: Scene
    proxy: Proxy
    fake: LlamaCppFake
    key: str = field(default_factory=lambda: uuid4().hex)

    def job(self, **fields: Any) -> Job:
        """The scene's first turn."""
        asked: Body = {
            "base": f"{self.proxy.url}/v1", "key": self.key, "messages": self.scene.messages,
            "tools": TOOLS if self.scene.tools else [], "usage": self.scene.usage,
        }  # fmt: skip
        return Job(**{**asked, **fields})

    def post(self, **fields: Any) -> httpx.Response:
        """The scene's first turn, from no client in particular; its status form by the name of a header."""
        status = {"x-spillway-status": fields.pop("status")} if "status" in fields else {}
        body = {**fields_of(self.job()), "messages": self.scene.messages, **fields}
        return self.proxy.chat(body, authorization=f"Bearer {self.key}", **status)

    @property
    def chats(self) -> list[Recorded]:
        return [chat for chat in self.fake.chats() if chat.header("authorization") == f"Bearer {self.key}"]

    def take(self, ask: Ask, **fields: Any) -> list[Seen]:
        """Two turns in that client's way, checked."""
        job = self.job(**fields)
        with no_complaints():
            answers = two_turns(job, ask)
        self.check(job, answers)
        return answers

    def check(self, job: Job, answers: list[Seen]) -> None:
        """Both turns: what was read, usage where it was asked for, and that no status went back."""
        first, second = answers
        self.check_first(first)
        assert (first.usage is not None) is (job.usage or job.whole)
        self.check_second(second)

    def check_first(self, seen: Seen) -> None:
        """The client read what the model said and nothing else."""
        scene = self.scene
        assert seen.text == scene.text
        assert seen.finishes == ["tool_calls" if scene.tools else "stop"]
        assert seen.calls == ([[call.id, call.name, call.arguments] for call in CALLS] if scene.tools else [])
        if seen.usage is not None:
            counts = [seen.usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")]
            assert counts[0] + counts[1] == counts[2]
            # A word is two tokens; the calls come on top.
            assert 2 * scene.last - 3 <= counts[1] <= 2 * scene.last + 60

    def check_second(self, seen: Seen) -> None:
        """What the client sent back went well, and its first stream was one with status in it."""
        assert (seen.text, seen.finishes, seen.calls) == (NOTED, ["stop"], [])
        assert self.chats[-1].json["messages"][-1]["content"].endswith(NEXT)
        summaries = [chat for chat in self.chats if chat.json["model"] == LARGE]
        resumed = [chat for chat in self.chats if chat.json.get("continue_final_message")]
        assert summaries
        assert bool(resumed) is not self.scene.early
        self.check_no_status()

    def check_no_status(self) -> None:
        """No status reached the model, in any request."""
        asked = "\n".join(chat.content.decode() for chat in self.chats)
        assert [part for part in NEVER_SENT if part in asked] == []
        assert self.fake.invalid_histories == []


class StageOf(Protocol):
    """Gives the running stage of a scene; the servers are shared, the key is new each time."""

    def __call__(self, scene: Scene) -> Stage: ...


@pytest.fixture(scope="session")
def stages() -> Iterator[StageOf]:
    """A model and a proxy for each scene, started when it is first wanted."""
    started: dict[str, Stage] = {}
    with ExitStack() as stack:

        def of(scene: Scene) -> Stage:
            if scene.name not in started:
                brain = summariser(scene.brain)
                models = [FakeModel(MODEL, WINDOW), FakeModel(LARGE, 32 * WINDOW)]
                fake = stack.enter_context(LlamaCppFake(models, brain))
                # In a window this small the model itself would summarise in many small steps.
                proxy = stack.enter_context(running_proxy(fake, summary_model=LARGE))
                started[scene.name] = Stage(scene, proxy, fake)
            return replace(started[scene.name], key=uuid4().hex)

        yield of


class _Complaints(logging.Handler):
    """Keeps what clients log as warnings and worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name.split(".")[0] not in {"spillway", "uvicorn", "asyncio"}:
            self.texts.append(f"{record.name}: {record.getMessage()}")


@contextmanager
def no_complaints() -> Iterator[None]:
    """No client logs a warning; those that are raised are errors anyway."""
    handler = _Complaints()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.texts == []
