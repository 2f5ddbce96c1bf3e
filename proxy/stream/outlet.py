"""Output of an answer to the client: frames as they came, or rewritten as parts of one answer, or held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from proxy.core.dialect import Writer
from proxy.core.piece import NOBODY, Piece
from proxy.stream.answer import Answer
from proxy.stream.events import Reopened
from proxy.stream.seam import LONG, Joint, Seam, SpacedFilter, seam_for
from proxy.stream.template import Template
from proxy.stream.watch import Watch

_SPACELESS = "\u2e80"
"""From here on characters are those of Chinese, Japanese and Korean, with few exceptions (Unicode 17, blocks)."""
_LONGEST_WORD = 64


class Outlet:
    """The way out. Its methods append to `out`, which is what is sent next, and keep the answer up to date.

    Two kinds of pieces wait, and are written when they go out. `ending` are those from an end on that may be the window's doing, or that lacks what
    the usage chunk took from it: they go out when the answer is over. `withheld` are those of a tool call that
    may not fit, or of a word that a bound may cut: they go out, or are taken back, when that is known.
    """

    def __init__(self, watch: Watch, answer: Answer, writer: Writer) -> None:
        self._watch = watch
        self._answer = answer
        self._writer = writer
        self.renaming = False
        """Whether frames go out under an identity other than the backend's."""
        self.rewriting = False
        """Whether frames are those of a later attempt, and become part of the first one's answer."""
        self.template = Template()
        self._ending: list[tuple[Piece, bool]] = []
        """With whether the role was said before each."""
        self._withheld: list[Callable[[], bytes]] | None = None
        self._seam: Seam = Joint()
        self._thoughts: Seam = Joint()
        """The same for reasoning that is gone on with."""
        self.expected = False
        """Whether the running attempt goes on with a text of which one more word is known to come."""
        self._thought: str | None = ""
        """What goes before the reasoning of a later attempt; None: it is left out, the answer has begun."""
        self._fed = self._before = 0
        """Characters that were held back of the running attempt, and those of the answer before it."""
        self._usage_said = False
        """Whether usage that came before an end went out."""
        self._remarked = False
        """Whether what is told beside the answer went out."""

    def next_attempt(self, reopened: Reopened, gap: str) -> None:
        """Get ready for the frames of another attempt; `gap` is the white space that was not taken."""
        answer = self._answer
        if answer.begun:
            said, thought = answer.text, answer.reasoning
            self._fed, self._before = 0, answer.size
            self.rewriting = True
            self._seam = seam_for(reopened, said, gap)
            self._thoughts = seam_for(reopened, "" if said or not reopened.exact else thought, "")
            self._thought = None if said else "\n\n" * (bool(thought) and not reopened.exact)
            self.expected = bool(said and gap and (reopened.exact or reopened.echo))
        elif answer.identity is not None:
            self.renaming = True  # a first chunk went out before the prompt was refused
        self.template.forget()
        self._ending = []

    def begin_paragraph(self) -> None:
        """Return what the attempt says is no continuation of what was said before."""
        self._seam = SpacedFilter("\n\n" if self._answer.text else "")
        self.expected = False

    # -- pieces

    def plain(self, frame: bytes, out: list[bytes]) -> bool:
        """Take in a frame that differs from the last parsed one in nothing but its text, far from the pause point.

        False: it has to be parsed. No character is more than four tokens.
        """
        template, answer = self.template, self._answer
        text = template.read(frame)
        if text is None or self._withheld is not None or not self._watch.far(answer, 4 * len(text)):
            return False
        answer.add_plain(
            text, thought=template.thought, told=template.completion_tokens(frame) if template.counts else 0
        )
        out.append(template.fill(frame, text))
        return True

    def piece(self, piece: Piece, out: list[bytes]) -> bool:
        """A piece that was read; False: it shows that the model began its answer anew, and nothing of it is passed on."""
        if self.rewriting:
            self._join(piece, out)
            return not self._restarted
        role_sent = self._answer.role_sent
        self._answer.add(piece)
        self._relay(piece, out, role_sent=role_sent)
        return True

    def other(self, piece: Piece, out: list[bytes]) -> None:
        """A piece that says nothing of the answer, after its end too."""
        if self._ending:
            self._ending.append((piece, True))
        else:
            out.append(self._relayed(piece, role_sent=True))

    def error(self, piece: Piece, out: list[bytes]) -> None:
        """An error that is the client's to see: what was held back comes first, and nothing after it."""
        self.settle(out)
        self.other(piece, out)
        self.template.forget()

    def _relay(self, piece: Piece, out: list[bytes], *, role_sent: bool) -> None:
        """A piece of the first attempt, as it came."""
        watch, answer = self._watch, self._answer
        if watch.strip_usage and piece.trailer:
            if self._ending:
                finish, after_role = self._ending[0]
                self._ending[0] = (self._writer.with_usage(finish, piece), after_role)
            return
        if piece.usage is not None and (piece.trailer or piece.finish):
            usage = watch.noted(piece.usage)
            piece = piece if usage is piece.usage else replace(piece, frame=b"", usage=usage)
            self._usage_said = not self._ending
        cut = piece.finish == "length"
        ends = watch.strip_usage and answer.attempt.finish is not None
        # The end of the first choice does not hold up others.
        if not piece.index and (
            self._ending or ends or (cut and (self._withheld is not None or watch.may_be_full(answer)))
        ):
            self._ending.append((piece, role_sent))
            self.template.forget()
            return
        self._write(self._relayed, piece, out, role_sent=role_sent, learns=True)

    def _join(self, piece: Piece, out: list[bytes]) -> None:
        """A piece of a later attempt: only what it says, in one answer with what was said before."""
        if piece.calls or (piece.text and self._thoughts.open):
            self.flush(out)
        answer, came = self._answer, piece
        role_sent, thought, text = answer.role_sent, piece.thought, piece.text
        if thought and self._thought:
            piece, self._thought = replace(piece, frame=b"", thought=self._thought + thought), ""
        held_thought = bool(thought) and (self._thought is None or self._thoughts.open)
        held_text = bool(text) and self._seam.open
        if held_thought or held_text:
            # Counted as it comes, said when it is no repetition.
            held = thought * held_thought + text * held_text
            answer.skip(held)
            self._fed += len(held)
            piece = replace(piece, frame=b"")
            piece.thought, piece.text = piece.thought * (not held_thought), text * (not held_text)
        answer.add(piece)
        if held_thought and self._thought is not None:
            piece.thought = self._thoughts.feed(thought)
            answer.add_text(piece.thought, thought=True)
        if held_text:
            piece.text = self._seam.feed(text)
            answer.add_text(piece.text)
        self._account()
        self._write(self._part, piece, out, role_sent=role_sent, learns=piece is came)

    def _write(
        self, way: Callable[..., bytes], piece: Piece, out: list[bytes], *, role_sent: bool, learns: bool
    ) -> None:
        if self._withheld is not None:
            self._withheld.append(partial(way, piece, role_sent=role_sent))
            self.template.forget()  # nobody knows yet how a word after it is written
            return
        sent = way(piece, role_sent=role_sent)
        out.append(sent)
        self.template.forget()  # what was written may have changed how a word is
        if learns and self._writer.native and piece.alone and (role_sent or not piece.role):
            self.template.learn(piece.frame, sent, piece.alone, piece.text or piece.thought, piece.tally)

    def _relayed(self, piece: Piece, *, role_sent: bool) -> bytes:
        identity = self._answer.identity if self.renaming or self.rewriting else None
        ends = piece.done or (piece.usage is not None and bool(piece.trailer or piece.finish))
        beside = self._remarks() if ends else b""
        counted = self.counted() if piece.done else b""
        return beside + counted + self._writer.relay(piece, identity, role_sent=role_sent)

    def counted(self) -> bytes:
        """Usage as it was counted here, for clients of other dialects, whose answers always have it, where nobody reported any."""
        answer, writer = self._answer, self._writer
        reported = any(attempt.usage is not None for attempt in answer.attempts)
        if writer.native or reported or not self._watch.show_usage or answer.identity is None:
            return b""
        return writer.insert(Piece(trailer=True, usage=answer.usage()), answer.identity)

    def _remarks(self) -> bytes:
        """Return what is told beside the answer, once: in front of its usage, which clients look for in the last chunk, or of its end mark."""
        if self._remarked:
            return b""
        self._remarked = True
        identity = self._answer.identity or NOBODY
        return b"".join(self._writer.insert(remark, identity) for remark in self._watch.remarks())

    def _part(self, piece: Piece, *, role_sent: bool) -> bytes:
        identity = self._answer.identity
        return b"" if identity is None else self._writer.part(piece, identity, role_sent=role_sent)

    # -- holding back

    def withhold(self, out: list[bytes]) -> None:
        """From now on the client gets nothing until `release`, or never."""
        self.flush(out)
        self._withheld = []
        self._answer.mark()

    def hold_word(self, text: str, out: list[bytes]) -> None:
        """Keep a word to itself until the next one begins: what may end at any token may end inside a word.

        Scripts that put no spaces between words need none of it.
        """
        if self._answer.attempt.withheld or self._seam.open or self._thoughts.open:
            return
        begins = text[:1].isspace()
        if begins or text[-1:] >= _SPACELESS or self._answer.held > _LONGEST_WORD:
            self.release(out)
        if begins and text[-1:] < _SPACELESS:
            self.withhold(out)

    def withhold_call(self, out: list[bytes]) -> None:
        """The same for a tool call: what comes from now on is looked at frame by frame."""
        self.release(out)
        self.withhold(out)
        self.template.forget()
        self._answer.attempt.withheld = True

    def release(self, out: list[bytes]) -> None:
        """Send what was withheld."""
        if self._withheld is not None:
            out += [write() for write in self._withheld]
            self._withheld = None
            self._answer.attempt.withheld = False

    def take_back(self) -> str:
        """Forget what was withheld, and return the text in it."""
        if self._withheld is None:
            return ""
        self._withheld = None
        self._usage_said = False
        return self._answer.rewind()

    def settle(self, out: list[bytes]) -> None:
        """The answer ends here: text that was held back goes out, half a tool call never does."""
        if self._answer.attempt.withheld:
            self.take_back()
        self.release(out)
        self.flush(out)

    @property
    def withholding(self) -> bool:
        """Return whether anything is withheld."""
        return self._withheld is not None

    def flush(self, out: list[bytes], *, interrupted: bool = False) -> bool:
        """Text that was held back at the seam turns out to be no repetition; False: it is the answer begun anew."""
        identity = self._answer.identity
        thought, text = (self._thoughts.flush(interrupted=interrupted), self._seam.flush(interrupted=interrupted))
        if identity is not None and (thought or text):
            self._answer.add_text(thought, thought=True)
            self._answer.add_text(text)
            out.append(self._writer.insert(Piece(thought=thought, text=text), identity))
        self._account()
        return not self._restarted

    def _account(self) -> None:
        """Once nothing is held back any more, write down how much was taken out."""
        if not self._fed or self._seam.open or self._thoughts.open:
            return
        attempt, lost = self._answer.attempt, max(0, self._fed - (self._answer.size - self._before))
        attempt.copied = lost >= LONG
        attempt.dropped += attempt.completion_tokens * lost // self._fed
        self._fed = 0

    @property
    def _restarted(self) -> bool:
        return self._seam.restarted or self._thoughts.restarted

    @property
    def ending(self) -> bool:
        """Return whether an end waits."""
        return bool(self._ending)

    def finish(self, out: list[bytes]) -> None:
        """The end of the first attempt is that of the answer: it need not wait for the connection to close."""
        out += [self._relayed(piece, role_sent=role_sent) for piece, role_sent in self._ending]
        self._ending = []

    def release_end(self, out: list[bytes]) -> None:
        """The end that waits turns out to be none: only what it says goes out."""
        out += [self._part(piece, role_sent=role_sent) for piece, role_sent in self._ending if not piece.error]

    def final(self, finish: str) -> bytes:
        """The end of an answer, in Spillway's own words."""
        identity, writer = self._answer.identity, self._writer
        self._answer.ended = finish
        if identity is None or self._answer.attempt.errored:
            return writer.end()
        out: list[bytes] = []
        self.flush(out)
        out += (writer.insert(Piece(finish=finish), identity), self._remarks())
        if self._watch.show_usage and not self._usage_said:
            usage = self._watch.noted(self._answer.usage())
            out.append(writer.insert(Piece(trailer=True, usage=usage), identity))
        return b"".join((*out, writer.end()))

    def failed(self, message: str) -> bytes:
        """The end of an answer that can't be gone on with, after what was held back."""
        error = {"message": message, "type": "upstream_error", "code": "upstream_failed", "param": None}
        out: list[bytes] = []
        self.settle(out)
        return b"".join(out) + self._writer.error({"error": error})
