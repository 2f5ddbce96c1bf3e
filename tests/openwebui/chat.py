"""Open WebUI's chat page in a browser, as a user sees and uses it (0.12.4)."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Programs that will do, the first one installed is taken."""
FLAGS = (
    "--no-sandbox",  # which root can't have
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
)
VIEW: ViewportSize = {"width": 1100, "height": 800}
"""Size of the page in CSS pixels."""
LOAD, ANSWER, CHANGE = 60.0, 90.0, 20.0
"""Seconds that a page may take to load, an answer to end, and anything else on the page to change."""


class ChatPage:
    """One chat in one tab."""

    def __init__(self, page: Page, url: str, shots: Path) -> None:
        self.page = page
        self._url = url
        self._shots = shots
        self._stop = page.get_by_role("button", name="Stop", exact=True)

    def open(self, model: str) -> None:
        self.page.goto(f"{self._url}/?models={model}")
        expect(self.page.locator("#chat-input")).to_be_visible(timeout=LOAD * 1000)

    def say(self, text: str) -> None:
        """Send a message; returns when its answer has been asked for."""
        before = self._newest_id()
        self.page.locator("#chat-input").click()
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Enter")
        # Their number tells nothing: the page forgets old ones. With a new one it shows the Stop button.
        expect(self._messages).not_to_have_count(0)
        expect(self._messages.last).not_to_have_attribute("id", before)

    def stop(self) -> None:
        self._stop.click()

    def wait_ended(self) -> None:
        expect(self._stop).to_have_count(0, timeout=ANSWER * 1000)

    def ask(self, text: str) -> None:
        self.say(text)
        self.wait_ended()

    def reload(self) -> None:
        """Load the page again: now everything comes from Open WebUI's database."""
        before = self._newest_id()
        self.page.reload()
        expect(self._messages.last).to_have_attribute("id", before, timeout=LOAD * 1000)

    def shot(self, name: str, *, beginning: bool = False) -> None:
        """Take a picture of what is seen, on demand of the beginning of the newest answer."""
        if beginning:
            self.status.evaluate("line => line.closest('[id^=message-]').scrollIntoView()")
        self.page.screenshot(path=self._shots / f"{name}.png")

    # What is seen

    @property
    def _messages(self) -> Locator:
        return self.page.locator('[id^="message-"]:has(.chat-assistant)')

    def _newest_id(self) -> str:
        newest = self._messages.last.get_attribute("id") if self._messages.count() else None
        return newest or "none"

    @property
    def newest(self) -> Locator:
        """The newest answer with everything above and below its text."""
        return self._messages.last.locator(".chat-assistant")

    @property
    def status(self) -> Locator:
        return self.newest.locator(".status-description")

    @property
    def shimmer(self) -> Locator:
        """The same while it shows that something is going on."""
        return self.newest.locator(".status-description .shimmer")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.newest.locator(".markdown-prose").all_inner_texts()).split())

    @property
    def follow_ups(self) -> Locator:
        return self.page.get_by_role("button", name=re.compile("^Follow up: "))

    @property
    def title(self) -> Locator:
        return self.page.locator("h1")

    def stored(self) -> dict[str, Any]:
        return self._fetch("")

    def compact(self, model: str) -> dict[str, Any]:
        """Have Open WebUI compact the chat itself."""
        return self._fetch("/compact", {"model": model})

    def _fetch(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        script = """async ([path, body]) => {
            const headers = {authorization: `Bearer ${localStorage.token}`, "content-type": "application/json"};
            const sent = body ? {method: "POST", headers, body: JSON.stringify(body)} : {headers};
            return await (await fetch(`/api/v1/chats/${path}`, sent)).json();
        }"""
        fetched: dict[str, Any] = self.page.evaluate(script, [self.page.url.rsplit("/", 1)[1] + path, body])
        return fetched


def find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Run a browser without a window."""
    expect.set_options(timeout=CHANGE * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()
