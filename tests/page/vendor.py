"""Fetch anew what the page stands on: `python -m tests.page.vendor`.

THIRD_PARTY.md names each file, the npm package it is taken from, the integrity of the package's archive (as npm tells it)
and the digest of the file. Nothing is written unless all of them are as they stand there; a new version is named there first.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTICES = ROOT / "THIRD_PARTY.md"
VENDOR = ROOT / "proxy" / "page" / "static" / "vendor"
REGISTRY = "https://registry.npmjs.org"
_ROW = re.compile(
    r"^\| `([\w./-]+)` \| .+ \| `([\w-]+)@([\w.-]+)`, `([\w./-]+)` \| `(sha512-[\w+/=]+)` \| `([0-9a-f]{64})` \| .+ \|$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the page: its name there, and where it is taken from.

    `integrity`: of the archive, as Subresource Integrity writes it. `sha256`: of the file, in hexadecimal.
    """

    name: str
    package: str
    version: str
    path: str
    integrity: str
    sha256: str

    @property
    def url(self) -> str:
        """Of the archive."""
        return f"{REGISTRY}/{self.package}/-/{self.package}-{self.version}.tgz"


def sources(notices: str) -> list[Source]:
    """What THIRD_PARTY.md names."""
    return [Source(*row) for row in _ROW.findall(notices)]


def fetched(wanted: list[Source], fetch: Callable[[str], bytes]) -> Iterator[tuple[Source, bytes]]:
    """Each file, taken out of its archive.

    Raises:
        ValueError: an archive or a file is not the one that was named; the message has the digest found.
    """
    for source in wanted:
        archive = fetch(source.url)
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        if found != source.integrity:
            raise ValueError(f"{source.url} has the integrity {found}, THIRD_PARTY.md says {source.integrity}")
        data = _member(archive, f"package/{source.path}")
        if (digest := hashlib.sha256(data).hexdigest()) != source.sha256:
            raise ValueError(f"{source.path} of {source.url} has {digest}, THIRD_PARTY.md says {source.sha256}")
        yield source, data


def _member(archive: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        member = files.extractfile(path)
        if member is None:
            raise ValueError(f"{path} is no file")
        return member.read()


def strangers(wanted: list[Source], present: Mapping[str, bytes]) -> dict[str, str]:
    """What is wrong with the files that are there, by name."""
    named = {source.name: source.sha256 for source in wanted}
    wrong = dict.fromkeys(named.keys() - present.keys(), "is not there")
    for name, data in present.items():
        if name not in named:
            wrong[name] = "is not in THIRD_PARTY.md"
        elif hashlib.sha256(data).hexdigest() != named[name]:
            wrong[name] = "is not the file that THIRD_PARTY.md names"
    return wrong


def present() -> dict[str, bytes]:
    """The files that are there."""
    files = (path for path in VENDOR.rglob("*") if path.is_file())
    return {path.relative_to(VENDOR).as_posix(): path.read_bytes() for path in files}


@cache
def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        data: bytes = answer.read()
    return data


def main() -> int:
    """Exit status: 0 if all files are written, 1 if something is not what it should be."""
    try:
        files = list(fetched(sources(NOTICES.read_text()), _fetch))
    except (OSError, ValueError, KeyError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    for source, data in files:
        place = VENDOR / source.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        sys.stdout.write(f"{place.relative_to(ROOT)}: {source.package} {source.version}, {len(data):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
