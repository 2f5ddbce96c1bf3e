"""One unbroken answer: wherever it is interrupted, however it is gone on with, however the bytes come."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.jsontext import dumps
from proxy.stream.events import LEGAL, ChunkReceived, Finish, Pause, Reopened, UpstreamEnded
from proxy.stream.session import StreamSession
from proxy.stream.watch import Watch
from tests.stream.support import (
    DONE,
    Command,
    answer,
    cut,
    ending,
    fed,
    one_answer,
    opening,
    read,
    said,
    sent,
    session_of,
    words,
)
from tests.stream.support import usage as usage_frame

pytestmark = [pytest.mark.slow, pytest.mark.rows(4)]

TEXTS = {
    "prose": (
        "Der Fluß — eleven miles long — meets the „old mill“.\u2028Three wheels, 水車 in Japanese; two broke in "
        '1911.\x85\n\n👩‍👩‍👧 came by, 😀 \\o/ "why?" — nobody knows…\tSo e\u0301 is it, and nothing else.'
    ),
    "code": (
        "Here it is:\n\n```python\ndef wheel(n: int) -> int:\n    if n < 0:\n        raise ValueError(n)\n\n"
        '    return {"a": [n * 3]}["a"][0]\n```\n\nAnd in a shell:\n\n```sh\n\twheel --turn 3 | tee "$LOG"\n```\n'
    ),
    "table": (
        "| wheel | turns | since |\n|---|---|---|\n| first | no | 1911 |\n| second | no | 1911 |\n| third | yes "
        "| 1848 |\n| fourth | no | 1911 |\n| fifth | yes | 1850 |\n\nThat is all."
    ),
    "equal lines": "- nothing to report today\n" * 15 + "So much for it.",
    "numbers": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,\n" + "0.0, 0.0, 0.0, 0.0, 0.0, 0.0,\n" * 4 + "3.14159",
    "json": dumps({"wheels": [{"n": n, "turns": n == 3, "by": ["ada", "bo"]} for n in range(5)]}).decode().replace(",", ", "),
}
STRIDE = 1 if settings.get_current_profile_name() == "deep" else 3
"""Every third place says as much as each of them; `make fuzz` tries all."""
PROMPT = 190
FULL = Watch(window=200, pause_point=10**6, strip_usage=True, resumable=True, vain_resumes=9)
"""With a prompt of 190 tokens an attempt that ends for its length has filled the window."""
OVERLAP = 16
"""Characters from which on a repetition is one."""
EVIDENCE = 64
"""Characters up to which a copy of an answer may be a coincidence, unless the backend is one that repeats."""


def tokens(text: str) -> list[str]:
    """A text in pieces as a model says them."""
    return re.findall(r"\s?\S{1,6}|\s", text)


# -- how an answer is gone on with: what the backend was asked for, and what it says; None where nobody could tell
# a repetition from more of the same

Form: TypeAlias = Callable[[str, str], tuple[Reopened, list[str]] | None]


def flags(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    del head
    return Reopened(PROMPT), tokens(rest)


def flags_echoed(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    """A server from before the flags: it hands out what it did not generate in one piece.

    Left out: a short answer. A copy of it may be a coincidence, and none is looked for.
    """
    return (Reopened(PROMPT), [head, *tokens(rest)]) if len(head) > EVIDENCE else None


def trailing(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    """Left out: an answer of one piece that is said again. Nothing tells that from an echo."""
    return None if copied(head, rest) else (Reopened(PROMPT, echo=head, exact=False), tokens(rest))


def trailing_echoed(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    """Token by token; in one piece where the beginning of the answer comes again later in it."""
    again = [head, *tokens(rest)] if repetitive(head) else tokens(head + rest)
    return Reopened(PROMPT, echo=head, exact=False), again


def quoted(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    """Left out: the second copy of a piece, right after the first. It is not to be told from an overlap."""
    once = range(OVERLAP, min(len(head), len(rest)) + 1)
    if any(head.endswith(rest[:n]) and not precedented(head, n) for n in once) or copied(head, rest):
        return None
    return Reopened(PROMPT, quote=head[-300:], exact=False), tokens(rest)


def quoted_overlapping(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    """The model repeats the last 20 to 80 characters, according to where it was interrupted.

    Left out: ends for which the answer itself has a precedent, and those of which two lengths fit. There a
    repetition may as well be more of the same.
    """
    overlap = 20 + len(head) % 61
    again = head[-overlap:] + rest
    others = (n for n in range(OVERLAP, min(len(head), len(again)) + 1) if n != overlap)
    if overlap > len(head) or precedented(head, overlap) or any(head.endswith(again[:n]) for n in others):
        return None
    return Reopened(PROMPT, quote=head[-300:], exact=False), tokens(again)


def quoted_spaceless(head: str, rest: str) -> tuple[Reopened, list[str]] | None:
    """A new turn begins without the white space that belongs before its first word.

    Left out: signs that as a rule follow a word without any; and what `quoted` leaves out.
    """
    bare = rest.lstrip()
    return None if bare[:1] in ",.;:!?…)]}%»”" else quoted(head, bare)


def copied(head: str, rest: str) -> bool:
    """Whether the rest happens to begin with all that was said, and in one piece where that repeats itself."""
    begins = tokens(rest.lstrip())[:1] if repetitive(head) else [rest.lstrip()]
    return "".join(begins).startswith(head.strip())


def repetitive(head: str) -> bool:
    """Whether the beginning of an answer comes again later in it: then nothing but one piece is taken for a copy."""
    text = head.lstrip()
    return text[: min(EVIDENCE, len(text) // 2)] in text[1:]


def precedented(head: str, overlap: int) -> bool:
    """Whether the repetition of the last `overlap` characters goes on like something that was said before."""
    again = head[-overlap:]
    repeated = any(head[at : at + overlap] == head[at + overlap :][:overlap] for at in range(len(head) - overlap))
    return repeated or head[-8:] + again[:OVERLAP] in head


FORMS: dict[str, Form] = {
    "flags": flags, "flags, echoed": flags_echoed, "trailing": trailing, "trailing, echoed": trailing_echoed, "quoted": quoted,
    "quoted, overlapping": quoted_overlapping,
}  # fmt: skip

CASES = [(name, form) for name in TEXTS for form in FORMS if (name, form) != ("equal lines", "quoted, overlapping")]
"""Everything but the form of which every place is left out: see there."""

# -- how the bytes come


def stream(pieces: Iterable[str], finish: str, name: str) -> list[bytes]:
    """The frames of an attempt."""
    return [opening(name=name), *(said(each, name=name) for each in pieces), ending(finish, name=name), DONE]


Reads: TypeAlias = Callable[[list[bytes]], list[bytes]]
READS: dict[str, Reads] = {
    "all at once": lambda made: [b"".join(made)],
    "a frame a read": list,
    "half a frame and half the next": lambda made: cut(b"".join(made), [len(made[0]) + 60, 130]),
    "a byte a read": lambda made: cut(b"".join(made), [1]),
    "within every character": lambda made: re.split(rb"(?<=[\xc0-\xff])", b"".join(made)),
    "CRLF": lambda made: [each.replace(b"\n", b"\r\n") for each in made],
    "within every CRLF": lambda made: re.split(rb"(?<=\r)", b"".join(made).replace(b"\n", b"\r\n")),
    "comments between": lambda made: [b": OPENROUTER PROCESSING\n\n" + each for each in made],
    "event lines": lambda made: [b"".join(b"event: message\nid: 7\n" + each for each in made)],
    "without [DONE]": lambda made: made[:-1],
    "the last word and the finish in one": lambda made: [*made[:-3], *with_finish(made[-3:])],
}


def with_finish(last: list[bytes]) -> list[bytes]:
    """LM Studio and vLLM let the last word carry the finish reason."""
    word, finish, done = last
    reason = re.search(rb'"finish_reason":("\w+")', finish)
    if reason is None or b'"finish_reason":null' not in word:
        return last
    return [word.replace(b'"finish_reason":null', b'"finish_reason":' + reason[1]), done]


LAST_READS: dict[str, Reads] = {
    **READS,
    "without a finish reason": lambda made: [*made[:-2], made[-1]],
    "without [DONE] and its last line end": lambda made: [*made[:-2], made[-2].rstrip()],
}
"""An attempt that is not left in the middle has a finish reason, or it would have broken off."""

# -- one answer


def feed(of: StreamSession, reads: Iterable[bytes]) -> Iterator[Command]:
    for data in reads:
        if (of.state, ChunkReceived) in LEGAL:
            yield from fed(of, ChunkReceived(data))
    if (of.state, UpstreamEnded) in LEGAL:
        yield from fed(of, UpstreamEnded())


def session(watch: Watch = FULL, prompt: int = PROMPT) -> StreamSession:
    return session_of(watch, answer(prompt, lambda text: len(text) // 4 + 1))


def check(text: str, of: StreamSession, first: list[bytes], form: Form, last: Reads = list) -> bool:
    """An answer that stops in its first attempt is gone on with; False: this form can't be exact here."""
    out = list(feed(of, first))
    assert isinstance(out[-1], Pause), "it stops"
    head = of.answer.text
    if (asked := form(head, text[len(head) :])) is None:
        return False
    event, pieces = asked
    fed(of, event)
    out += feed(of, last(stream(pieces, "stop", "two")))
    assert isinstance(out[-1], Finish)
    one_answer(read(plain(sent(out))), text)
    assert of.answer.text == text
    return True


