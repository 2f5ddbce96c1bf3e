"""Notices to the user inside the stream: their texts and forms, and how they are recognised when a client sends them back."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from proxy.core.errors import plural
from proxy.core.piece import Piece

MOST_WINDOWS = 16
"""Windows that an answer without a `max_tokens` of its client may fill."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line of plain text to tell. `done` closes the one before it; `last`: it is shown though there is none to close.

    `details` are more lines, which belong to it.
    """

    text: str
    done: bool = True
    last: bool = False
    details: tuple[str, ...] = ()


COMPACTING = Notice("⚙️ Compacting conversation history…", done=False)
READING = Notice("📖 Your message exceeds the window, reading it in parts…", done=False)
IN_VAIN = Notice("⚠️ Compacting did not help, continuing unchanged")
NO_ROOM = Notice(
    "⚠️ No room is left to continue this answer, so it ends here",
    last=True,
    details=(
        "write “continue”: a new turn can shorten what was done so far",
        "start a new conversation that begins with these lines",
        "give the model a larger window",
    ),
)
ANEW = Notice("⚠️ The model restarted its answer and is asked again to continue")
LONGEST = Notice(
    f"⚠️ This answer has filled {MOST_WINDOWS} windows, so it ends here",
    last=True,
    details=("write “continue”, or have the client send `max_tokens`",),
)
LOOPED = Notice(
    "⚠️ The model repeats itself, so its answer ends here",
    last=True,
    details=("ask again in other words", "raise the temperature or the repetition penalty"),
)
NOT_CONTINUED = Notice(
    "⚠️ The backend does not continue this answer, so it ends here",
    last=True,
    details=("write “continue” once the backend answers again",),
)
SILENT_CUT = Notice("⚠️ The backend cut the beginning of this conversation; it is compacted on the next turn")
DONE = Notice("✅ Done")
_COMPACTED = "✅ Conversation shortened"
_READ = "✅ Your message was read in parts, answering from notes…"
_OMITTED = "✅ Conversation shortened, the middle of your message was left out"
_NOW = {"written": "a summary", "extract": "an extract of what you said", "": "shorter"}
_AHEAD = rf"✅\s+\d+\s+earlier\s+messages?\s+(?:is|are)\s+now\s+(?:{'|'.join(_NOW.values())})".replace(" ", r"\s+")


def compacted(before: int, after: int, *, omitted: bool = False) -> Notice:
    """Return the notice that tells the prompt tokens before and after; `omitted`: part of the newest message was left out."""
    text = _OMITTED if omitted else _COMPACTED
    # An estimate that has become a count meanwhile may be the higher one.
    return Notice(f"{text} ({_short(before)} → {_short(after)} tokens)" if after < before else text)


def shortened_ahead(messages: int, summary: str, before: int, after: int, link: str = "") -> Notice:
    """Return the notice that a history was shortened before its newest turn, shown once; `link` shows how, if not empty."""
    text = f"✅ {plural(messages, 'earlier message')} {'is' if messages == 1 else 'are'} now {_NOW[summary]}"
    return Notice(f"{text} ({_short(before)} → {_short(after)} tokens){link and f': {link}'}", last=True)


def moved(model: str, window: int) -> Notice:
    """Return the notice that a conversation moved to a model with a larger window, shown once."""
    return Notice(f"✅ Moved to {'_'.join(model.split())} ({window:,} tokens)", last=True)


def summarising(tokens: int) -> str:
    """Return the progress of a summary, or an empty text before its first token."""
    return f"{COMPACTING.text} ({plural(tokens, 'token')} of its summary written)" if tokens else ""


def reading_part(part: int, parts: int) -> str:
    """Return the progress of a message that is read in parts, or an empty text before the first one."""
    return f"📖 Reading part {part} of {parts}…" if parts else ""


def read_in_parts(before: int, after: int) -> Notice:
    """Return the notice that notes replace a message, with the prompt tokens before and after."""
    return Notice(f"{_READ} ({_short(before)} → {_short(after)} tokens)")


def omitted_from_message(tokens: int, total: int) -> Notice:
    """Return the notice that `tokens` of the newest message's `total` were not sent."""
    return Notice(
        f"⚠️ Your message alone exceeds the window: {_short(tokens)} of its {_short(total)} tokens, in its middle, were left out"
    )


