"""Feature vectors: what the token count of a message is predicted from.

A vector has `SIZE` numbers. Those of a text are its tokens under the vocabulary at hand (`BASE`) and, where
that vocabulary is not the model's own, the sizes of 22 byte classes: the difference between two vocabularies
is mostly one of digits and scripts. Messages add counts of what a chat template wraps, requests their tools.
Vectors add: the features of a history are the sum of those of its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import TypeAlias

Vector: TypeAlias = tuple[float, ...]

BASE = 0
"""Tokens of the text under the vocabulary at hand."""
ASCII_CLASSES = range(1, 6)
SCRIPTS = range(6, 21)
CLASSES = 22
"""Number of byte classes, see `byte_classes`."""
MESSAGES = 23
CALLS = 24
"""Tool calls; their results are messages."""
REASONING = 25
"""Tokens of reasoning that the client re-sent: many templates drop it."""
IMAGES = 26
IMAGE_TOKENS = 27
"""Tokens of images and other attachments by rule, see `images`."""
FIRST = 28
"""1 when the whole prompt is predicted, 0 when only what follows an anchor is."""
TOOLS = 29
"""Tokens of the tool definitions as `json.dumps` writes them."""
SCHEMA = 30
"""Tokens of a `response_format` schema."""
SIZE = 31

TEXT = slice(0, MESSAGES + 1)
"""The part that is text and its turns: the only part whose ratio to `BASE` is bounded."""
TEXT_SIZE = 1 + CLASSES
NO_TEXT: Vector = (0,) * TEXT_SIZE
NO_CLASSES: Vector = (0,) * CLASSES
_REQUEST_TAIL: Vector = (0, 0, 0)

_ALL = frozenset(range(256))


def _delete(*members: int) -> bytes:
    """What `bytes.translate` has to delete so that only `members` are left."""
    return bytes(_ALL - set(members))


_LOWER, _UPPER = bytes(range(0x61, 0x7B)), bytes(range(0x41, 0x5B))
_DIGITS = bytes(range(0x30, 0x3A))
_PUNCTUATION = bytes(b for b in range(0x21, 0x7F) if not chr(b).isalnum())
_LINES = b"\t\n"
_NOT_LEAD = _delete(*range(0xC2, 0xF5))
_LEADS = (
    _delete(*range(0xC2, 0xCC)),  # Latin with marks
    _delete(0xCE, 0xCF),  # Greek
    _delete(0xCC, 0xCD, *range(0xD0, 0xD5)),  # combining marks, Cyrillic
    _delete(0xD5, 0xD6, 0xD7),  # Armenian, Hebrew
    _delete(*range(0xD8, 0xE0)),  # Arabic, Syriac, Thaana
)
_INDIC = 0xE0
_MORE_LEADS = (
    _delete(0xE1),  # Georgian, Ethiopic, Khmer, Vietnamese vowels
    _delete(0xE2),  # typographic marks, arrows, box drawing
    _delete(0xE3),  # kana, CJK punctuation
    _delete(*range(0xE4, 0xEA)),  # Han
    _delete(*range(0xEA, 0xEE)),  # Hangul
    _delete(0xEE, 0xEF),  # private use, full-width forms
    _delete(*range(0xF0, 0xF5)),  # emoji and everything beyond the basic plane
)
_DEVANAGARI = (b"\xe0\xa4", b"\xe0\xa5")
_THAI = (b"\xe0\xb8", b"\xe0\xb9", b"\xe0\xba", b"\xe0\xbb")
_NO_SCRIPTS: Vector = (0,) * len(SCRIPTS)


def byte_classes(data: bytes) -> Vector:
    """Count the bytes of UTF-8 text in 22 classes; 700 MB/s, of other scripts 300.

    In this order: digits, letters, spaces, newlines and tabs, punctuation; characters of 15 groups of scripts
    by their first byte, and for the Indic scripts, of which a model may know one and not the next, by their
    second; upper-case letters, which are letters too; pairs of spaces, which indent.
    """
    sizes, left = [len(data)], data
    for members in (_LOWER, b" ", _UPPER, _DIGITS, _PUNCTUATION, _LINES):  # the most frequent first
        left = left.translate(None, members)
        sizes.append(len(left))
    lower, spaces, upper, digits, punctuation, lines = map(sub, sizes, sizes[1:])
    scripts = _NO_SCRIPTS if data.isascii() else _scripts(data)
    return (digits, lower + upper, spaces, lines, punctuation, *scripts, upper, data.count(b"  "))


def _scripts(data: bytes) -> Vector:
    leads = data.translate(None, _NOT_LEAD)
    indic = leads.count(_INDIC)
    devanagari = sum(map(data.count, _DEVANAGARI)) if indic else 0
    thai = sum(map(data.count, _THAI)) if indic else 0
    return (
        *(len(leads.translate(None, delete)) for delete in _LEADS),
        devanagari,
        thai,
        indic - devanagari - thai,
        *(len(leads.translate(None, delete)) for delete in _MORE_LEADS),
    )


def add(vectors: Sequence[Vector], size: int = SIZE) -> Vector:
    """Sum vectors of `size` numbers; no vectors: zeros."""
    if len(vectors) < 2:
        return vectors[0] if vectors else (0,) * size
    return tuple(map(sum, zip(*vectors, strict=True)))


def message_vector(text: Vector, *, calls: int, reasoning: float, images: int, image_tokens: float) -> Vector:
    """One message: the vector of its texts plus what is around them."""
    return (*text, 1, calls, reasoning, images, image_tokens, *_REQUEST_TAIL)


def request_vector(*, tools: float, schema: float) -> Vector:
    """What a request adds to its messages when the whole prompt is predicted."""
    return (*NO_TEXT, 0, 0, 0, 0, 0, 1, tools, schema)


PLAIN_MESSAGE: Vector = (1, 0, 0, 0, 0, *_REQUEST_TAIL)
"""Follows the vector of a text to make that of a message which is nothing but text."""
EMPTY: Vector = (0,) * SIZE