def plain(data: bytes) -> bytes:
    """A stream without what clients skip, its lines ended by LF."""
    return re.sub(rb"(?m)^(?:event|id): .*\n", b"", data.replace(b"\r\n", b"\n"))


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_window_that_is_full_at_any_character(name: str, form: str) -> None:
    text = TEXTS[name]
    places = range(1, len(text) + 1, STRIDE)
    exact = [check(text, session(), stream([text[:at]], "length", "one"), FORMS[form]) for at in places]
    assert exact.count(True) > len(text) // 40 // STRIDE, "few places are left out, but of a text that repeats itself"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reads", READS)
def test_however_the_bytes_come(reads: str, form: str) -> None:
    """Both attempts, every 47th place; every 191st where each byte is a read."""
    how = READS[reads]
    for start, text in enumerate(TEXTS.values(), start=1):
        for at in range(start, len(text), 191 if reads == "a byte a read" else 47):
            first = how(stream(tokens(text[:at]), "length", "one"))
            check(text, session(), first, FORMS[form], how)


@pytest.mark.parametrize(("name", "form"), [*CASES, *((name, "quoted, without the space") for name in TEXTS)])
def test_a_pause_at_any_word(name: str, form: str) -> None:
    """The backend is stopped there and says the word again; each place has another way to send the bytes."""
    text = TEXTS[name]
    pieces = words(text)
    how = {**FORMS, "quoted, without the space": quoted_spaceless}[form]
    kinds = list(LAST_READS.values())
    exact = []
    for number in range(1, len(pieces) - 1, STRIDE):
        reads = kinds[number % len(kinds)]
        watch = Watch(window=10**5, pause_point=100 + number, resumable=True, vain_resumes=1)
        of = session_of(watch, answer(100, lambda _: 1))
        exact.append(check(text, of, reads(stream(pieces, "stop", "one")), how, reads))
    assert any(exact)


