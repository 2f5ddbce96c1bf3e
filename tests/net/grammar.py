"""Responses of HTTP/1.1 as servers write them, with the faults and the liberties that they take."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
    b"HTTP/1.1 102\r\n\r\n",
    b"HTTP/1.1 199 x\r\ncontent-length: 3\r\n\r\n",
    b"HTTP/1.1 150 x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
)
VERSIONS = (
    b"HTTP/1.0 ",
    b"HTTP/2.0 ",
    b"http/1.1 ",
    b"HTTP/1.1  ",
    b"HTTP/1.2 ",
    b"ICY ",
    b"HTTP/1.1\t",
    b"",
)
STATUSES = (b"204", b"304", b"500", b"205", b"999", b"000", b"099", b"20", b"2000", b"+20", b"1e2")
REASONS = (b" ", b"", b" a\x00b", b" \xff", b"  x ", b"\tx")
NAMES = (
    b"content-length:",
    b"Content-Length :",
    b" Content-Length: ",
    b"Content-Length:\t",
    b"Content-Length:\x0b",
)
CODINGS = (
    b"Chunked",
    b"gzip, chunked",
    b"chunked, gzip",
    b"identity",
    b"xchunked",
    b"chunked ",
    b"\x0bchunked",
    b'"chunked"',
    b"chunked, chunked",
    b",chunked",
    b"chunked;q=1",
    b"\r\n chunked",
    b"",
)
LINES = (
    b"X: a\r\n b",
    b"X",
    b": a",
    b"X Y: a",
    b"X:\x00",
    b"X: a\x0bb",
    b"X\x00: b",
    b"X: \xff",
    b"\tX: a",
    b"X(: b",
    b"A:",
    b"A: b ",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Keep-Alive: timeout=5",
    b"Content-Length: 5\r\n 0",
    b"Upgrade: h2c\r\nConnection: upgrade",
    b"X: " + b"y" * 5000,
)
EXTENSIONS = (b";a", b";a=b", b';a="b"', b"; a", b" ;a", b";", b';a="\n"', b";\x00", b";" + b"a" * 300)
TRAILERS = (b"T: v", b"T", b"Content-Length: 7", b"Transfer-Encoding: chunked", b"T : v", b" folded", b": x")
BEHIND = (b"junk", b"\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"\x00")


def _mostly(usual: bytes, odd: tuple[bytes, ...], often: int = 30) -> st.SearchStrategy[bytes]:
    return st.integers(0, often).flatmap(lambda n: st.sampled_from(odd) if n == 0 else st.just(usual))


END = _mostly(b"\r\n", (b"\n", b"\r", b"\r\r\n", b""), 60)


@st.composite
def responses(draw: DrawFn) -> bytes:
    """The bytes that a server sends until it closes the connection."""
    out = (
        b"".join(draw(st.lists(st.sampled_from(INTERIM), max_size=2)))
        if draw(st.integers(0, 5)) == 0
        else b""
    )
    out += draw(_mostly(b"HTTP/1.1 ", VERSIONS)) + draw(_mostly(b"200", STATUSES, 4))
    out += draw(_mostly(b" OK", REASONS)) + draw(END)
    body = draw(st.sampled_from([b"", b"hello", b"data: x\r\n\r\n" * 3]))
    framing = draw(st.sampled_from(["length", "chunks", "close", "both", "two lengths", "two codings"]))
    lines = _framing(draw, framing, len(body))
    lines += draw(st.lists(_mostly(b"A: b", LINES, 2), max_size=2))
    out += b"".join(line + draw(END) for line in draw(st.permutations(lines))) + draw(END)
    chunked = framing in ("chunks", "both", "two codings") and draw(st.integers(0, 9)) > 0
    return out + (_chunks(draw, body) if chunked else body) + draw(_mostly(b"", BEHIND, 6))


def _framing(draw: DrawFn, framing: str, size: int) -> list[bytes]:
    def length(told: int = size) -> bytes:
        odd = (b"+%d", b"%d ", b"0%d", b"0x%d", b"-%d", b"%d,%d", b"%d, %d", b"1_%d", b"9" * 25 + b"%d")
        form = draw(_mostly(b"%d", odd, 8))
        value = form % ((told,) * form.count(b"%d"))
        return draw(_mostly(b"Content-Length: ", NAMES)) + draw(
            _mostly(value, (b"", b"\xef\xbc\x95", b"x"), 30)
        )

    def coding() -> bytes:
        return draw(_mostly(b"Transfer-Encoding: ", (b"transfer-encoding:", b"Transfer-Encoding : "))) + draw(
            _mostly(b"chunked", CODINGS, 8)
        )

    match framing:
        case "length":
            return [length(draw(st.sampled_from([size] * 6 + [size + 3, max(0, size - 2)])))]
        case "chunks":
            return [coding()]
        case "both":
            return [length(), coding()]
        case "two lengths":
            return [length(), length(draw(st.sampled_from([size, size + 1])))]
        case "two codings":
            return [coding(), coding()]
        case _:
            return []


def _chunks(draw: DrawFn, body: bytes) -> bytes:
    out, at = b"", 0
    while at < len(body):
        size = draw(st.integers(1, len(body) - at))
        odd = (
            b"0x%x",
            b"+%x",
            b" %x",
            b"%x ",
            b"-%x",
            b"%x\t",
            b"%xg",
            b"0" * 20 + b"%x",
            b"f" * 17 + b"%x",
            b"%X",
        )
        told = size + (draw(st.integers(0, 40)) == 0)
        out += draw(_mostly(b"%x", odd)) % told
        out += draw(_mostly(b"", EXTENSIONS, 10)) + draw(END) + body[at : at + size]
        out += draw(_mostly(b"\r\n", (b"\n", b"", b"xx", b"\r"), 40))
        at += size
    out += draw(_mostly(b"0", (b"00", b"", b"0 ", b"0;x", b"-0", b"0x0"))) + draw(END)
    trailers = draw(st.lists(st.sampled_from(TRAILERS), max_size=2)) if draw(st.integers(0, 3)) == 0 else []
    return out + b"".join(line + draw(END) for line in trailers) + draw(_mostly(b"\r\n", (b"", b"x", b"\n")))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """The same bytes as they may arrive; [-1]: one by one."""
    at = range(len(data)) if cuts == [-1] else sorted({place % (len(data) + 1) for place in cuts} | {0})
    places = [*at, len(data)]
    return [data[a:b] for a, b in pairwise(places) if a < b]


CUTS: st.SearchStrategy[list[int]] = st.one_of(
    st.just([]), st.just([-1]), st.lists(st.integers(0, 6000), max_size=12)
)
