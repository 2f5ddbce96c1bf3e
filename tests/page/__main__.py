"""Take the pictures of the page that the documents show: `python -m tests.page`."""

import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, FloatRect, Page, expect
from typing_extensions import override

from tests.fakes import FakeModel, Gate, LlamaCppFake, Question, Reply, asks_summary
from tests.openwebui.chat import browser, find_browser
from tests.openwebui.guide import FERRIES, QUESTION, Guide, notes, plan
from tests.page.stage import Asking, demo_proxy, visiting
from tests.proxying import Proxy, running_proxy

PICTURES = Path(__file__).parents[2] / "docs" / "images"
FRAME: FloatRect = {"x": 45, "y": 555, "width": 800, "height": 337}
MODEL = FakeModel("qwen3-8b", 4096)
SYSTEM = "You are a patient guide for people who travel by bicycle. Be brief, and never propose motorways."
WAY = re.compile(r"Day (\d+)\. From (\w+) towards (\w+): (\d+) km\. On the way: ([^.\n]+)")
SUMMARY = """## Goal and constraints
The user plans a ride to the Algarve by bicycle and gives notes on it in six parts; answers are brief, no motorways.

## State of the work
{state}

## Open items and next step
Say what the notes tell about ferries."""
HEAD = {"user-agent": "OpenWebUI/0.12"}


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    told = {key: {"type": "string", "description": value} for key, value in properties.items()}
    function = {"name": name, "description": description, "parameters": {"type": "object", "properties": told}}
    return {"type": "function", "function": function}


TOOLS = [
    tool("weather", "What the weather will be like.", town="Where.", day="When, as 2026-04-30."),
    tool("route", "A way between two towns, without motorways.", start="From where.", end="To where.", avoid="What to avoid."),
    tool("ferry", "When a ferry goes, and how many bicycles it takes.", landing="Of which landing.", day="When."),
]


class Writer(Guide):
    """A guide whose summaries keep what they should."""

    @override
    def __call__(self, question: Question) -> Reply:
        if not asks_summary(question):
            return super().__call__(question)
        told = " ".join(str(message.get("content")) for message in question.messages)
        ways = dict.fromkeys(WAY.findall(told))
        state = "\n".join(f"- Day {day}: {start} to {end}, {length} km; {sight}" for day, start, end, length, sight in ways)
        return Reply(text=SUMMARY.format(state=state))


class Scenes:
    """Conversations about a ride, and pictures of them."""

    def __init__(self, running: Browser, proxy: Proxy, fake: LlamaCppFake, guide: Guide) -> None:
        self._browser, self._proxy, self._fake, self._guide = running, proxy, fake, guide

    def talk(self, asked: list[str], said: str) -> list[dict[str, Any]]:
        """Ask one thing after the other, each answered with the same."""
        self._guide.answer = Reply(text=said)
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for each in asked:
            messages.append({"role": "user", "content": each})
            body = {"model": MODEL.id, "messages": messages, "tools": TOOLS}
            answer = self._proxy.chat(body, **HEAD).json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        return messages

    def notes(self, title: str, tokens: int) -> str:
        return notes(title, tokens, self._fake.template(MODEL).tokenizer.count)

    @contextmanager
    def shown(self, place: str, **options: Any) -> Iterator[Page]:
        with visiting(self._browser, self._proxy.url, **options) as visit:
            page = visit.open(place)
            expect(page.locator(".bar, .change-row").first).to_be_visible()
            yield page

    def conversations(self) -> None:
        self.talk(["Which towns lie between Lisbon and Faro?", self.notes("What I know of them:", 900)], plan(9))
        self.talk(["Pack a small bag for two weeks in spring."], plan(4))
        parts = ("first", "second", "third", "fourth", "fifth", "last")
        asked = [self.notes(f"My notes on the ride to the Algarve, {part} part:", 460) for part in parts]
        self.talk([*asked, QUESTION, "And which day is the hardest?"], FERRIES)
        gate = Gate(at=260)
        self._fake.delay = 0.02
        self._guide.answer = Reply(text=plan(60), gate=gate)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Plan the way back, day by day."}]
        body = {"model": MODEL.id, "messages": messages, "tools": TOOLS, "stream": True}
        asking = Asking(body, self._proxy.url, "a-key")
        gate.wait_reached(20)
        for name, options in {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}.items():
            with self.shown("conversations", **options) as page:
                expect(page.locator(".state.answering")).to_be_visible()
                page.screenshot(path=PICTURES / f"page-{name}.png")
        self._fake.delay = 0.0
        gate.open()
        asking.ended()

    def one(self) -> None:
        """A conversation with a summary, and what was sent in it."""
        told = self._proxy.client.get("/spillway/conversations").json()["conversations"]
        row = next(row for row in told if row["checkpoint"])
        with self.shown(f"c/{row['id']}", height=1150) as page:
            expect(page.locator(".block")).to_be_visible()
            page.screenshot(path=PICTURES / "page-conversation.png")
        with self.shown(f"r/{row['request']}", height=1150) as page:
            expect(page.locator(".change-row.summarised")).to_be_visible()
            page.screenshot(path=PICTURES / "page-request.png")


def start(running: Browser) -> None:
    """The chat that shows a pause, when it goes on after it."""
    with demo_proxy(pace=0.004) as proxy, visiting(running, proxy.url, height=1000) as visit:
        page = visit.open("start")
        shots: list[bytes] = []
        state = page.locator(".try .state")
        page.get_by_role("button", name="Send").click()
        while not shots or state.inner_text() != "paused to compact":
            shots.append(shot(page))
        shots = [*shots[:: max(1, -(-len(shots) // 6))], shot(page)]
        expect(state).to_have_text("answering")
        page.screenshot(path=PICTURES / "page-start.png")
        shots += [shot(page) for _ in range(3)]
        (PICTURES / "pause.svg").write_text(film(shots, seconds=0.7))


def shot(page: Page) -> bytes:
    """What is seen now, without the edges."""
    return page.screenshot(type="jpeg", quality=50, clip=FRAME)


def film(shots: list[bytes], seconds: float) -> str:
    """A moving picture of them, as SVG: each is shown for so long."""
    size = f'width="{FRAME["width"]}" height="{FRAME["height"]}"'
    share = 100 / len(shots)
    images = "".join(
        f'<image {size} style="animation-delay:{number * seconds:.1f}s" '
        f'href="data:image/jpeg;base64,{b64encode(each).decode()}"/>'
        for number, each in enumerate(shots)
    )
    style = (
        f"image{{opacity:0;animation:film {len(shots) * seconds:.1f}s step-end infinite}}"
        f"@keyframes film{{0%{{opacity:1}}{share:.2f}%{{opacity:0}}}}"
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{images}</svg>\n'


def main() -> int:
    """Exit status: 0 if all pictures are taken, 2 if there is no browser."""
    program = find_browser()
    if program is None:
        sys.stderr.write("chromium is not installed\n")
        return 2
    guide = Writer()
    with browser(program) as running:
        start(running)
        with LlamaCppFake([MODEL], guide) as fake, running_proxy(fake) as proxy:
            scenes = Scenes(running, proxy, fake, guide)
            scenes.conversations()
            scenes.one()
    return 0


if __name__ == "__main__":
    sys.exit(main())
