"""Output of an answer to the client: frames as they came, rewritten as parts of one answer, or held."""

from dataclasses import replace
from typing import TYPE_CHECKING

from proxy.core import sse
from proxy.core.dialect import Writer
from proxy.core.errors import STREAM_FAILED, UpstreamUnavailable
from proxy.core.piece import NOBODY, Piece
from proxy.stream.answer import Answer
from proxy.stream.events import Reopened
from proxy.stream.seam import LONG, NO_SEAM, Seam, SpacedFilter, seam_for
from proxy.stream.thinking import behind_thoughts, open_thought
from proxy.stream.watch import Watch

if TYPE_CHECKING:
    from proxy.emulation.reader import WrittenCallReader

_SPACELESS = "\u2e80"
"""From here on characters are those of Chinese, Japanese and Korean, with few exceptions (Unicode 17, blocks)."""
_LONGEST_WORD = 64


class Outlet:
    """The way out. Its methods append to `out`, the bytes to send next, and keep the answer up to date.

    Pieces are held, in order, while it is unknown whether the client gets them unchanged. Holding begins with a finish reason
    that may come from the window, or that waits for the usage chunk; with a tool call that may not fit; or with a word that a
    bound may cut. Pieces after a mark in the answer can be taken back.
    """

    def __init__(self, watch: Watch, answer: Answer, writer: Writer) -> None:
        self._watch = watch
        self._answer = answer
        self._writer = writer
        self.out: list[bytes] = []
        self.renaming = False
        """Whether frames go out under an identity other than the backend's."""
        self.rewriting = False
        """Whether frames belong to a later attempt, and are rewritten as part of the first one's answer."""
        self.role_sent = False
        """Whether a delta with the role was sent: only the first may have it."""
        self.template = Template()
        self.held: list[Piece] | None = None
        """Pieces held, maybe none yet; None if nothing is being held."""
        self._seam = self._thoughts = NO_SEAM
        """Filters for the text and for the reasoning of a later attempt."""
        self._thought_gap: str | None = ""
        """Text before the reasoning of a later attempt; None if that is dropped because the answer has begun."""
        self.more_expected = False
        """Whether the previous attempt was paused before a word, so that at least one more has to come."""
        self._usage_sent = self._remarks_sent = False

    def next_attempt(self, reopened: Reopened, gap: str, watch: Watch) -> None:
        """Get ready for the frames of another attempt, which has these limits; `gap` is the white space that was not taken."""
        answer, self._watch = self._answer, watch
        if answer.has_output:
            text, thought, calls = answer.text, answer.reasoning, answer.attempt.calling
            self.rewriting = True
            paragraph = Seam(SpacedFilter("\n\n" if text else ""))
            self._seam = paragraph if reopened.corrects else seam_for(reopened, text, gap, calls=calls)
            self._thoughts = seam_for(reopened, "" if text or not reopened.exact else thought, "", calls=calls)
            self._thought_gap = None if text else "\n\n" * (bool(thought) and not reopened.exact)
            expected = bool(text and gap and (reopened.exact or reopened.echo))
            self.more_expected = expected and not reopened.corrects
        elif answer.identity is not None:
            self.renaming = True  # a first chunk went out before the prompt was refused
        self.template.known = False
        self.held = None

    # -- pieces

    def plain(self, frame: bytes, calls: "WrittenCallReader | None") -> bool:
        """Take in a frame that differs from the last parsed one only in its text, far from the pause point.

        Returns False if the frame has to be parsed. To be safe, a character counts as four tokens (one for each UTF-8 byte).
        """
        template, answer = self.template, self._answer
        text = template.read(frame)
        if text is None or self.held is not None or not self._watch.far(answer, 4 * len(text)):
            return False
        if calls is not None and not template.thought and not calls.skip(text):
            return False
        answer.add_text(text, thought=template.thought)
        answer.count_only(text)
        self.out.append(template.write(text))
        return True

    def piece(self, piece: Piece) -> bool:
        """Take in a parsed piece; returns False if it shows that the model began its answer anew, and then sends none of it."""
        if self.rewriting:
            self._emit(self._joined(piece))
            return not (self._seam.restarted or self._thoughts.restarted)
        watch, answer = self._watch, self._answer
        answer.add(piece)
        if watch.strip_usage and piece.usage and not piece.choice:
            held = self.held or ()
            self.held = [self._writer.with_usage(each, piece) if each.finish else each for each in held] or self.held
            return True
        if piece.usage and (piece.finish or not piece.choice):
            usage = watch.with_details(piece.usage)
            piece = piece if usage is piece.usage else replace(piece, frame=b"", usage=usage)
        cut = piece.finish == "length" and (
            self.held is not None or watch.may_be_full(answer) or watch.cut_after_calls(answer)
        )
        usage_follows = watch.strip_usage and answer.attempt.finish is not None
        # Only the first choice's end is held, so that it does not delay other choices. An end without any text is held too,
        # since the attempt may have failed.
        vain = piece.finish and (answer.is_empty or watch.ended_in_thought(answer))
        if not piece.index and (cut or usage_follows or vain):
            self.held = [*(self.held or ()), piece]
            return True
        self._emit(piece)
        return True

    def aside(self, piece: Piece) -> None:
        """Take in a piece that is not part of the answer."""
        if self.held is not None and self._answer.mark is None:
            self.held.append(piece)
        else:
            self.out.append(self._relayed(piece))

    def _joined(self, piece: Piece) -> Piece:
        """Return a piece of a later attempt without repetitions. Its tokens are counted at once; text is added when it is new."""
        if piece.calls or (piece.text and self._thoughts.open):
            self.flush()
        answer, seam, thoughts = self._answer, self._seam, self._thoughts
        text, thought, before = piece.text, piece.thought, answer.attempt.completion_tokens
        if not ((text and seam.open) or (thought and (thoughts.open or self._thought_gap != ""))):
            answer.add(piece)
            return piece
        answer.count_only(text + thought)
        if self._thought_gap is None:
            if thought:
                answer.attempt.dropped += answer.attempt.completion_tokens - before
            thought = ""
        elif thought:
            thought, self._thought_gap = self._thought_gap + thoughts.feed(thought), ""
        piece = replace(piece, frame=b"", text="", thought="")
        answer.add(piece)
        piece.text, piece.thought = seam.feed(text), thought
        answer.add_text(piece.thought, thought=True)
        answer.add_text(piece.text)
        self._account()
        return piece

    def _emit(self, piece: Piece) -> None:
        content = piece.role or piece.text or piece.thought or piece.calls or piece.finish or piece.usage
        if piece.bare and not (content or piece.other_choices):  # all of it is a call that is still held elsewhere
            return
        if self.held is not None and (self._answer.mark is not None or not piece.index):
            self.held.append(piece)
            return
        role_sent, sent = self.role_sent, self._written(piece)
        self.out.append(sent)
        if self._writer.native and piece.alone and piece.frame and (role_sent or not piece.role):
            self.template.learn(piece.frame, sent, piece.alone, piece.text or piece.thought)

    def _written(self, piece: Piece) -> bytes:
        """Write a piece: as it came, or as part of the answer."""
        if not self.rewriting:
            return self._relayed(piece)
        role_sent, self.role_sent = self.role_sent, self.role_sent or piece.role
        return self._writer.part(piece, self._answer.identity or NOBODY, role_sent=role_sent)

    def _relayed(self, piece: Piece) -> bytes:
        identity = self._answer.identity if self.renaming or self.rewriting else None
        reports = bool(piece.usage and (piece.finish or not piece.choice))
        remarks = self._remarks() if piece.done or reports else b""
        counted = self.counted() if piece.done else b""
        self._usage_sent |= reports
        role_sent, self.role_sent = self.role_sent, self.role_sent or piece.role
        return remarks + counted + self._writer.relay(piece, identity, role_sent=role_sent)

    def counted(self) -> bytes:
        """Write usage as counted here if the backend reported none: in dialects other than chat completions it is mandatory."""
        answer, writer = self._answer, self._writer
        reported = any(attempt.usage is not None for attempt in answer.attempts)
        if writer.native or reported or not self._watch.show_usage or answer.identity is None:
            return b""
        return writer.insert(Piece(usage=answer.usage()), answer.identity)

    def _remarks(self) -> bytes:
        """Write the remarks once: before the usage, which clients expect in the last chunk, or else before the end mark."""
        if self._remarks_sent:
            return b""
        self._remarks_sent = True
        identity = self._answer.identity or NOBODY
        return b"".join([self._writer.insert(remark, identity) for remark in self._watch.remarks()])

    # -- holding back

    def hold_word(self, text: str) -> None:
        """Hold a word until the next one begins, for an attempt that may end at any token and so inside a word.

        Scripts without spaces between words do not need this.
        """
        if self._answer.attempt.withheld or self._seam.open or self._thoughts.open:
            return
        begins = text[:1].isspace()
        if begins or text[-1:] >= _SPACELESS or self._answer.size_since_mark > _LONGEST_WORD:
            self.release()
        if begins and text[-1:] < _SPACELESS:
            self.withhold()

    def withhold(self, *, call: bool = False) -> None:
        """Hold everything after this point (a word, or with `call` a tool call) until it is released or taken back."""
        self.release()
        self.flush()
        self.held = []
        self._answer.set_mark()
        self._answer.attempt.withheld = call

    def release(self) -> None:
        """Send all held pieces."""
        held, self.held = self.held, None
        self.out += [self._relayed(piece) if piece.form is None else self._written(piece) for piece in held or ()]
        self._answer.mark = None
        self._answer.attempt.withheld = False

    def close_thought(self, *, ended: bool) -> None:
        """Close reasoning that the model has not ended, with an end tag if it is in the text, so that an answer can follow."""
        self.drop_end() if ended else self.release()
        self.flush()
        if tag := open_thought(behind_thoughts(self._answer.text)):
            self._answer.add_text(closing := f"\n</{tag}>")
            self.out.append(self._writer.insert(Piece(text=closing), self._answer.identity or NOBODY))

    def take_back(self) -> str:
        """Drop the pieces held after a mark, and return their text."""
        if self._answer.mark is None:
            return ""
        self.held = None
        return self._answer.rewind()

    def give_back(self, text: str) -> None:
        """Send a word that was taken back for another attempt, now that there will be none."""
        if text:
            self._answer.add(piece := Piece(text=text))
            self.out.append(self._writer.insert(piece, self._answer.identity or NOBODY))

    def drop_end(self) -> None:
        """Send the held pieces without their finish reason: the answer goes on."""
        identity = self._answer.identity or NOBODY
        held, self.held = self.held or (), None
        self.out += [self._writer.part(piece, identity, role_sent=self.role_sent) for piece in held if not piece.error]
        self._answer.mark = None

    def settle(self) -> None:
        """Send or drop the held pieces at the end of the answer: text is sent, half a tool call is not."""
        if self._answer.attempt.withheld:
            self.take_back()
        self.release()
        self.flush()

    def flush(self) -> bool:
        """Send text that the seam still holds; returns False if the model has begun its answer anew."""
        thought, text = self._thoughts.flush(), self._seam.flush()
        if thought or text:
            self._answer.add_text(thought, thought=True)
            self._answer.add_text(text)
            self.out.append(self._writer.insert(Piece(thought=thought, text=text), self._answer.identity or NOBODY))
        self._account()
        return not (self._seam.restarted or self._thoughts.restarted)

    def _account(self) -> None:
        """Note how much a seam removed, once it is closed."""
        attempt = self._answer.attempt
        for seam in (self._seam, self._thoughts):
            if seam.taken_in and not seam.open:
                lost = max(0, seam.taken_in - seam.given_out)
                attempt.copied |= lost >= LONG
                attempt.dropped += attempt.completion_tokens * lost // seam.taken_in
                seam.taken_in = 0

    # -- ending

    def end(self, finish: str = "") -> None:
        """End the answer with this finish reason, or only with the end mark if `finish` is empty: it has been sent already."""
        answer, writer, identity = self._answer, self._writer, self._answer.identity
        self.close_frame()
        if not finish:
            self.out.append(self.counted())
        elif identity is not None and not answer.attempt.errored:
            self.flush()
            self.out += (writer.insert(Piece(finish=finish), identity), self._remarks())
            if self._watch.show_usage and not self._usage_sent:
                usage = self._watch.with_details(answer.usage())
                self.out.append(writer.insert(Piece(usage=usage), identity))
        answer.ended = finish
        self.out.append(writer.end())

    def fail(self, message: str) -> None:
        """End an answer that can't be resumed: send the held pieces, and an error."""
        self.close_frame()
        self.settle()
        self.out.append(self._writer.error(UpstreamUnavailable(message, code=STREAM_FAILED).body()))

    def refuse(self, refusal: Piece) -> None:
        """End an answer with the backend's own error."""
        self.close_frame()
        self.out += (self._writer.relay(refusal, None, role_sent=True), self._writer.end())

    def close_frame(self) -> None:
        """End a frame that the backend left unfinished with a blank line. JSON lines need none, and may not have any."""
        if self._writer.native and sse.is_open(self.out):
            self.out.append(b"\n\n")


