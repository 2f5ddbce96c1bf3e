"""The files of the page: those of others are what THIRD_PARTY.md names, and all of them are few and small."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

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
