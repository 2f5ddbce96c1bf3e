"""Refusals as backends word them (`payloads/refusals.json`), and what is done about each."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.errors import EXAMINED, SentRequest
from proxy.backends.overflow import POOL_FULL, Overflow, affordable, credible, recognise
from proxy.backends.profile import Continuation
from proxy.backends.refusals import MOST_SHORTENED, FeatureRefusal, Refusal, Remedy, Spent, refused_feature, remedy
from tests.backends.driver import payloads

RECORDED: dict[str, list[dict[str, Any]]] = payloads("refusals")
LLAMACPP, OPENAI = (
    next(row["body"] for row in RECORDED["overflows"] if row["name"] == name) for name in ("llama.cpp", "OpenAI")
)
NO_TOOLS = {"error": "registry.ollama.ai/library/gemma3:4b does not support tools"}


def encoded(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def rows(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [pytest.param(row, id=row["name"]) for row in RECORDED[kind]])


@rows("overflows")
def test_every_wording_of_an_overflow_is_recognised_with_its_numbers(row: dict[str, Any]) -> None:
    found = recognise(row["status"], encoded(row["body"]))
    assert found is not None
    assert (found.window, found.prompt_tokens) == (row["window"], row["prompt"])
    assert found.quoted is (row["status"] == 402), "what a key may spend is no window"


@rows("no_overflows")
def test_other_answers_are_not_mistaken_for_an_overflow(row: dict[str, Any]) -> None:
    assert recognise(row["status"], encoded(row["body"])) is None


@rows("tools")
def test_a_refusal_of_tools_is_recognised_in_a_string_of_another_error_too(row: dict[str, Any]) -> None:
    assert refused_feature(row["status"], encoded(row["body"]), ["tools"]) == FeatureRefusal("tools", row["origin"])
    for wrapped in ({"error": json.dumps(row["body"])}, {"error": {"metadata": {"raw": row["body"]}}}):
        assert refused_feature(400, encoded(wrapped), ["tools"]) == FeatureRefusal("tools", row["origin"])


@rows("no_tools")
def test_other_errors_about_tools_are_not_taken_for_one(row: dict[str, Any]) -> None:
    assert refused_feature(row["status"], encoded(row["body"]), ["tools"]) is None


@pytest.mark.parametrize(
    ("message", "origin"),
    [
        ("No endpoints found that support the provided 'tool_choice' value.", "OpenRouter"),
        ("Thinking mode does not support this tool_choice", "DeepSeek"),
    ],
)
def test_a_refused_tool_choice_says_nothing_of_the_tools(message: str, origin: str) -> None:
    assert refused_feature(404, encoded({"error": message}), ["tools"]) == FeatureRefusal("tools", origin, quoted=True)


@rows("streams")
def test_a_refusal_of_streams_is_recognised(row: dict[str, Any]) -> None:
    expected = FeatureRefusal("streams", row["origin"], quoted=row.get("quoted", False))
    assert refused_feature(row["status"], encoded(row["body"]), ["streams"]) == expected


@rows("no_streams")
def test_other_errors_about_streams_are_not_taken_for_one(row: dict[str, Any]) -> None:
    assert refused_feature(row["status"], encoded(row["body"]), ["streams"]) is None


@pytest.mark.parametrize("status", [401, 402, 403, 429])
def test_statuses_that_mean_something_else(status: int) -> None:
    assert (recognise(status, encoded(LLAMACPP)) is None) is (status != 402), "what a key may spend bounds prompts too"
    assert refused_feature(status, encoded(NO_TOOLS), ["tools"]) is None


@pytest.mark.parametrize(
    "content",
    [
        {"detail": [{"loc": ["body", "model"], "msg": "Field required", "input": {"messages": ["too many tokens"]}}]},
        {"error": {"message": "[{'type': 'missing', 'input': {'messages': ['context_length_exceeded']}}]"}},
        "loc: body, 'input': {'messages': ['context_length_exceeded']}",
    ],
)
def test_a_repeated_request_that_talks_of_overflows_is_not_one(content: object) -> None:
    assert recognise(422, encoded(content)) is None


def test_words_of_the_conversation_hold_for_its_request_at_most_and_those_of_a_parameter_never() -> None:
    overflow, tools = LLAMACPP["error"]["message"], NO_TOOLS["error"]
    talk, parameters = (SentRequest(encoded({name: [f"Why? {overflow} {tools}"]})) for name in ("messages", "tools"))
    told = {"error": overflow}
    assert recognise(400, encoded(told), talk) == Overflow(8192, 12013, quoted=True)
    assert recognise(400, encoded(told), parameters) is None
    assert refused_feature(400, encoded(NO_TOOLS), ["tools"], parameters) is None
    assert refused_feature(400, encoded(NO_TOOLS), ["tools"], talk) == FeatureRefusal("tools", "Ollama", quoted=True)
    unnumbered = SentRequest(encoded({"messages": "context_length_exceeded"}))
    assert recognise(400, encoded({"error": "context_length_exceeded"}), unnumbered) is None


@pytest.mark.parametrize(
    ("window", "bound", "told", "bounded"),
    [
        (1096, 3000, "", True), (98304, 32768, "", True), (4096, 1000, "", False), (1096, 0, "", False),
        (1096, 3000, " (1642 + 3000 requested)", False),
    ],
)  # fmt: skip
def test_a_figure_may_be_the_window_less_the_bound_of_the_answer(window: int, bound: int, told: str, bounded: bool) -> None:
    """As vLLM 0.15 has it (vllm-project/vllm#33418); a round figure that does not become rounder with the bound is none."""
    said = f"maximum context length is {window} tokens. However, your request has 999999 input tokens{told}."
    found = recognise(400, encoded({"error": said}), SentRequest(encoded({"max_tokens": bound})))
    assert found is not None
    assert (found.window, found.bounded) == (window, bounded)


def test_what_can_be_paid_for_is_read_of_an_error_about_money_alone() -> None:
    said = {"error": "This request requires more credits, or fewer max_tokens. You can only afford 8,461."}
    assert (affordable(402, encoded(said)), affordable(400, encoded(said))) == (8461, None)
    assert affordable(402, encoded({"error": {"message": "Insufficient credits", "code": 402}})) is None
    bound = {
        "error": "max_tokens limit exceeded: 100000 > 9577. To increase, create a key with a higher limit"
    }  # cline/cline#940
    assert affordable(402, encoded(bound)) == 9577


def test_the_answer_bound_of_a_request_is_its_largest() -> None:
    assert SentRequest(b'{"max_tokens": 5, "n_predict": 9, "max_completion_tokens": null}').answer_bound == 9
    assert SentRequest(b"[").answer_bound == SentRequest(b"{}").answer_bound == 0


@pytest.mark.parametrize(
    ("window", "needed", "loaded", "held", "expected"),
    [
        *((None, 1, 9, 9, "as it is"), (4096, 5000, None, 0, "as it is"), (4096, 4000, None, 0, None)),
        *((4096, 5000, 8192, 0, None), (4096, 5000, 4096, 4095, "as it is"), (4096, 5000, None, 4097, "quoted")),
        (255, 5000, None, 0, "quoted"),
    ],
)
def test_an_overflow_is_believed_as_far_as_its_request_could_prove_it(
    window: int | None, needed: int, loaded: int | None, held: int, expected: str | None
) -> None:
    found = credible(Overflow(window, None), needed=needed, loaded=loaded, held=held)
    assert found == (None if expected is None else Overflow(window, None, quoted=expected == "quoted"))


def test_escaped_characters_are_decoded_first() -> None:
    """Go writes `>` as an escape inside JSON."""
    found = recognise(400, b'{"error":"Cannot truncate prompt with n_keep (5000) \\u003e= n_ctx (4096)"}')
    assert found == Overflow(4096, 5000)


# -- hostile bodies


@pytest.mark.parametrize(
    "seed", [b"context ", b"too many token ", b"request (1 token", b'{"', b"[" * 9, b"input ", b"1,", b"9 > "]
)
def test_hostile_bodies_take_no_time(seed: bytes) -> None:
    body = b'{"error": "context ' + seed * (4 * EXAMINED // len(seed))
    began = time.process_time()
    recognise(400, body)
    assert time.process_time() - began < 0.5


def test_only_the_beginning_is_read_and_what_was_cut_there_as_text() -> None:
    assert recognise(400, b" " * EXAMINED + encoded(LLAMACPP)) is None
    cut = {"error": {"message": OPENAI["error"]["message"] + "x" * EXAMINED}}
    assert recognise(400, encoded(cut)) == Overflow(8192, 8545)


@given(status=st.integers(0, 599), body=st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_answered(status: int, body: bytes) -> None:
    recognise(status, b"context " + body)
    assert refused_feature(status, b'{"error": "tool"' + body, ["tools"]) is None


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.floats()
        | st.integers()
        | st.sampled_from(["context", "{}", "error", OPENAI["error"]["message"]]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["error", "choices", "message", "code", "input"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_answered(content: object) -> None:
    for status in (200, 400, 500):
        found = recognise(status, json.dumps({"error": content, "hint": "context"}).encode())
        assert found is None or found.window in {None, 8192}


def test_deep_nesting_is_survived() -> None:
    deep: object = "context_length_exceeded"
    for _ in range(100):
        deep = {"error": [deep]}
    assert recognise(400, encoded(deep)) is None
    assert recognise(400, b'{"context":' + b"[" * 30000) is None


# -- remedies

TOO_LONG, UNTOLD = Overflow(4096, 5000), Overflow(1096, 1642, bounded=True)
TOOLLESS, UNSTREAMED, ONE_SYSTEM = (FeatureRefusal(name, "one") for name in ("tools", "streams", "one_system"))
refusals = st.builds(
    Refusal, overflow=st.sampled_from([None, TOO_LONG, UNTOLD, POOL_FULL]), affordable=st.sampled_from([None, 900]),
    feature=st.sampled_from([None, TOOLLESS, UNSTREAMED, ONE_SYSTEM]), roomy=st.booleans(),
    way=st.sampled_from([None, *Continuation]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(overflow=TOO_LONG), Remedy.SHORTEN),
        (Refusal(overflow=TOO_LONG, roomy=True), Remedy.SHORTEN),
        (Refusal(overflow=POOL_FULL, roomy=True), Remedy.WAIT),
        (Refusal(overflow=POOL_FULL, roomy=False), Remedy.SHORTEN),
        (Refusal(overflow=UNTOLD), Remedy.BOUND),
        (Refusal(affordable=900), Remedy.BOUND),
        (Refusal(feature=TOOLLESS), Remedy.EMULATE),
        (Refusal(way=Continuation.FLAGS), Remedy.OTHER_WAY),
        (Refusal(feature=UNSTREAMED), Remedy.UNSTREAM),
        (Refusal(feature=ONE_SYSTEM), Remedy.REPAIR),
        (Refusal(way=Continuation.FLAGS, feature=UNSTREAMED), Remedy.UNSTREAM),
        (Refusal(overflow=TOO_LONG, way=Continuation.QUOTE), Remedy.SHORTEN),
        (Refusal(), Remedy.GIVE_UP),
    ],
)
def test_each_refusal_has_its_remedy(refusal: Refusal, expected: Remedy) -> None:
    assert remedy(refusal, Spent()) is expected


@pytest.mark.no_cover
@given(st.lists(refusals, min_size=60, max_size=120))
def test_whatever_a_backend_refuses_a_request_is_sent_a_bounded_number_of_times(said: list[Refusal]) -> None:
    spent = Spent()
    done = [remedy(refusal, spent) for refusal in said]
    assert done.count(Remedy.SHORTEN) <= MOST_SHORTENED
    assert done.count(Remedy.WAIT) <= 1
    assert done.count(Remedy.BOUND) <= 2
    assert done.count(Remedy.EMULATE) <= 1
    assert done.count(Remedy.UNSTREAM) <= 1
    assert done.count(Remedy.REPAIR) <= 1
    assert done.count(Remedy.OTHER_WAY) <= len(Continuation)
    spent.answered()
    assert remedy(Refusal(overflow=TOO_LONG), spent) is Remedy.SHORTEN, "the model spoke: it may be shortened anew"
    assert remedy(Refusal(overflow=POOL_FULL, roomy=True), spent) is Remedy.WAIT
