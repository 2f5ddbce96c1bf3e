"""Everything that runs, and what all scenes need of it."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from playwright.sync_api import expect

from tests.engine.cache import cached_model
from tests.engine.server import Engine, llama_server
from tests.engine.spec import ModelSpec
from tests.engine.spillway import Spillway, spillway_server
from tests.fakes import FakeModel, LlamaCppFake, Recorded, Reply
from tests.openwebui.chat import VIEW, ChatPage, browser
from tests.openwebui.guide import FERRIES, FOLLOW_UPS, Guide, notes, plan
from tests.openwebui.webui import open_webui
from tests.wording import COMPACTING, NEVER_SENT

MODEL = "guide-4k"
WINDOW = 4096
LARGE, LARGE_WINDOW = "guide-20k", 20_000
"""A window in which Open WebUI's built-in tools are offered, and are more than a quarter of it."""
STATUS_WORDS = (*NEVER_SENT, "statusHistory")
"""What must never reach a model."""
WALK = ModelSpec(stop_every=1000)
WALK_WINDOW = 768
"""The real model ends its answer after a thousand words of its cycle, a third more than its window holds."""


def say(text: str) -> None:
    """Tell the person who runs this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check(holds: object, what: str) -> None:
    """Say that something holds.

    Raises:
        AssertionError: it does not.
    """
    assert holds, f"not so: {what}"
    say(f"    ok  {what}")


@dataclass(frozen=True, slots=True)
class Stage:
    """Spillway with its default settings in front of two fake backends and a real engine, Open WebUI, one tab."""

    fake: LlamaCppFake
    large: LlamaCppFake
    guide: Guide
    engine: Engine
    proxy: Spillway
    chat: ChatPage

    def streamed(self) -> list[Recorded]:
        """Requests for streams that reached the fake, summaries among them: no background tasks."""
        return [request for request in self.fake.chats() if request.json.get("stream")]

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, as the fakes count."""
        return self.fake.template(self.fake.models[0]).tokenizer.count(text)

    def fill(self, share: float) -> None:
        """Begin a chat of two turns, after which about this fraction of the window is full.

        The next answer is the one about ferries.
        """
        self.guide.summaries, self.guide.answer = None, Reply(text=plan(8))
        answers = 2 * self.count_tokens(plan(8)) + 40
        asked = self.guide.summarised
        self.chat.open(MODEL)
        ride = next(self.guide.rides)
        for part in ("first", "second"):
            title = f"My notes on ride {ride}, the {part} half:"
            self.chat.ask(notes(title, int(WINDOW * share - answers) // 2, self.count_tokens))
        assert self.guide.summarised == asked, "compacted too early"
        self.guide.answer = Reply(text=FERRIES)

    def check_running(self) -> None:
        """The page shows that Spillway is compacting."""
        expect(self.chat.shimmer).to_be_visible()
        check(COMPACTING in self.chat.status.inner_text(), "the status line shimmers")

    def check_closed(self, text: str) -> None:
        """The newest answer's status line says this and does not shimmer, now and as it is stored."""
        expect(self.chat.status).to_contain_text(text)
        expect(self.chat.shimmer).to_have_count(0)
        history = self.newest_stored()["statusHistory"]
        opened = [event["done"] for event in history]
        # What takes a second tells in between how far it is.
        check(opened[-1] and not opened[0], f"the status line is closed: {history[-1]['description']}")

    def newest_stored(self) -> dict[str, Any]:
        """The newest answer as Open WebUI keeps it."""
        history = self.chat.stored()["chat"]["history"]
        newest: dict[str, Any] = history["messages"][history["currentId"]]
        return newest

    def check_survives(self) -> None:
        before = (self.chat.status.inner_text(), self.chat.text)
        self.chat.reload()
        expect(self.chat.status).to_have_text(before[0])
        expect(self.chat.shimmer).to_have_count(0)
        check((self.chat.status.inner_text(), self.chat.text) == before, "answer and status survive a reload")

    def check_follow_ups(self) -> None:
        try:
            expect(self.chat.follow_ups).to_have_text(FOLLOW_UPS)
        except AssertionError:
            # On a busy machine they have been seen to stay away once; why was not found.
            say("        no follow-ups; one more question")
            self.chat.ask("And then?")
            expect(self.chat.follow_ups).to_have_text(FOLLOW_UPS)
        check(True, f"the page proposes {len(FOLLOW_UPS)} follow-ups")

    def check_no_status_upstream(self) -> None:
        """No request that reached a model so far has a word of status in it."""
        bodies = [orjson.dumps(request.json).decode() for fake in (self.fake, self.large) for request in fake.chats()]
        told = {word for body in bodies for word in STATUS_WORDS if word in body}
        check(bodies and not told, f"no status text in {len(bodies)} requests to the model")


@contextmanager
def stage(program: str, folder: Path, shots: Path) -> Iterator[Stage]:
    """Start everything; `folder` gets data and logs, `shots` the pictures."""
    guide = Guide()
    with ExitStack() as stack:
        fake = LlamaCppFake([FakeModel(MODEL, WINDOW)], guide, tokens_per_chunk=4, delay=0.002)
        large = LlamaCppFake([FakeModel(LARGE, LARGE_WINDOW)], guide, tokens_per_chunk=4, delay=0.002)
        stack.enter_context(fake)
        stack.enter_context(large)
        model = cached_model(WALK)
        engine = stack.enter_context(
            llama_server(model.path, log=folder / "engine.log", alias="walk", words=model.words, ctx=WALK_WINDOW)
        )
        urls = [fake.url, large.url, engine.url]
        proxy = stack.enter_context(spillway_server(urls, log=folder / "spillway.log", summary_wait=120.0))
        say(f"Spillway     {proxy.url}")
        url = stack.enter_context(open_webui(proxy.v1, folder))
        say(f"Open WebUI   {url}")
        page = stack.enter_context(browser(program)).new_page(viewport=VIEW)
        yield Stage(fake, large, guide, engine, proxy, ChatPage(page, url, shots))