def affordable(tokens: int) -> Notice:
    """Return the notice that an answer was bounded by what can be paid for."""
    return Notice(f"⚠️ The credit at the backend pays for an answer of {tokens} tokens: it ends there at the latest")


def too_much_fixed(share: int) -> Notice:
    """Return the notice that system prompt and tools, which no compaction shortens, take `share` percent of the window."""
    return Notice(
        f"⚠️ System prompt and tools take {share} % of the window: little is left for the conversation. "
        "Fewer tools or a larger window help"
    )


def reading(tokens: int) -> str:
    """Return the status text while the backend reads a prompt of this many tokens."""
    return f"⏳ Waiting for the first word: {_short(tokens)} tokens to read"


def recalled(passages: int) -> Notice:
    """Return the notice of how many passages were recalled, shown once in a turn."""
    return Notice(f"🔎 {passages} earlier {'passage' if passages == 1 else 'passages'} recalled")


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"


def _pattern() -> re.Pattern[str]:
    """Clients trim the ends of a text, change its white space, and some drop the selector that makes an emoji."""
    notices = [
        each.text for each in (COMPACTING, READING, IN_VAIN, DONE, NO_ROOM, NOT_CONTINUED, ANEW, LONGEST, LOOPED)
    ]
    lines = (*notices, _READ, _OMITTED, _COMPACTED)
    texts = [r"\s+".join(map(re.escape, text.split())).replace("\ufe0f", "\ufe0f?") for text in lines]
    figures = r"(?:\s+\([\d.]+k?\s+→\s+[\d.]+k?\s+tokens\)(?::\s+http://[^\s*]+)?)?"
    other = r"✅\s+Moved\s+to\s+\S{1,512}\s+\([\d,]+\s+tokens\)"
    blank = r"[^\S\r\n]*"
    before = rf"(?:\r?\n(?:{blank}\r?\n)?{blank})?"
    details = rf"(?:{blank}\r?\n{blank}>{blank}-[^\r\n]*)*"
    return re.compile(
        rf"{before}>\s+\*(?:{'|'.join([*texts, _AHEAD, other])}){figures}\*{details}(?:{blank}\r?\n){{0,2}}"
    )


_NOTICE = _pattern()


def quoted(notice: Notice) -> str:
    """Return the notice in its form for content or reasoning."""
    return "\n> - ".join((f"\n\n> *{notice.text}*", *notice.details)) + "\n\n"


def strip_status(text: str) -> str:
    """Return the text without notices that an earlier answer carried."""
    return _NOTICE.sub("", text) if ">" in text and any(sign in text for sign in "⚙⚠✅📖") else text


Form: TypeAlias = Callable[[Notice], Piece]
"""Makes the piece that carries a notice; the client's dialect writes it."""


def comment_form(notice: Notice) -> Piece:
    """Return a comment line of the event stream: every client ignores it, a person with curl sees it."""
    return Piece(comment=notice.text)


def content_form(notice: Notice) -> Piece:
    """Return a quoted line of the answer: shown everywhere, removed again when the client sends it back."""
    return Piece(text=quoted(notice))


def event_form(notice: Notice) -> Piece:
    """Return Open WebUI's own status event on a delta with empty text (Open WebUI 0.12).

    Open WebUI shows it above the answer and never sends it back; other clients see an empty delta.
    """
    return Piece(event={"type": "status", "data": {"description": notice.text, "done": notice.done}})


def reasoning_form(notice: Notice) -> Piece:
    """Return a quoted line of the reasoning, which clients fold."""
    return Piece(thought=quoted(notice))


def pieces_of(notice: Notice, form: Form) -> list[Piece]:
    """Make the pieces of a notice and its details: one in the text, else one a line, the notice last, which stays in sight."""
    return [form(each) for each in (*(map(Notice, notice.details) if form in BESIDE else ()), notice)]


BESIDE: tuple[Form, ...] = (event_form, comment_form)
"""Forms that show a notice outside the answer's text."""
FORMS: dict[str, tuple[Form, ...]] = {
    "auto": BESIDE,
    "event": (event_form,),
    "reasoning": (reasoning_form,),
    "content": (content_form,),
    "comment": (comment_form,),
    "off": (),
}
"""Forms by the value of `SPILLWAY_STATUS`."""
