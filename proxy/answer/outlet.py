"""What the client gets of an answer: frames as they came, or rewritten as parts of one answer, or held back."""

from __future__ import annotations

from typing import Any

from proxy.answer.answer import Answer, first_choice
from proxy.answer.events import Resumed
from proxy.answer.frames import clean, encoded, with_timings
from proxy.answer.privileged import unprivileged
from proxy.answer.rewriting import (
    content_of,
    part_of,
    renamed,
    text_alone,
    thought_of,
    with_content,
    with_thought,
)
from proxy.answer.seam import Joint, Seam, SpacedFilter, seam_for
from proxy.answer.template import Template
from proxy.answer.watch import Watch


class Outlet:
    """The way out. Its methods append to `out`, which is what is sent next, and keep the answer up to date.

    Two kinds of frames wait. `ending` are those from an end on that may be the window's doing, or that lacks what
    the usage chunk took from it: they go out when the answer is over. `withheld` are those of a tool call that
    may not fit, or of a word that a bound may cut: they go out, or are taken back, when that is known.
    """

    def __init__(self, watch: Watch, answer: Answer) -> None:
        self._watch = watch
        self._answer = answer
        self.renaming = False
        """Whether frames go out under an identity other than the backend's."""
        self.rewriting = False
        """Whether frames are those of a later attempt, and become part of the first one's answer."""
        self.template = Template()
        self.ending: list[bytes] = []
        self.ending_said = b""
        """What the frames in `ending` say, without that end."""
        self._withheld: list[bytes] | None = None
        self._seam: Seam = Joint()
        self._thought: str | None = ""
        """What goes before the reasoning of a later attempt; None: it is left out, the answer has begun."""

    def next_attempt(self, resumed: Resumed, gap: str) -> None:
        """Get ready for the frames of another attempt; `gap` is the white space that was not taken."""
        answer = self._answer
        if answer.begun:
            said = answer.text
            self.rewriting = True
            self._seam = seam_for(resumed, said, gap)
            anew = bool(answer.reasoning) and not resumed.exact
            self._thought = None if said else "\n\n" * anew
        elif answer.identity is not None:
            self.renaming = True  # a first chunk went out before the prompt was refused
        self.template.forget()
        self.ending = []
        self.ending_said = b""

    def begin_paragraph(self) -> None:
        """What the attempt says is no continuation of what was said before."""
        self._seam = SpacedFilter("\n\n" if self._answer.text else "")

    # -- frames

    def text_frame(self, frame: bytes, text: str, out: list[bytes]) -> None:
        """A frame that the template could read."""
        self._sink(out).append(self.template.fill(frame, text))
        self._answer.add_plain(self.template.name, text)

    def chunk(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> bool:
        """A parsed chunk; False: it shows that the model began its answer anew, and nothing of it is passed on."""
        if self.rewriting:
            self._join(frame, chunk, out)
            return not self._seam.restarted
        role_said = self._answer.role_said
        self._answer.add(chunk)
        self._relay(frame, chunk, out, role_said=role_said)
        return True

    def other(self, frame: bytes, out: list[bytes]) -> None:
        """A frame that says nothing of the answer, after its end too."""
        (self.ending or out).append(frame)

    def error(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> None:
        """An error that is the client's to see: what was held back comes first."""
        self.settle(out)
        self.other(self._renamed(frame, chunk, role_said=True), out)

    def _relay(self, frame: bytes, chunk: dict[str, Any], out: list[bytes], *, role_said: bool) -> None:
        """A chunk of the first attempt, as it came."""
        watch, answer = self._watch, self._answer
        if watch.strip_usage and chunk.get("usage") and not chunk.get("choices"):
            if self.ending:
                self.ending[0] = with_timings(self.ending[0], frame)
            return
        sent = self._renamed(frame, chunk, role_said=role_said)
        choice = first_choice(chunk)
        cut = choice is not None and choice.get("finish_reason") == "length"
        ends = watch.strip_usage and answer.attempt.finish is not None
        other = choice is not None and bool(choice.get("index"))  # the end of the first does not hold it up
        if not other and (
            self.ending or ends or (cut and (self._withheld is not None or watch.may_be_full(answer)))
        ):
            self.ending.append(sent)
            self.ending_said += self._part(chunk, role_said=role_said)
            self.template.forget()
            return
        self._sink(out).append(sent)
        self._learn(frame, sent, chunk, role_said=role_said)

    def _join(self, frame: bytes, chunk: dict[str, Any], out: list[bytes]) -> None:
        """A chunk of a later attempt: only what it says, in one answer with what was said before."""
        role_said, content, thought = self._answer.role_said, content_of(chunk), thought_of(chunk)
        untouched = True
        if thought and self._thought != "":
            untouched = False
            if self._thought is None:
                self._answer.skip(thought)
            chunk = with_thought(chunk, None if self._thought is None else self._thought + thought)
            self._thought = self._thought and ""
        if content and self._seam.open:
            # Counted as it comes, said when it is no repetition.
            untouched = False
            self._answer.skip(content)
            self._answer.add(with_content(chunk, ""))
            said = self._seam.feed(content)
            self._answer.add_text(said)
            chunk = with_content(chunk, said)
        else:
            self._answer.add(chunk)
        part = self._part(chunk, role_said=role_said)
        self._sink(out).append(part)
        if untouched:
            self._learn(frame, part, chunk, role_said=role_said)

    def _learn(self, frame: bytes, sent: bytes, chunk: dict[str, Any], *, role_said: bool) -> None:
        alone = text_alone(chunk, role_said=role_said)
        if alone is not None and self._withheld is None:
            self.template.learn(frame, sent, *alone)

    def _renamed(self, frame: bytes, chunk: dict[str, Any], *, role_said: bool) -> bytes:
        identity = self._answer.identity
        if identity is None or not (self.renaming or self.rewriting):
            return clean(frame, chunk)
        return encoded(renamed(unprivileged(chunk), identity, role_said=role_said))

    def _part(self, chunk: dict[str, Any], *, role_said: bool) -> bytes:
        identity = self._answer.identity
        part = None if identity is None else part_of(chunk, identity, role_said=role_said)
        return b"" if part is None else encoded(part)

    # -- holding back

    def withhold(self, out: list[bytes]) -> None:
        """From now on the client gets nothing until `release`, or never."""
        self.flush(out)
        self._withheld = []
        self._answer.mark()

    def withhold_call(self, out: list[bytes]) -> None:
        """The same for a tool call: what comes from now on is looked at frame by frame."""
        self.release(out)
        self.withhold(out)
        self.template.forget()
        self._answer.attempt.withheld = True

    def release(self, out: list[bytes]) -> None:
        """Send what was withheld."""
        if self._withheld is not None:
            out += self._withheld
            self._withheld = None
            self._answer.attempt.withheld = False

    def take_back(self) -> str:
        """Forget what was withheld, and return the text in it."""
        if self._withheld is None:
            return ""
        self._withheld = None
        return self._answer.rewind()

    def settle(self, out: list[bytes]) -> None:
        """The answer ends here: text that was held back goes out, half a tool call never does."""
        if self._answer.attempt.withheld:
            self.take_back()
        self.release(out)
        self.flush(out)

    @property
    def withholding(self) -> bool:
        """Whether anything is withheld."""
        return self._withheld is not None

    def flush(self, out: list[bytes], *, left: bool = False) -> bool:
        """Text that was held back at the seam turns out to be no repetition; False: it is the answer begun anew."""
        rest, identity = self._seam.flush(left=left), self._answer.identity
        if rest and identity is not None:
            self._answer.add_text(rest)
            out.append(encoded(identity.chunk({"content": rest})))
        return not self._seam.restarted

    def finish(self, out: list[bytes]) -> None:
        """The end of the first attempt is that of the answer: it need not wait for the connection to close."""
        out += self.ending
        self.ending = []

    def _sink(self, out: list[bytes]) -> list[bytes]:
        return out if self._withheld is None else self._withheld
