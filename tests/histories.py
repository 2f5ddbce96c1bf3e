"""Random histories as clients send them, and the rules that every shortened history must still keep."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from proxy.compaction.ladder import Reduction
from proxy.compaction.policy import PruneLimits
from proxy.core.history.embedded import calls_in, only_results, texts_of
from proxy.core.history.turns import cut_points
from proxy.core.jsontext import dumps
from proxy.core.request import Message
from proxy.emulation.offer import Offer
from proxy.emulation.prompt import as_text

RESULTS = ("tool", "function")


def cost(messages: Sequence[Message]) -> list[float]:
    """Tokens of each message: a quarter of its JSON, and what a template puts around it."""
    return [4.0 + len(dumps(message)) / 4 for message in messages]


def reduction_of(messages: Sequence[Message], budget: float, *, gain: int = 20, protect: int = 50) -> Reduction:
    from proxy.compaction.condensing import head_end

    return Reduction(
        messages=messages, costs=cost(messages), floor=head_end(messages), budget=budget, enough=budget,
        limits=PruneLimits(protect_newest=protect, minimum_gain=gain), cost=cost,
    )  # fmt: skip


def user(text: str, **fields: Any) -> Message:
    return {"role": "user", "content": text, **fields}


def assistant(text: str | None, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def call(number: int, name: str = "read_file", arguments: str = '{"path":"a.py"}') -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(number: int, text: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def function(name: str, description: str = "", required: Sequence[str] = (), **types: str) -> dict[str, Any]:
    """A tool as it is offered; the types of its parameters by name."""
    parameters: dict[str, Any] = {"type": "object", "properties": {field: {"type": of} for field, of in types.items()}}
    parameters |= {"required": [*required]} if required else {}
    about = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **about, "parameters": parameters}}


texts = st.one_of(
    st.text(max_size=30), st.integers(1, 400).map(lambda n: "word " * n), st.integers(1, 60).map(lambda n: "行く川の流れは絶えずして " * n),
    st.just("row | row | row\n" * 40),
)  # fmt: skip


@st.composite
def contents(draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 3)):
        return draw(texts)
    parts: list[Any] = [{"type": "text", "text": draw(texts)}]
    if draw(st.booleans()):
        parts.append({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
    if draw(st.booleans()):
        parts.append({"type": "text", "text": draw(texts), "cache_control": {"type": "ephemeral"}})
    return parts


unknown = st.dictionaries(st.sampled_from(["x_meta", "cache", "id"]), st.integers(), max_size=1)


@st.composite
def batches(draw: st.DrawFn, first: int) -> list[Message]:
    """An assistant message with parallel calls, and all their results."""
    numbers = range(first, first + draw(st.integers(1, 3)))
    said = draw(st.sampled_from([None, "", "Let me look."]))
    results = [{**tool(n, ""), "content": draw(contents()), **draw(unknown)} for n in numbers]
    return [assistant(said, tool_calls=[call(n) for n in numbers], **draw(unknown)), *results]


@st.composite
def histories(draw: st.DrawFn, *, longest: int = 10) -> list[Message]:
    """Turns of user, tool batches and answer, in alternation; the last may be anywhere in its agent loop."""
    messages: list[Message] = []
    if draw(st.integers(0, 5)) == 0:
        messages.append(assistant("How can I help?"))
    number = 0
    turns = draw(st.integers(1, longest))
    for turn in range(turns):
        messages.append({"role": "user", "content": draw(contents()), **draw(unknown)})
        for _ in range(draw(st.integers(0, 2))):
            batch = draw(batches(number))
            number += len(batch)
            messages += batch
        if turn < turns - 1:
            messages.append(assistant(draw(texts), **draw(unknown)))
    return messages


def written(messages: Sequence[Message]) -> list[Message]:
    """The history as a model without tools of its own gets it: calls and results are text."""
    return as_text(messages, Offer({}, "none"))


def half_written(messages: Sequence[Message]) -> list[Message]:
    """Every other turn as text, as if the conversation had gone from model to model."""
    turns = [messages[start:end] for start, end in pairwise(cut_points(messages))]
    return [m for n, turn in enumerate(turns) for m in (written(turn) if n % 2 else turn)]


FORMS: dict[str, Callable[[Sequence[Message]], list[Message]]] = {"native": list, "text": written, "mixed": half_written}


@st.composite
def mixed_histories(draw: st.DrawFn, *, longest: int = 6) -> list[Message]:
    """Turns of both forms; also agent loops in which the user speaks only once, and further messages with results."""
    messages = [user("Do it all.")] if draw(st.booleans()) else draw(histories(longest=longest))
    if len(messages) == 1:
        for step in range(draw(st.integers(1, 8))):
            messages += draw(batches(step * 10))
    turns = [messages[start:end] for start, end in pairwise(cut_points(messages))]
    return [m for turn in turns for m in (written(turn) if draw(st.booleans()) else turn)]


def flaws(messages: Sequence[Message]) -> list[str]:
    """What a chat template or a strict backend would refuse in a history."""
    return [*_batch_flaws(messages), *_alternation_flaws(messages)]


def _batch_flaws(messages: Sequence[Message]) -> list[str]:
    found: list[str] = []
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] in RESULTS:
            if message.get("tool_call_id") not in open_calls:
                found.append(f"{index}: a result without its call")
            open_calls.discard(str(message.get("tool_call_id")))
            continue
        if open_calls:
            found.append(f"{index}: calls without results: {sorted(open_calls)}")
        open_calls = {c["id"] for c in message.get("tool_calls") or ()}
    return found if not open_calls else [*found, "calls at the end without results"]


def _alternation_flaws(messages: Sequence[Message]) -> list[str]:
    """User and assistant in turns, tool batches left out (as in the templates of Mistral and Gemma)."""
    speakers = [m["role"] for m in messages if m["role"] in ("user", "assistant") and not m.get("tool_calls")]
    if "user" not in speakers:
        return ["no user message"]
    return [f"{a} twice" for a, b in pairwise(speakers) if a == b]


def mixed_flaws(messages: Sequence[Message]) -> list[str]:
    """The same for histories in which calls and results may be text; results in a row do not count as turns."""
    found: list[str] = []
    native: list[Message] = []
    unanswered = 0
    for index, message in enumerate(messages):
        if message["role"] == "user" and only_results(message):
            unanswered -= 1
            if unanswered < 0:
                found.append(f"{index}: a written result without its call")
            continue
        if unanswered > 0:
            found.append(f"{index}: {unanswered} written calls before it without results")
        texts = [text for _, text in texts_of(message) if message["role"] == "assistant"]
        unanswered = sum(len(calls_in(text)) for text in texts)
        native += [message] if not unanswered else []
    return [*found, *flaws(native)] if unanswered <= 0 else [*found, "written calls at the end without results"]
