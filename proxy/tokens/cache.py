"""What was counted before: features of texts, and of the histories that clients send again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import Any, TypeAlias

from proxy.counting.anchors import link
from proxy.counting.content import Content, read_message
from proxy.counting.features import (
    EMPTY,
    NO_CLASSES,
    NO_TEXT,
    PLAIN_MESSAGE,
    TEXT_SIZE,
    Vector,
    add,
    byte_classes,
    message_vector,
)
from proxy.counting.images import ImageRule
from proxy.history.prefixes import LEAST, Found, Known, Prefixes
from proxy.neutral.request import SYSTEM_ROLES
from proxy.neutral.weight import is_heavy
from proxy.tokens.vocabulary import Vocabulary, chunks

WHOLE_KEY = 4096
"""Characters up to which a text is its own key; longer ones are known by a digest."""
ENTRY_BYTES = 600
MESSAGE_BYTES = 1000
SHORT = 16 * 1024
"""Characters of a conversation of few messages up to which it is read faster than it would be found again."""
_TextKey: TypeAlias = tuple[str, str | bytes]


class TextCache:
    """Feature vectors of texts, bounded in bytes, least recently used out first. Usable from threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._lock = Lock()
        self._vectors: OrderedDict[_TextKey, Vector] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def key(self, scope: str, text: str) -> _TextKey:
        """Key of `text` under `scope` (vocabulary and kind of features)."""
        if len(text) <= WHOLE_KEY:
            return scope, text
        return scope, blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def get(self, key: _TextKey) -> Vector | None:
        """The vector, if known. Without the lock: what another thread drops in between is as good as unknown."""
        try:
            self._vectors.move_to_end(key)
            return self._vectors[key]
        except KeyError:
            return None

    def put(self, key: _TextKey, vector: Vector) -> None:
        """Keep a vector."""
        with self._lock:
            if key not in self._vectors:
                self._bytes += ENTRY_BYTES + len(key[1])
            self._vectors[key] = vector
            while self._bytes > self._limit:
                old, _ = self._vectors.popitem(last=False)
                self._bytes -= ENTRY_BYTES + len(old[1])


