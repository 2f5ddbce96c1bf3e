"""Ends of answers that a backend gets wrong, through the whole proxy: a proper end for the client, or an error."""

import pytest

from tests.attempts.test_resuming import joined_calls
from tests.attempts.test_stream_corners import FULL, GO, MODELS, full
from tests.attempts.test_tools import ASK, CALL, PARIS, WEATHER
from tests.attempts.test_whole import choice, whole
from tests.proxying import running_proxy
from tests.rawbackend import SSE, answering, plain, replying
from tests.stream.support import DONE, ending, one_answer, opening, read, said

pytestmark = pytest.mark.slow

TEXT = b"".join(said(word) for word in ("It", " was", " a", " bright", " day."))
TORN = b'data: {"choices":[{"delta":{"conte'

PROPER = {
    "an end mark alone": TEXT + DONE, "no end mark": TEXT + ending(),
    "a torn frame behind the finish reason": TEXT + ending() + TORN, "a torn end mark": TEXT + ending() + b"data: [DON",
}  # fmt: skip
BROKEN = {
    "neither": TEXT, "a torn frame": TEXT + TORN, "nothing but an end mark": DONE, "nothing but a role": opening(),
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("how", [*PROPER, *BROKEN])
def test_it_is_the_same_while_resuming(how: str, stream: bool) -> None:
    """A whole answer keeps what there is of it, and its finish reason says that there was to be more."""
    first_word = b'" It"' if stream else b'" w299 It"'  # the last word of a whole answer may be half of one
    rest = {**PROPER, **BROKEN}[how].replace(b'"one"', b'"two"').replace(b'"It"', first_word)
    with (
        replying(full(stream=stream), SSE + opening(name="two") + rest) as backend,
        running_proxy(backend.setting, models=MODELS) as proxy,
    ):
        answer = proxy.chat({"model": "m", "stream": stream, "messages": GO})
        text = f"{FULL} It was a bright day."
        if not stream:
            (only,) = answer.json()["choices"]
            assert only["finish_reason"] == ("stop" if how in PROPER else "length")
            assert text.startswith(so_far := only["message"]["content"])
            assert so_far == text or how in BROKEN
            return
        client = read(answer.content)
        if how in PROPER:
            one_answer(client, text)
        else:
            assert text.startswith(client.text)
            assert client.done == 1
            assert len(client.errors) + len(client.finishes) == 1


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        (said(CALL) + DONE, "", "tool_calls"), (said("Look.\n" + CALL) + DONE, "Look.\n", "tool_calls"),
        (said(CALL) + ending(), "", "tool_calls"), (said(CALL) + ending() + TORN, "", "tool_calls"),
        (said("It is fine.") + DONE, "It is fine.", "stop"), (said("It is fine.") + ending(), "It is fine.", "stop"),
        (said(CALL), None, None), (said("It is"), None, None),
    ],
)  # fmt: skip
def test_it_is_the_same_where_tools_are_emulated(body: bytes, text: str | None, finish: str | None) -> None:
    models = {"m": {"window": 4096, "tools": False}}
    answer = SSE + opening() + body
    with replying(answer) as backend, running_proxy(backend.setting, models=models) as proxy:
        seen = proxy.chat({"model": "m", "stream": True, "messages": ASK, "tools": [WEATHER]}).content
        client = read(seen)
        assert (client.done, len(client.errors)) == (1, 0 if finish else 1)
        if finish is not None:
            assert (client.text, client.finishes) == (text, [finish])
            assert joined_calls(seen) == ([PARIS] if finish == "tool_calls" else [])


def test_a_whole_answer_without_a_finish_reason_has_one(stream: bool) -> None:
    message = {"role": "assistant", "content": "Hi."}
    answer = answering(whole(choice(message, None)))
    with replying(answer) as backend, running_proxy(backend.setting, models=MODELS) as proxy:
        seen = proxy.chat({"model": "m", "stream": stream, "messages": GO})
        if stream:
            one_answer(read(seen.content), "Hi.")
        else:
            assert seen.json()["choices"] == [choice(message, "stop")]


def test_half_a_whole_answer_is_an_error() -> None:
    """Its length is right, and it is no JSON: something on the way has cut it."""
    body = b'{"id": "one", "choices": [{"index": 0, "message": {"role": "assistant", "content": "It was a br'
    with replying(plain(body)) as backend, running_proxy(backend.setting, models=MODELS) as proxy:
        seen = proxy.chat({"model": "m", "messages": GO})
        assert (seen.status_code, seen.json()["error"]["code"]) == (502, "upstream_unavailable")
