"""Calls that a model writes as text, read out of one attempt at an answer: pieces in, pieces out.

Where tools are emulated, every call is made as soon as it is complete. Once a call cannot be made, it and everything after it
is held back: the owner either asks the model once more, or gives up and sends it all as text.

A model with tools of its own writes a call as text if its backend's parser does not fit, or if it slips into another form; the
finish reason is then `stop` (Ollama issue 13519, llama.cpp issue 14697, LM Studio's bug tracker 821). Such a call is read back
if all of these are true: the tool was offered and the arguments fit its schema; the answer ends with the call, was not cut off,
and has made no regular call; and the text before it does not announce an example. Anything else stays text, byte for byte.
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
"""Finish reasons of answers not ended by the model (OpenAI API, "The chat completion object"; the last is OpenRouter's)."""
_COUNTS = ("usage", "prompt_tokens", "completion_tokens")
_EARLY, _LATE = re.compile(r"[<\[{`]"), re.compile(r"[<\[]")
"""Characters with which a call to read back may begin: near the beginning of an answer, and later."""
_ANNOUNCED = 200
"""Characters up to which the text before a call counts as a short announcement."""
_BEFORE = 300
"""Characters before a call that are searched for signs of an example."""
_MARKED = frozenset(form.name for form in FORMS if form.marked)
_SENTENCE_END = re.compile(r"[.!?)\u2026\u3002\uff01\uff1f\U0001f000-\U0001ffff]\s*\Z")
_SHOWS = re.compile(
    r"\b(?:examples?|e\.g|for instance|such as|like (?:this|so)|looks? like|would|could|should look|syntax|formats?|templates?"
    r"|illustrat\w+|demonstrat\w+|samples?|hypothetical\w*|never|instead of|don't|do not|how to|you (?:can|may|should|must|need)"
    r"|show|explain|describe|tell you|here(?:['\u2019]s| is| are)"
    r"|beispiel\w*|z\. ?b|würde|könnte|exemples?|ejemplos?|esempi\w*|exemplos?)\b|例|示例|格式|пример",
    re.IGNORECASE,
)
"""Words that announce an example or an explanation."""
_BEGUN = re.compile(r"[<\[]\W?\w{0,20}(?:tool|function|invoke|call)[\s\S]{0,80}")
"""Beginning of a call in most forms, with enough of the following text to include the tool's name."""
_ANNOUNCES = re.compile(
    r"\b(?:I['\u2019]ll|I will|I['\u2019]m going to|I am going to|I need to|I have to|I['\u2019]m \w+ing|let me|let['\u2019]s|now I|first, I"
    r"|(?:calling|checking|looking|searching|reading|running|fetching|opening|writing|creating|updating)\b"
    r"|ich werde|ich rufe|ich prüfe|ich sehe|ich schaue|ich suche|ich lese|lass mich|je vais|laissez-moi|voy a|déjame|vou|deixe-me)\b"
    r"|让我|我来|我将|我会|我需要",
    re.IGNORECASE,
)
"""Words that announce an action."""
_MISSING = CallFault(NO_CALL, "", "none", "no tool was called, and one has to be")


class WrittenCallReader:
    """Reads the calls of the first choice. Only text that may become a call is held back, in whole pieces."""

    # A call in a result or in the newest user message is a quotation when a model repeats it; otherwise the text of a
    # page could become a call.

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
        """`make_id` makes ids of calls; earlier attempts at the answer sent `text_before` and made `calls_before` calls."""
        self._offer, self.tools = offer, offer.callable
        self._count = count
        self._make_id = make_id
        self._emulated = emulated
        self._scanner = CallScanner(offer, text_before, calls_before=calls_before)
        self.faults = self._scanner.faults
        """Faults of calls found so far; the owner removes those it has handled."""
        self._over = not offer.callable and not emulated
        self._calls = calls_before
        self._end = self._held_from = len(text_before)
        """Characters of the answer received so far, and before the first held piece."""
        self._held: deque[Piece] = deque()
        self._spans: list[CallSpan] = []
        """Spans not sent yet."""
        self._behind = 0
        """Index after the newest span."""
        self._before = text_before[-_BEFORE:]
        """End of the text sent so far."""
        self._showing = False
        """Whether the answer already contains a call that was an example."""
        self._made: list[str] = []
        """Sent calls, as text."""
        self._malformed: list[CallFault] = []
        self._waiting = False
        """Whether everything is held until a correction arrives or the owner gives up."""
        self._tail: list[Piece] = []
        # Counted by the model's vocabulary. A quarter of the characters was nearly twice the tokens of long words, so
        # an emulated call that fits was paused, and one that was asked for again never fitted.
        self.unseen = 0
        """Tokens held back."""
        self.leaked = 0
        """Number of calls of a model with tools of its own that were read back from text."""
        self.stats: Counter[tuple[str, str]] = Counter()
        """Numbers of emulated calls by form and outcome: `called`, `repaired` (included in `called`), `malformed`."""

    def skip(self, text: str) -> bool:
        """Accept a text that cannot be part of a call, so that it may be sent unread; False if its piece has to be fed."""
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
        """Read the next piece of the backend's stream; return the pieces that may be sent now."""
        if piece.aside:
            return (piece,)
        if piece.error or (piece.calls and not self._emulated):
            # An error is passed on at once, without the call that it cut off: that was not the model's fault.
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
        # A call that began in text already sent cannot be taken back, so it is not worth waiting for.
        waits = self._spans or self._held_from <= self._scanner.suspect_from < self._end
        return () if waits else self._release(self._end)

    def close(self) -> Sequence[Piece]:
        """End an attempt that was cut off without a finish reason; return the remaining pieces that need no correction."""
        return self._end_reading("error")

    def correction(self) -> Correct | None:
        """Return the correction to ask of the model, or None if there is none."""
        if not self._malformed:
            return None
        written = "\n".join((*self._made, *filter(None, ["".join(piece.text for piece in self._tail)])))
        return Correct(written, complaint(self._malformed), tuple(call.form for call in self._malformed))

    def unread(self, text: str) -> list[CallFault]:
        """Return the fault of an answer with a call in an unknown form: a tool's name after the usual beginning of a call."""
        beginning = _BEGUN.search(text)
        if beginning is None or _SHOWS.search(text, max(0, beginning.start() - _BEFORE), beginning.start()):
            return []
        return [fault("unread", tool, "unknown") for tool in self._offer.callable if tool in beginning[0]][:1]

    def give_up(self) -> Sequence[Piece]:
        """Release everything that was held back; calls that cannot be made stay the text that the model wrote."""
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
        """Decide that the calls found so far are examples, or part of a text."""
        self._showing |= bool(self._spans)
        self._spans = []

    def _end_reading(self, finish: str | None, *, failed: bool = False) -> Sequence[Piece]:
        """End the answer: at its end mark if there is no finish reason, or, if `failed`, at an error."""
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
            # Any finish reason is replaced, not only `stop`, for which some backends have words of their own.
            self._held[-1] = replace(last, frame=b"", finish="tool_calls")
        elif self._emulated and self._offer.choice in ("required", "named") and not (self._spans or self._malformed):
            del self._held[-1]
            text, end = _cut(last, len(last.text)) if last.text else (None, last)
            self._held += [text] if text else []
            return (*self._release(self._end), *self._wait(_MISSING), *self._pass(end))
        return self._release(self._end)

    def _keep_intended(self, *, cut: bool) -> None:
        """Keep the calls at the end of a complete answer if they are intended; their span then includes all text after them."""
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
        """Send the held text up to an index of the answer, with calls in place of the spans."""
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
        """Send the text of the first held piece before the first span, and the calls of that span."""
        span, stop = self._spans[0], self._held_from + len(piece.text)
        if span.found == () and span.start <= self._held_from and stop < span.end and not (piece.more or piece.role):
            # The piece lies within the span. Dropping its counts is safe: they are running totals, and later ones replace them.
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
        """Hold back everything from a call that cannot be made."""
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
    """Cut a piece in two at an index of its text; usage, counts and the finish reason go with the second."""
    first = replace(piece.uncounted(), text=piece.text[:at], finish=None)
    second = replace(piece.blank(), text=piece.text[at:], finish=piece.finish)
    for name in _COUNTS:
        setattr(second, name, getattr(piece, name))
    return first, second


def _without_fault(span: CallSpan) -> CallSpan:
    """Return a span without its fault, after an error ended the answer: a cut-off call is left out, any other fault is text."""
    if not isinstance(span.found, CallFault):
        return span
    return span._replace(found=() if span.found.reason == CUT else None)


def _is_intended(calls: Sequence[Call], before: str, answered: int, *, showing: bool) -> bool:
    """Return whether calls at the end of an answer are meant as calls, not as an example, by the text before them.

    `answered` is the number of characters before them without reasoning; `showing`: the answer already contains an example.
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
