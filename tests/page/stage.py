"""What the tests of the page stand on: a browser, a model that can be held, and visits that find fault with what they see."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Response

from proxy.core.settings import BackendSetting
from proxy.demo import create_demo
from tests.fakes import FakeModel, Gate, LlamaCppFake, Question, Reply, qa, summariser, words
from tests.fakes.server import App, BackgroundServer
from tests.openwebui.chat import browser, find_browser
from tests.pipeline.talk import Talk
from tests.proxying import Proxy, read_stream, running_proxy

__all__ = ["Holder", "Stage", "Visit", "chromium", "demo_proxy", "faults", "staged", "visiting"]

WINDOW = 2048
MODEL = "m"
PHONE = (390, 844)
"""Pixels of CSS."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, or none of its tests."""
    program = find_browser()
    if program is None:
        pytest.skip("chromium is not installed")
    with browser(program) as running:
        yield running


class Holder:
    """A model that says at length what is asked for slowly, and stands at a gate; else it knows the codes it was told."""

    def __init__(self) -> None:
        self.gate = Gate(at=30)
        self._talks = summariser(qa())

    def __call__(self, question: Question) -> Reply:
        if "slowly" not in question.last_user:
            return self._talks(question)
        return Reply(text=words(1, 120), gate=self.gate)


@dataclass
class Asking:
    """A client with a streamed answer under way."""

    body: dict[str, Any]
    url: str
    key: str
    came: bytes = b""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        head = {"authorization": f"Bearer {self.key}"}
        url = f"{self.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=self.body, headers=head, timeout=60, trust_env=False) as answer:
            for data in answer.iter_raw():
                self.came += data

    def ended(self) -> Any:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return read_stream(self.came)


@dataclass
class Stage:
    """A proxy in front of a model that can be held."""

    proxy: Proxy
    fake: LlamaCppFake
    holder: Holder

    def talk(self, topic: str, turns: int = 0, **options: Any) -> Talk:
        talk = Talk(self.proxy, topic=topic, turns=0, **options)
        for _ in range(turns):
            talk.ask()
        return talk

    def compacted(self, topic: str, **options: Any) -> Talk:
        talk = self.talk(topic, **options)
        while not any(row["checkpoint"] for row in self.rows(topic, talk.key)):
            assert talk.turns < 20
            talk.ask()
        return talk

    def rows(self, topic: str, key: str = "a-key") -> list[dict[str, Any]]:
        """What is told of the conversations about it."""
        head = {"authorization": f"Bearer {key}"}
        told = self.proxy.client.get("/spillway/conversations", headers=head).json()["conversations"]
        return [row for row in told if topic in (row["title"] or "")]

    def slowly(self, topic: str) -> Asking:
        """A stream that stands at a gate after some words."""
        self.holder.gate = Gate(at=30)
        messages = [{"role": "user", "content": f"Tell me slowly about {topic}."}]
        asked = {"model": MODEL, "messages": messages, "stream": True}
        asking = Asking(asked, self.proxy.url, "a-key")
        self.holder.gate.wait_reached(20)
        return asking

    def forwarded(self) -> str:
        """The messages of the newest prompt that was no summary's."""
        chats = [each for each in self.fake.chats() if "Summarise" not in str(each.json["messages"][-1])]
        return "\n".join(str(message["content"]) for message in chats[-1].json["messages"])


@contextmanager
def staged(**settings: Any) -> Iterator[Stage]:
    """A proxy with a window that a few turns fill."""
    holder = Holder()
    with LlamaCppFake([FakeModel(MODEL, WINDOW)], holder) as fake, running_proxy(fake, **settings) as proxy:
        try:
            yield Stage(proxy, fake, holder)
        finally:
            holder.gate.open()


@contextmanager
def demo_proxy(pace: float = 0.0) -> Iterator[Proxy]:
    """A proxy that found no backend, but with less patience; `pace` is in seconds per token."""
    server = BackgroundServer(cast("App", create_demo(pace=pace)))
    server.start()
    demo = BackendSetting(url=f"http://127.0.0.1:{server.port}", name="demo", kind="llamacpp")
    try:
        with running_proxy(demo) as proxy:
            yield proxy
    finally:
        server.stop()


@dataclass
class Visit:
    """A page that is open, and what was seen that should not be."""

    page: Page
    url: str
    refused: Collection[int]
    """Statuses of answers that may be errors."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"thrown: {error}"))
        self.page.on("response", self._answered)
        self.page.on("request", lambda request: self._asked(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        # What its own policy refused is told as an error here; a status is looked at by itself.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.wrong.append(f"{message.type}: {message.text}")

    def _answered(self, answer: Response) -> None:
        if answer.status >= 400 and answer.status not in self.refused:
            self.wrong.append(f"{answer.status}: {answer.url}")

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.wrong.append(f"another host: {url}")

    def open(self, place: str = "") -> Page:
        self.page.goto(f"{self.url}/#/{place}" if place else f"{self.url}/")
        return self.page


@contextmanager
def visiting(
    browser: Browser, url: str, *, refused: Collection[int] = (), dark: bool = False, phone: bool = False, height: int = 800
) -> Iterator[Visit]:
    wide, high = PHONE if phone else (1100, height)
    context = browser.new_context(
        viewport={"width": wide, "height": high}, color_scheme="dark" if dark else "light", reduced_motion="reduce",
        locale="en-GB",
    )  # fmt: skip
    try:
        visit = Visit(context.new_page(), url, refused)
        yield visit
        assert visit.wrong == [], visit.wrong
    finally:
        context.close()


def faults(page: Page) -> list[str]:
    """What keeps people from using what is shown, as axe-core finds it, with the first place."""
    found = Axe().run(page).response["violations"]
    return [f"{fault['id']} ({fault['impact']}): {fault['nodes'][0]['html']}" for fault in found]
