"""What the page is made with: what THIRD_PARTY.md names and nothing else, and little of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
from dataclasses import replace

import pytest

from tests.page.vendor import NOTICES, VENDOR, Source, fetched, present, sources, strangers

STATIC = VENDOR.parent
LARGEST = 60_000
"""Bytes of the whole page, each file compressed by itself."""


def archive(path: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        member = tarfile.TarInfo(path)
        member.size = len(data)
        files.addfile(member, io.BytesIO(data))
    return packed.getvalue()


DATA = b"export const nothing = null;\n"
ARCHIVE = archive("package/dist/small.js", DATA)
SMALL = Source(
    name="small.js",
    package="small",
    version="1.2.3",
    path="dist/small.js",
    integrity="sha512-" + base64.b64encode(hashlib.sha512(ARCHIVE).digest()).decode(),
    sha256=hashlib.sha256(DATA).hexdigest(),
)


def test_the_files_are_those_that_are_named() -> None:
    wanted = sources(NOTICES.read_text())
    assert len(wanted) == len(present()) > 0
    assert strangers(wanted, present()) == {}


def test_every_file_is_named_once_with_its_licence() -> None:
    text = NOTICES.read_text()
    for name in present():
        assert len(re.findall(rf"^\| `{re.escape(name)}` \|", text, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("there", "wrong"),
    [
        ({"small.js": DATA}, {}),
        ({"small.js": DATA + b" "}, {"small.js": "is not the file that THIRD_PARTY.md names"}),
        ({"small.js": DATA, "other.js": b""}, {"other.js": "is not in THIRD_PARTY.md"}),
        ({}, {"small.js": "is not there"}),
    ],
)
def test_a_file_that_is_not_the_one_named_is_found(there: dict[str, bytes], wrong: dict[str, str]) -> None:
    assert strangers([SMALL], there) == wrong


def test_a_file_is_taken_out_of_the_archive_of_its_version() -> None:
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return ARCHIVE

    assert list(fetched([SMALL], fetch)) == [(SMALL, DATA)]
    assert asked == ["https://registry.npmjs.org/small/-/small-1.2.3.tgz"]


@pytest.mark.parametrize("source", [replace(SMALL, integrity="sha512-" + "A" * 88), replace(SMALL, sha256="0" * 64)])
def test_another_archive_or_file_is_not_taken(source: Source) -> None:
    with pytest.raises(ValueError, match=r"THIRD_PARTY\.md says"):
        list(fetched([source], lambda _: ARCHIVE))


def test_the_page_is_small() -> None:
    sizes = {
        path.relative_to(STATIC).as_posix(): len(gzip.compress(path.read_bytes(), 9))
        for path in STATIC.rglob("*")
        if path.is_file()
    }
    assert sum(sizes.values()) <= LARGEST, sizes


def test_no_file_of_the_page_is_long() -> None:
    own = [path for path in STATIC.rglob("*") if path.is_file() and VENDOR not in path.parents]
    assert own
    assert {path.name: n for path in own if (n := path.read_text().count("\n")) > 400} == {}


def test_the_page_names_no_other_host_and_nothing_that_its_own_policy_would_refuse() -> None:
    """No script or style in the document, no attribute of style, no markup made of text."""
    for path in STATIC.rglob("*"):
        if path.is_file() and VENDOR not in path.parents:
            text = path.read_text()
            assert re.findall(r"https?://(?!www\.w3\.org/)[\w.]*\w\.[a-z]", text) == [], path.name
            assert re.findall(r"innerHTML|\bstyle=\"|<style|<script>|\bon\w+=\"|eval\(", text) == [], path.name
