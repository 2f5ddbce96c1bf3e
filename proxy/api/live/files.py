"""The files of the page. They hold nothing but the program, so whoever may call Spillway gets them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from proxy.core.errors import NotFound
from proxy.core.headers import Headers
from proxy.exchange import Exchange

FOLDER = Path(__file__).parents[2] / "page" / "static"
"""Of the package, so that it is installed with it."""
INDEX = "index.html"
PREFIX = "/ui/"
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".txt": b"text/plain; charset=utf-8",
}
_GUARDS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept, accept-encoding"),
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file, also compressed."""

    kind: bytes
    etag: bytes
    data: bytes
    zipped: bytes


@lru_cache(maxsize=4)
def files_in(folder: Path) -> Mapping[str, PageFile]:
    """All files of kinds that a page has, by their paths; read once."""
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES and path.is_file()
    }


def wants_page(headers: Headers) -> bool:
    """Return whether a browser requests a page, rather than a program something that a backend has at that path."""
    return any(name == b"accept" and b"text/html" in value.lower() for name, value in headers)


class PageFiles:
    """Answers with the files of the page."""

    def __init__(self) -> None:
        self._files = files_in(FOLDER)

    @property
    def there(self) -> bool:
        """Return whether the page is installed."""
        return INDEX in self._files

    async def index(self, exchange: Exchange) -> None:
        """Answer with the page itself."""
        await _reply(exchange, self._files[INDEX])

    async def answer(self, exchange: Exchange) -> None:
        """Answer with the file that the path names.

        Raises:
            NotFound: there is none.
        """
        name = exchange.path.removeprefix(PREFIX)
        if (file := self._files.get(name)) is None:
            raise NotFound(f"The page has no file {name!r}.")
        await _reply(exchange, file)


async def _reply(exchange: Exchange, file: PageFile) -> None:
    head = [*_GUARDS, (b"etag", file.etag)]
    known = [each.strip().removeprefix("W/") for each in (exchange.header(b"if-none-match") or "").split(",")]
    if file.etag.decode() in known:
        await exchange.reply(304, head, b"")
        return
    zipped = "gzip" in (exchange.header(b"accept-encoding") or "").lower() and len(file.zipped) < len(file.data)
    data = file.zipped if zipped else file.data
    if zipped:
        head.append((b"content-encoding", b"gzip"))
    head += [(b"content-type", file.kind), (b"content-length", b"%d" % len(data))]
    await exchange.reply(200, head, data)


def _read(path: Path) -> PageFile:
    data = path.read_bytes()
    etag = b'"%b"' % blake2b(data, digest_size=12).hexdigest().encode()
    return PageFile(_TYPES[path.suffix], etag, data, gzip.compress(data, 9, mtime=0))
