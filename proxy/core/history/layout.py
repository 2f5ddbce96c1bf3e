"""The order in which a prompt is sent: head, tail word for word, summary, the newest turn.

A backend reads a prompt from the first token that it does not have. Where it closes gaps (`proxy.addons.cache_gaps`), a compaction
costs only its summary if that follows the tail; in front of the tail, everything after it is read again. So there a new summary is
sent in front of the user message that is the newest then, and keeps that place until the next compaction. It is a message of its own:
a task such as "translate this" must not find it in front of its data. In the middle of a tool loop, where templates have no room for
another message, it is in front of the newest result's text (Qwen2.5-Coder-1.5B named 10 of 10 facts from there, as from the front). Where
roles would not alternate, it stays in front of the tail.

Elsewhere it stays there in any case: both orders have the same tokens read, and weak models take what comes last for the newest. In
front of the tail, Qwen2.5-Coder-1.5B gave 10 of 10 values that the tail had changed, after it 9; and SmolLM2, once its own answers had
degenerated, repeated a summary in front of the question in 6 of 29 of them.

Models find facts in any place. They follow rules after the tail only at the end of the system message (Qwen2.5-Coder-1.5B: 15 of 15
answers, 1 to 5 elsewhere), so rules go there. All of the prompt is read again then, once, when a compaction covers another rule.
Where tools are offered that would be their descriptions too, so the summary stays in front of the tail together with its rules.
"""

import re
from collections.abc import Sequence
from itertools import chain, pairwise

from proxy.core.history.marks import BRIDGE, CLOSE, EARLIER, HEADING, NOTED, OPEN, READ, is_summary
from proxy.core.history.sentences import sentences
from proxy.core.history.turns import bridge_needed, in_front, is_user, joined
from proxy.core.request import Message, text_of

_RULES = re.compile(rf"\n{re.escape(HEADING)}((?:\n- [^\n]*)+)(?=\n{re.escape(CLOSE)})")
_MARKED = frozenset(("", "<", "[", "`"))
"""First characters of answers whose first sentence may open something that it does not close, such as thinking or code."""
_FILLER = 200
"""Most characters of the sentence that replaces the answer to the task."""


def laid_out(
    system: Sequence[Message],
    history: Sequence[Message],
    place: int,
    began: str,
    *,
    step: bool = False,
    tools: bool = False,
) -> list[Message]:
    """Return the messages with the summary in front of the message at `place`, or where it is if roles would not alternate then.

    If the summary was the answer to the task, `began` takes its place (see `beginning_of_answer`). `step`: whether that message is a
    result, even if recalled passages are in front of it; `tools`: whether the request offers any.
    """
    at = next((at for at, message in enumerate(history[:place]) if is_summary(message)), place)
    begins = at + 1 + any(each.get("content") in (BRIDGE, NOTED) for each in history[at + 1 : at + 2])
    if not begins < place < len(history) or not (step or is_user(history[place])):
        return [*system, *history]
    rules = "".join(_RULES.findall(history[at]["content"]))
    if rules and tools:
        return [*system, *history]
    *earlier, newest = _RULES.sub("", history[at]["content"]).split(f"{OPEN}\n")[1:]
    if step:
        earlier, newest = [], f"{OPEN}\n".join((*earlier, newest))
    head, tail = list(history[:at]), [*chain(*map(_noted, earlier)), *history[begins:place]]
    if began and bridge_needed(head[-1] if head else None, tail) == "assistant":
        head.append({"role": "assistant", "content": began})
    seams = [(head[-1] if head else None, tail), (_noted("")[-1] if earlier else None, history[begins:])]
    if any(bridge_needed(*seam) for seam in seams[: 1 + len(earlier)]):
        return [*system, *history]
    front = [*_with_rules(system, rules), *head, *tail]
    if step:
        return [*front, in_front(history[place], f"{OPEN}\n{EARLIER}\n{newest}"), *history[place + 1 :]]
    return [*front, *_noted(newest), *history[place:]]


def _noted(block: str) -> list[Message]:
    """Return a block as a message, followed by the acknowledgement of the model."""
    block = f"{OPEN}\n{EARLIER}\n{block}".rstrip("\n")
    return [{"role": "user", "content": block}, {"role": "assistant", "content": READ}]


def beginning_of_answer(history: Sequence[Message], sent: Sequence[Message]) -> str:
    """Return the first sentence of the answer that was `sent` where the history has its first summary; empty if there is none.

    To the backend's cache, an answer of which only that is left is a deletion too. It is kept with the checkpoint: a client that
    leaves out its oldest messages would have another answer there with each turn.
    """
    at = next((at for at, message in enumerate(history) if is_summary(message)), 0)
    answers = (each for asked, each in pairwise(sent) if at and asked == history[at - 1])
    return begun(next(answers, {}))


def begun(answer: Message) -> str:
    """Return the first sentence of an answer with the white space in front of it, which was read as well; empty if there is none."""
    text = text_of(answer) if answer.get("role") == "assistant" else ""
    if text.lstrip()[:1] in _MARKED:
        return ""
    first = next(sentences(text, longest=_FILLER), "")
    return text[: text.index(first) + len(first)]


def _with_rules(system: Sequence[Message], rules: str) -> list[Message]:
    """Return the system messages with the user's rules at their end, as a list under its heading."""
    if not rules:
        return [*system]
    last = system[-1] if system else {"role": "system", "content": ""}
    return [*system[:-1], joined([last, {**last, "content": f"{HEADING}{rules}"}])]