# -- any text, any number of interruptions

some_texts = st.lists(
    st.sampled_from(["word", " more", " and", "\n", "\n\n", "    ", "```", "| ", "- ", '"', "{", "0", "😀", " 字"])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    min_size=1,
    max_size=40,
).map("".join)


@st.composite
def interruptions(draw: st.DrawFn) -> tuple[str, list[int], list[str], list[str]]:
    text = draw(some_texts.filter(str.strip))
    first = len(text) - len(text.lstrip()) + 1
    places = draw(st.lists(st.integers(first, len(text)), min_size=1, max_size=3, unique=True).map(sorted))
    forms = draw(st.lists(st.sampled_from(list(FORMS)), min_size=len(places), max_size=len(places)))
    reads = draw(st.lists(st.sampled_from(list(READS)), min_size=4, max_size=4))
    return text, places, forms, reads


@given(interruptions())
def test_any_text_interrupted_anywhere_and_again(made: tuple[str, list[int], list[str], list[str]]) -> None:
    text, places, forms, reads = made
    of = session()
    full = usage_frame(PROMPT - 40, 50, name="one")
    out: list[Command] = []
    pieces = tokens(text[: places[0]])
    for number, (at, end) in enumerate(zip(places, [*places[1:], len(text)], strict=True)):
        attempt = stream(pieces, "length", f"id {number}")
        attempt.insert(-1, full)
        out += feed(of, READS[reads[number]](attempt))
        assert isinstance(out[-1], Pause)
        head, rest = text[:at], text[at:end]
        assert of.answer.text == head
        event, pieces = FORMS[forms[number]](head, rest) or (Reopened(PROMPT), tokens(rest))
        fed(of, event)
    out += feed(of, READS[reads[-1]](stream(pieces, "stop", "last")))
    one_answer(read(plain(sent(out))), text)
    assert of.answer.usage() is None or of.answer.completion_tokens >= 50 * len(places)


# -- places of which two readings are near


@pytest.mark.parametrize(
    ("piece", "count"), [("| the third wheel turns | yes | 1848 |\n", 2), ("- nothing to report today\n", 3), ("0.0, ", 13)]
)
def test_equal_lines_are_no_copy_of_the_equal_lines_before_them(piece: str, count: int) -> None:
    """The docstring of EchoFilter: of an answer that repeats itself, a copy has to come in one piece."""
    text = piece * 30

    def asked(head: str, rest: str) -> tuple[Reopened, list[str]]:
        return Reopened(PROMPT, quote=head, exact=False), tokens(rest)

    assert check(text, session(), stream([piece * count], "length", "one"), asked)


@pytest.mark.parametrize("after", ["| fourth | no |\n", "- [x] done\n", "```sh\nls\n```\n", "„so“", "😀", "(see below)"])
def test_a_line_that_begins_with_a_sign_begins_with_its_line_end(after: str) -> None:
    """The word that was not taken is known: what begins like it is that word."""
    head = "It is as follows, in a list:\n| first | no |\n| third | yes |"
    pieces = [*words(head), f"\n{after}"]
    watch = Watch(window=10**5, pause_point=100 + len(pieces) - 1, resumable=True)
    of = session_of(watch, answer(100, lambda _: 1))

    def asked(head: str, rest: str) -> tuple[Reopened, list[str]]:
        return Reopened(100, quote=head, exact=False), [rest.lstrip()]

    assert check(f"{head}\n{after}", of, stream([*pieces, " and"], "stop", "one"), asked)
