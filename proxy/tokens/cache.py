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
from proxy.counting.features import EMPTY, NO_TEXT, PLAIN_MESSAGE, TEXT_SIZE, Vector, add, message_vector
from proxy.counting.images import ImageRule
from proxy.history.prefixes import BRANCHES, head_of
from proxy.neutral.record import record
from proxy.tokens.vocabulary import Vocabulary, text_vector

WHOLE_KEY = 4096
"""Characters up to which a text is its own key; longer ones are known by a digest."""
ENTRY_BYTES = 600
MESSAGE_BYTES = 1000
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
        """The vector, if known."""
        vector = self._vectors.get(key)
        if vector is not None:
            with self._lock:
                if key in self._vectors:
                    self._vectors.move_to_end(key)
        return vector

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
            texts[0] if len(texts) == 1 else add(texts, TEXT_SIZE),
            calls=content.calls,
            reasoning=sum(self.text(text)[0] for text in content.reasoning),
            images=len(content.images),
            image_tokens=sum(map(self.rule, content.images)) + sum(content.attachments),
        )


@record(frozen=True, slots=True)
class Segment:
    """Consecutive messages: copies, features, digests of every prefix."""

    messages: list[Any] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)

    def common(self, messages: Sequence[Any]) -> int:
        """How many of `messages` begin as this segment does."""
        length = len(self.messages)
        if length <= len(messages) and self.messages == messages[:length]:
            return length
        for index, (mine, theirs) in enumerate(zip(self.messages, messages, strict=False)):
            if mine != theirs:
                return index
        return min(length, len(messages))

    def grown(self, common: int, messages: Sequence[Any], vectorizer: Vectorizer) -> Segment:
        """The segment of `messages`, of which the first `common` are known from this one."""
        if common == len(self.messages) == len(messages):
            return self
        new = messages[common:]
        copies = [dict(message) if isinstance(message, dict) else message for message in new]
        digests = self.digests[:common]
        previous = digests[-1] if digests else b""
        for message in new:
            previous = link(previous, message)
            digests.append(previous)
        vectors = self.vectors[:common] + [vectorizer.message(message) for message in new]
        return Segment(self.messages[:common] + copies, vectors, digests)


@record(frozen=True, slots=True)
class History:
    """A conversation as it was measured: leading system messages, and the rest."""

    system: Segment = field(default_factory=Segment)
    rest: Segment = field(default_factory=Segment)
    system_total: Vector = EMPTY
    size: int = 0

    @property
    def system_digest(self) -> bytes:
        """Digest of the leading system messages; b"" if there are none."""
        return self.system.digests[-1] if self.system.digests else b""


@record(frozen=True, slots=True)
class Draft:
    """What is to be done to measure `messages`: what is known of them, and which of them are new."""

    group: tuple[str, Any] | None
    known: History
    common: int
    system: Sequence[Any]
    rest: Sequence[Any]
    new: Sequence[Any]

    def finish(self, vectorizer: Vectorizer) -> History:
        """Read what is new. May take long: about 5 MB of text per second. Usable from a thread."""
        system = self.known.system.grown(self.known.system.common(self.system), self.system, vectorizer)
        rest = self.known.rest.grown(self.common, self.rest, vectorizer)
        if system is self.known.system and rest is self.known.rest:
            return self.known
        total = self.known.system_total if system is self.known.system else add(system.vectors)
        new = sum(map(rough_size, self.new))
        return History(system, rest, total, self.known.size + new + MESSAGE_BYTES)


class HistoryCache:
    """Histories measured lately, bounded in bytes. Usable from threads.

    Messages are compared with those of the last time, not hashed: a history of 400 kB in 0.1 ms.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._lock = Lock()
        self._groups: OrderedDict[tuple[str, Any], list[History]] = OrderedDict()

    def draft(self, vectorizer: Vectorizer, messages: Sequence[Any]) -> Draft:
        """Find what is known of `messages`."""
        start = 0
        while start < len(messages) and _is_system(messages[start]):
            start += 1
        system, rest = messages[:start], messages[start:]
        group = (vectorizer.id, head_of(rest[0])) if rest else None
        known, common = History(), 0
        with self._lock:
            candidates = list(self._groups.get(group, ())) if group else []
        for candidate in candidates:
            shared = candidate.rest.common(rest)
            if shared > common:
                known, common = candidate, shared
            if shared == len(rest):
                break
        fresh = [*rest[common:], *(system if system != known.system.messages else ())]
        return Draft(group, known, common, system, rest, fresh)

    def keep(self, draft: Draft, history: History) -> None:
        """Remember a finished draft in place of what it extends."""
        if draft.group is not None and history is not draft.known:
            with self._lock:
                self._keep(draft, draft.group, history)

    def _keep(self, draft: Draft, group: tuple[str, Any], history: History) -> None:
        branches = self._groups.setdefault(group, [])
        self._groups.move_to_end(group)
        for index, branch in enumerate(branches):
            if branch is draft.known and draft.common == len(branch.rest.messages):
                self._bytes -= branches.pop(index).size
                break
        branches.insert(0, history)
        self._bytes += history.size
        if len(branches) > BRANCHES:
            self._bytes -= branches.pop().size
        while self._bytes > self._limit and self._groups:
            _, dropped = self._groups.popitem(last=False)
            self._bytes -= sum(branch.size for branch in dropped)


def rough_size(message: Any, depth: int = 4) -> int:
    """Characters of the strings in a message, to tell whether reading it may take long."""
    if isinstance(message, str):
        return len(message)
    if isinstance(message, dict):
        return 16 + (sum(rough_size(value, depth - 1) for value in message.values()) if depth else 0)
    if isinstance(message, list):
        return 16 + (sum(rough_size(value, depth - 1) for value in message) if depth else 4096)
    return 8


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in {"system", "developer"}