class Template:
    """Form of the last parsed frame, by which the text of similar frames is read without parsing them.

    Backends send frame after frame that differ only in a word. Once one of them was parsed, the bytes before and after its
    text are known. A frame with the same bytes around plain text (no quote, escape or control character) is the same JSON
    with that text in it.
    """

    __slots__ = ("_after", "_before", "_to", "known", "thought")

    def __init__(self) -> None:
        self.known = False
        """Whether there is a form to read by. Code that sends the client anything else has to clear it."""
        self.thought = False
        """Whether the text is reasoning."""
        self._before = self._after = b""
        self._to: tuple[bytes, bytes] = (b"", b"")
        """Bytes to send to the client before and after the text."""

    def learn(self, frame: bytes, sent: bytes, name: str, text: str) -> None:
        """Take a parsed frame that says only `text`, in the field `name`, as the form; `sent` went to the client for it."""
        literal = text.encode("utf-8", "replace")
        form, to = _around(frame, name, literal), _around(sent, name, literal)
        if form is not None and to is not None and _is_plain(text):
            (self._before, self._after), self._to = form, to
            self.known, self.thought = True, name != "content"

    def read(self, frame: bytes) -> str | None:
        """Return the text of a frame that has this form, or None if it has to be parsed."""
        before, after = self._before, self._after
        if not self.known or len(frame) <= len(before) + len(after):
            return None
        if not (frame.startswith(before) and frame.endswith(after)):
            return None
        try:
            text = frame[len(before) : -len(after)].decode()
        except UnicodeDecodeError:
            return None
        return text if _is_plain(text) else None

    def write(self, text: str) -> bytes:
        """Return what goes to the client for a text that was read."""
        return self._to[0] + text.encode() + self._to[1]


def _is_plain(text: str) -> bool:
    return text.isprintable() and '"' not in text and "\\" not in text


def _around(frame: bytes, name: str, literal: bytes) -> tuple[bytes, bytes] | None:
    """Return the bytes before and after a value in a frame, if it is there literally and its key occurs only once."""
    key = b'"%b"' % name.encode()
    if frame.count(key) != 1:
        return None
    colon = frame.index(key) + len(key)
    start = frame.find(b'"', colon) + 1
    end = start + len(literal)
    if frame[colon : start - 1].strip() != b":" or frame[start : end + 1] != literal + b'"':
        return None
    return frame[:start], frame[end:]