@dataclass(frozen=True, slots=True)
class Vectorizer:
    """Makes feature vectors of messages for one vocabulary and rule for images."""

    vocabulary: Vocabulary
    exact: bool
    rule: ImageRule
    cache: TextCache
    id: str = field(default="")

    def __post_init__(self) -> None:
        kind = "exact" if self.exact else "classes"
        object.__setattr__(self, "id", f"{self.vocabulary.id} {kind} {self.rule.__name__}")

    def text(self, text: str) -> Vector:
        """Features of a text."""
        if not text:
            return NO_TEXT
        key = self.cache.key(self.id, text)
        vector = self.cache.get(key)
        if vector is None:
            vector = text_vector(self.vocabulary, text, exact=self.exact)
            self.cache.put(key, vector)
        return vector

    def uncached(self, text: str) -> Vector:
        """Features of a text that will not come again."""
        return text_vector(self.vocabulary, text, exact=self.exact)

    def message(self, message: Any) -> Vector:
        """Features of a message."""
        if type(message) is dict and len(message) == 2 and type(message.get("content")) is str:
            return self.text(message["content"]) + PLAIN_MESSAGE
        return self._read(read_message(message))

    def _read(self, content: Content) -> Vector:
        texts = [self.text(text) for text in content.texts]
        return message_vector(
            add(texts, TEXT_SIZE),
            calls=content.calls,
            reasoning=sum(self.text(text)[0] for text in content.reasoning),
            images=len(content.images),
            image_tokens=sum(map(self.rule, content.images)) + sum(content.attachments),
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive messages as they were counted: features of each, digests of every prefix."""

    vectors: Sequence[Vector] = ()
    digests: Sequence[bytes] = ()


NOTHING = Segment()


@dataclass(frozen=True, slots=True)
class History:
    """A conversation as it was measured: leading system messages, and the rest."""

    system: Segment
    rest: Segment
    system_total: Vector = EMPTY
    system_digest: bytes = b""
    """Of the leading system messages; empty if there are none."""

    @property
    def digests(self) -> Sequence[bytes]:
        """Of every prefix of the rest."""
        return self.rest.digests

    def behind(self, covered: int) -> Sequence[Vector]:
        """Features of the messages of the rest that follow the first `covered`."""
        return self.rest.vectors[covered:]


@dataclass(frozen=True, slots=True)
class ShortHistory:
    """A short conversation, of which nothing is remembered: only what an anchor does not cover is read."""

    vectorizer: Vectorizer
    rest: Sequence[Any]
    digests: Sequence[bytes]
    system_total: Vector = EMPTY
    system_digest: bytes = b""

    def behind(self, covered: int) -> Sequence[Vector]:
        """Features of the messages of the rest that follow the first `covered`."""
        return [*map(self.vectorizer.message, self.rest[covered:])]


def text_vector(vocabulary: Vocabulary, text: str, *, exact: bool) -> Vector:
    """Count `text` and its byte classes; without the classes where the count is exact."""
    if exact:
        return (vocabulary.count(text), *NO_CLASSES)
    parts = [
        (vocabulary.count(chunk), *byte_classes(chunk.encode("utf-8", "replace"))) for chunk in chunks(text)
    ]
    return add(parts)


def is_long(messages: Sequence[Any]) -> bool:
    """Whether a conversation is found again faster than it is read."""
    return len(messages) >= LEAST or is_heavy(messages, SHORT)


def short_history(vectorizer: Vectorizer, messages: Sequence[Any]) -> ShortHistory:
    """A conversation as it is measured where `is_long` says that it is not."""
    system, rest = _halves(messages)
    digests = _digests(rest)
    if not system:
        return ShortHistory(vectorizer, rest, digests)
    total = add([*map(vectorizer.message, system)])
    return ShortHistory(vectorizer, rest, digests, total, _digests(system)[-1])


@dataclass(slots=True)
class Draft:
    """What is to be done to measure a conversation: what is known of its two parts, and later what they have grown to."""

    system: Found[Segment]
    rest: Found[Segment]
    limit: int
    """Bytes of a history that may be remembered."""
    grown: tuple[Known[Segment] | None, ...] = ()

    @property
    def new(self) -> Sequence[Any]:
        """The messages that have to be read."""
        return [*self.rest.new, *self.system.new]

    def finish(self, vectorizer: Vectorizer) -> History:
        """Read what is new. May take long: about 5 MB of text per second. Usable from a thread."""
        found = (self.system, self.rest)
        system, rest = (
            _read(vectorizer, part.messages, part.value or NOTHING, part.common) for part in found
        )
        parts = ((self.system, system), (self.rest, rest))
        self.grown = tuple(part.grown(segment, self.limit, each=MESSAGE_BYTES) for part, segment in parts)
        if not system.digests:
            return History(system, rest)
        return History(system, rest, add(system.vectors), system.digests[-1])


class HistoryCache:
    """Histories measured lately, bounded in bytes. Usable from threads."""

    def __init__(self, limit: int) -> None:
        self._known: Prefixes[Segment] = Prefixes(limit)
        self._lock = Lock()

    def draft(self, vectorizer: Vectorizer, messages: Sequence[Any]) -> Draft:
        """Find what is known of `messages`."""
        system, rest = _halves(messages)
        known, id_ = self._known, vectorizer.id
        with self._lock:
            found = known.longest((id_, "system"), system), known.longest((id_, "rest"), rest)
        return Draft(*found, limit=known.limit)

    def keep(self, draft: Draft) -> None:
        """Remember a finished draft."""
        with self._lock:
            for found, grown in zip((draft.system, draft.rest), draft.grown, strict=True):
                self._known.keep(found, grown)


def _digests(messages: Sequence[Any], previous: bytes = b"") -> list[bytes]:
    """Of every prefix; `previous` is that of the messages before them."""
    return [previous := link(previous, message) for message in messages]


def _read(
    vectorizer: Vectorizer, messages: Sequence[Any], known: Segment = NOTHING, common: int = 0
) -> Segment:
    """Messages counted, of which the first `common` are known."""
    if common == len(messages) == len(known.vectors):
        return known
    digests, new = list(known.digests[:common]), messages[common:]
    digests += _digests(new, digests[-1] if digests else b"")
    return Segment([*known.vectors[:common], *map(vectorizer.message, new)], digests)


def _halves(messages: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The leading system messages, and the others."""
    lead = 0
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in SYSTEM_ROLES:
            break
        lead += 1
    return (messages[:lead], messages[lead:]) if lead else ((), messages)
