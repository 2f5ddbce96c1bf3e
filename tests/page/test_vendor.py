"""The page in short: its files, of which those of others are what THIRD_PARTY.md names, and the first visit."""

import gzip
import hashlib
import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.page.stage import demo_proxy, visiting

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "proxy" / "page" / "static"
VENDOR = STATIC / "vendor"
LARGEST = 45_000
"""Bytes of the whole page, each file compressed by itself."""
_ROW = re.compile(r"^\| `([\w-]+\.js)` \| .+ \| `([0-9a-f]{64})` \| .+ \|$", re.MULTILINE)
FILES = [path for path in STATIC.rglob("*") if path.is_file()]


def test_the_files_of_others_are_those_that_are_named() -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    assert dict(_ROW.findall((ROOT / "THIRD_PARTY.md").read_text())) == digests != {}


def test_the_page_is_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in FILES) <= LARGEST


def test_the_page_names_no_other_host_and_nothing_that_its_own_policy_would_refuse() -> None:
    """No script or style in the document, no attribute of style, no markup made of text."""
    for path in FILES:
        if VENDOR not in path.parents:
            text = path.read_text()
            assert text.count("\n") <= 400, path.name
            assert re.findall(r"https?://(?!www\.w3\.org/)[\w.]*\w\.[a-z]", text) == [], path.name
            assert re.findall(r"innerHTML|\bstyle=\"|<style|<script>|\bon\w+=\"|eval\(", text) == [], path.name


def test_the_first_visit_says_what_it_is_and_shows_a_pause_and_what_follows(browser: Browser) -> None:
    with demo_proxy() as proxy, visiting(browser, proxy.url) as visit:
        page = visit.open()
        expect(page).to_have_url(f"{proxy.url}/#/start")
        expect(page.get_by_role("main")).to_contain_text(f"{proxy.url}/v1")
        expect(page.get_by_role("main")).to_contain_text("built-in demo answers")
        expect(page.locator(".found")).to_contain_text("spillway-demo 4,096 tokens")
        assert page.get_by_label("Message", exact=True).input_value() == "Count to 3000"
        page.get_by_role("button", name="Send").click()
        chat = page.locator(".try")
        expect(chat.locator(".said")).to_contain_text("2999, 3000.")
        expect(chat.locator(".state")).to_have_text("idle")
        page.get_by_role("textbox", name="Message").fill("Hello")
        page.get_by_role("button", name="Send").click()
        expect(chat.locator(".said")).to_contain_text("You wrote:")
        expect(chat.locator(".state")).to_have_text("idle")
        chat.get_by_role("link", name="Open the conversation").click()
        expect(page.locator(".turn").last).to_contain_text("Paused once to compact while answering, resumed once.")
        expect(page.locator(".chart > svg .event.paused")).to_have_count(1)
