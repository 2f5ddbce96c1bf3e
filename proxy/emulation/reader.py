"""Calls that a model writes as text, read out of one attempt at an answer: pieces in, pieces out.

Where tools are emulated, every call is made as soon as it is complete. From the first one on that can't be made, everything is held
back: the owner asks the model once more, or gives up, which sends all of it as text.

A model with tools of its own writes a call as text where its backend's parser does not fit, or where it slips into another form, and
the finish reason is `stop` (Ollama issue 13519, llama.cpp issue 14697, LM Studio's bug tracker 821). It is read back where all of this
holds: the tool was offered and the arguments fit its schema; the answer ends with it, in good order, and has made no call of the usual
kind; and it is not an example, by what is said before it. Anything else stays text, byte for byte.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from proxy.core.piece import CallPart, Piece
from proxy.emulation.forms import FORMS, Call, CallFault, CallSpan, fault
from proxy.emulation.offer import Offer
from proxy.emulation.prompt import call_text, complaint
from proxy.emulation.scanner import CallScanner
from proxy.emulation.values import CUT, NO_CALL
from proxy.stream.events import Correct

UNFINISHED = ("length", "content_filter", "error")
"""Finish reasons of answers that the model did not end (OpenAI API, "The chat completion object"; the last is OpenRouter's)."""
_COUNTS = ("usage", "prompt_tokens", "completion_tokens")
_EARLY, _LATE = re.compile(r"[<\[{`]"), re.compile(r"[<\[]")
"""What a call may begin with that is read back: near the beginning of an answer, and later."""
_ANNOUNCED = 200
"""Characters that a few words have at most."""
_BEFORE = 300
"""Characters before a call that are looked at."""
_MARKED = frozenset(form.name for form in FORMS if form.marked)
_SENTENCE_END = re.compile(r"[.!?)\u2026\u3002\uff01\uff1f\U0001f000-\U0001ffff]\s*\Z")
_SHOWS = re.compile(
    r"\b(?:examples?|e\.g|for instance|such as|like (?:this|so)|looks? like|would|could|should look|syntax|formats?|templates?"
    r"|illustrat\w+|demonstrat\w+|samples?|hypothetical\w*|never|instead of|don't|do not|how to|you (?:can|may|should|must|need)"
    r"|show|explain|describe|tell you|here(?:['\u2019]s| is| are)"
    r"|beispiel\w*|z\. ?b|würde|könnte|exemples?|ejemplos?|esempi\w*|exemplos?)\b|例|示例|格式|пример",
    re.IGNORECASE,
)
"""Words of those who show something."""
_BEGUN = re.compile(r"[<\[]\W?\w{0,20}(?:tool|function|invoke|call)[\s\S]{0,80}")
"""What calls look like in most forms, with as much behind their beginning as a tool's name may be away."""
_ANNOUNCES = re.compile(
    r"\b(?:I['\u2019]ll|I will|I['\u2019]m going to|I am going to|I need to|I have to|I['\u2019]m \w+ing|let me|let['\u2019]s|now I|first, I"
    r"|(?:calling|checking|looking|searching|reading|running|fetching|opening|writing|creating|updating)\b"
    r"|ich werde|ich rufe|ich prüfe|ich sehe|ich schaue|ich suche|ich lese|lass mich|je vais|laissez-moi|voy a|déjame|vou|deixe-me)\b"
    r"|让我|我来|我将|我会|我需要",
    re.IGNORECASE,
)
"""Words of those who are about to do something."""
_MISSING = CallFault(NO_CALL, "", "none", "no tool was called, and one has to be")


class WrittenCallReader:
    """Reads the calls of the first choice; what may become one is held, with the piece that it came in, and nothing else is."""

    def __init__(
        self,
        offer: Offer,
        make_id: Callable[[], str],
        *,
        emulated: bool,
        count: Callable[[str], int] = lambda text: len(text) // 4,
        text_before: str = "",
        calls_before: int = 0,
    ) -> None:
        """`make_id` makes ids of calls; earlier attempts at the answer have sent `text_before` and made `calls_before`."""
        self._offer, self.tools = offer, offer.callable
        self._count = count
        self._make_id = make_id
        self._emulated = emulated
        self._scanner = CallScanner(offer, text_before, calls_before=calls_before)
        self.faults = self._scanner.faults
        """What was found to be wrong with calls; the owner takes them out."""
        self._over = not offer.callable and not emulated
        self._calls = calls_before
        self._end = self._held_from = len(text_before)
        """Characters of the answer that came, and of those before what is held."""
        self._held: deque[Piece] = deque()
        self._spans: list[CallSpan] = []
        """Spans that are not sent."""
        self._behind = 0
        """Index behind the newest span."""
        self._before = text_before[-_BEFORE:]
        """Newest text that was sent."""
        self._showing = False
        """Whether the answer has shown a call before."""
        self._made: list[str] = []
        """Calls that were sent, as text."""
        self._malformed: list[CallFault] = []
        self._waiting = False
        """Whether everything waits for a correction, or for that there is none."""
        self._tail: list[Piece] = []
        self.unseen = 0
        """Tokens of what is held."""
        self.leaked = 0
        """Calls that were read back; the same."""
        self.stats: Counter[tuple[str, str]] = Counter()
        """Calls of emulated tools by form and outcome: `called`, `repaired` (of those that were called), `malformed`."""

    def skip(self, text: str) -> bool:
        """Take in a text that can't be part of a call, and is sent unread; False: its piece has to be fed."""
        if self._over or not text:
            return not self._emulated
        early = self._scanner.answered <= _ANNOUNCED
        if self._emulated or self._held or (_EARLY if early else _LATE).search(text):
            return False
        self._end += len(text)
        self._held_from = self._end
        self._before = (self._before + text[-_BEFORE:])[-_BEFORE:]
        self._note(self._scanner.feed(text))
        return True

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """Take in the next piece of the backend's stream; what may be said now."""
        if piece.aside:
            return (piece,)
        if piece.error or (piece.calls and not self._emulated):
            # An error is passed on at once, without the call that it cut off, which is no fault of the model's.
            released = self._end_reading("error", failed=True) if piece.error else self._release(self._end)
            self._over, self._waiting = True, False
            return (*released, piece)
        if piece.done:
            return (*self._end_reading(None), *self._pass(piece))
        if piece.other_choices and not self._over:
            return [each for choice in piece.by_choice() for each in self.feed(choice)]
        return self._pass(piece) if self._over or piece.index or not piece.choice else self._read(piece)

    def _read(self, piece: Piece) -> Sequence[Piece]:
        if not piece.finish and self.skip(piece.text):
            return (piece,)
        self._held.append(piece)
        self.unseen += self._count(piece.text)
        self._end += len(piece.text)
        self._note(self._scanner.feed(piece.text))
        if piece.finish:
            return self._end_reading(piece.finish)
        if self._emulated:
            return self._release(self._scanner.decided)
        # What began in text that was said already can't be taken back.
        waits = self._spans or self._held_from <= self._scanner.suspect_from < self._end
        return () if waits else self._release(self._end)

    def close(self) -> Sequence[Piece]:
        """End an attempt without a finish reason, which was cut off; what is left of it, but for what has to be corrected."""
        return self._end_reading("error")

    def correction(self) -> Correct | None:
        """Return what the model is asked to correct; None: nothing."""
        if not self._malformed:
            return None
        written = "\n".join((*self._made, *filter(None, ["".join(piece.text for piece in self._tail)])))
        return Correct(written, complaint(self._malformed), tuple(call.form for call in self._malformed))

    def unread(self, text: str) -> list[CallFault]:
        """Return the fault of an answer that names a tool behind the beginning of a call, in a form that is not known."""
        begun = _BEGUN.search(text)
        if begun is None or _SHOWS.search(text, max(0, begun.start() - _BEFORE), begun.start()):
            return []
        return [fault("unread", tool, "unknown") for tool in self._offer.callable if tool in begun[0]][:1]

    def give_up(self) -> Sequence[Piece]:
        """Release what was held back: calls that can't be made as the text that they were written in."""
        tail, self._tail, self.unseen = self._tail, [], 0
        return tail

    # -- calls that were found

    def _note(self, spans: Sequence[CallSpan]) -> None:
        for span in spans:
            if not self._emulated and span.start > self._behind:
                self._drop_spans()
            self._spans += [span] if self._emulated or span.found else []
            self._behind = span.end
        passed = self._spans and self._spans[0].start < self._held_from
        if not self._emulated and (passed or not self._scanner.behind_call):
            self._drop_spans()

    def _drop_spans(self) -> None:
        """Take what was found for an example, or part of a text."""
        self._showing |= bool(self._spans)
        self._spans = []

    def _end_reading(self, finish: str | None, *, failed: bool = False) -> Sequence[Piece]:
        """End the answer, by its end mark if there is no finish reason; `failed`: by an error."""
        if self._over:
            return ()
        self._over = True
        cut = finish in UNFINISHED
        self._note(self._scanner.close(cut=cut))
        if failed:
            self._spans = [_without_fault(span) for span in self._spans]
        if not self._emulated:
            self._keep_intended(cut=cut)
        last = self._held[-1] if self._held else None
        if last is None or not last.finish or cut:
            return self._release(self._end)
        if self._calls or any(span.calls for span in self._spans):
            # Some backends have words of their own for `stop`.
            self._held[-1] = replace(last, frame=b"", finish="tool_calls")
        elif self._emulated and self._offer.choice in ("required", "named") and not (self._spans or self._malformed):
            del self._held[-1]
            text, end = _cut(last, len(last.text)) if last.text else (None, last)
            self._held += [text] if text else []
            return (*self._release(self._end), *self._wait(_MISSING), *self._pass(end))
        return self._release(self._end)

    def _keep_intended(self, *, cut: bool) -> None:
        """Of calls at the end of an answer in good order keep those that are meant; they take all that is behind them along."""
        malformed = [span.found for span in self._spans if isinstance(span.found, CallFault)]
        self.faults += malformed
        if malformed or cut or not self._spans:
            self._spans = []
            return
        first = self._spans[0]
        before = self._before + "".join(piece.text for piece in self._held)[: first.start - self._held_from]
        calls = tuple(call for span in self._spans for call in span.calls)
        if _is_intended(calls, before[-_BEFORE:], first.answered, showing=self._showing):
            self.leaked += len(calls)
            self._spans = [CallSpan(first.start, self._end, calls)]
        else:
            self._drop_spans()

    # -- pieces

    def _release(self, end: int) -> Sequence[Piece]:
        """Send what is held up to a character of the answer, with calls in place of the spans."""
        sent: list[Piece] = []
        while self._held:
            piece = self._held[0]
            stop = self._held_from + len(piece.text)
            if self._spans and self._spans[0].start < stop:
                sent += self._send_span(piece)
            elif stop <= end:
                sent += self._pass(self._held.popleft())
                self._held_from = stop
            else:
                break
        if sent or not (self._held or self._tail):
            self.unseen = sum(self._count(piece.text) for piece in (*self._tail, *self._held))
        return sent

    def _send_span(self, piece: Piece) -> Sequence[Piece]:
        """Send what the first piece that is held says before the first span, and the calls in that."""
        span, stop = self._spans[0], self._held_from + len(piece.text)
        if span.found == () and span.start <= self._held_from and stop < span.end and not (piece.more or piece.role):
            # Of running counts the newest one is enough.
            self._held.popleft()
            self._held_from = stop
            return ()
        before, rest = _cut(piece, max(0, span.start - self._held_from))
        sent = [*self._pass(before)] if before.text or before.more or before.role else []
        self._held_from += len(before.text)
        self._held[0] = rest
        if not isinstance(span.found, tuple):
            del self._spans[0]
            return sent if span.found is None else [*sent, *self._wait(span.found)]
        for call in span.found:
            sent += self._pass(replace(rest.blank(), calls=(self._call(call),)))
        self._held[0] = _cut(rest, span.end - self._held_from)[1]
        self._held_from = min(stop, span.end)
        if span.end <= stop:
            del self._spans[0]
        else:
            self._spans[0] = span._replace(start=stop, found=())
        if not self._held[0].text and not (self._held[0].finish or any(getattr(rest, name) for name in _COUNTS)):
            del self._held[0]
        return sent

    def _wait(self, malformed: CallFault) -> Sequence[Piece]:
        """Hold everything back from a call on that can't be made."""
        self._waiting = True
        self._malformed.append(malformed)
        self.faults.append(malformed)
        self.stats[malformed.form, "malformed"] += 1
        return ()

    def _call(self, call: Call) -> CallPart:
        index, self._calls = self._calls, self._calls + 1
        if self._emulated:
            self.stats[call.form, "called"] += 1
            self.stats[call.form, "repaired"] += call.repaired
            self._made += [] if self._waiting else [call_text(call.name, call.arguments)]
        return CallPart(call.name, call.arguments, id=self._make_id(), index=index)

    def _pass(self, piece: Piece) -> Sequence[Piece]:
        """Send a piece, unless it has to wait for a correction."""
        if self._waiting:
            self._tail.append(piece)
            return ()
        self._before = (self._before + piece.text)[-_BEFORE:]
        return (piece,)


def _cut(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """A piece as two, cut in its text; usage, counts and the finish reason go with the second."""
    first = replace(piece.uncounted(), text=piece.text[:at], finish=None)
    second = replace(piece.blank(), text=piece.text[at:], finish=piece.finish)
    for name in _COUNTS:
        setattr(second, name, getattr(piece, name))
    return first, second


def _without_fault(span: CallSpan) -> CallSpan:
    """A span of an answer that an error ended: a call that it cut off is left out, another that can't be made is text."""
    if not isinstance(span.found, CallFault):
        return span
    return span._replace(found=() if span.found.reason == CUT else None)


def _is_intended(calls: Sequence[Call], before: str, answered: int, *, showing: bool) -> bool:
    """Return whether calls at the end of an answer can't be an example, by what is said before them.

    `answered` counts the characters before them without thoughts; `showing`: the answer has shown a call before.
    """
    if not (answered or showing):
        return True
    paragraph = before.rstrip().rpartition("\n\n")[2]
    if _SHOWS.search(paragraph):
        return False
    if all(call.form in _MARKED for call in calls):
        return before.endswith("\n") or bool(_SENTENCE_END.search(before))
    short = answered <= _ANNOUNCED and not showing and "\n\n" not in before.strip()
    return short and bool(_ANNOUNCES.search(paragraph))
