"""llama.cpp's own ways."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.fakes import FakeModel, Gate, LlamaCppFake, Reply, await_until, qa, scripted, wait_until, walk
from tests.fakes.base import CHAT
from tests.fakes.reading import chunks, deltas, finishes, frames, text, usage
from tests.fakes.talking import ask, assistant, body, fetch, get, post, user


@pytest.fixture
def fake() -> Iterator[LlamaCppFake]:
    with LlamaCppFake([FakeModel("alias", 500, 4000)]) as running:
        yield running


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_does_not_fit(fake: LlamaCppFake, stream: bool) -> None:
    response = ask(fake, user("word " * 600), stream=stream)
    size = fake.count(body(user("word " * 600)))
    assert response.status_code == 400
    assert response.json()["error"] == {
        "code": 400,
        "message": f"request ({size} tokens) exceeds the available context size (500 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": size,
        "n_ctx": 500,
    }


def test_the_last_token_of_the_window_is_for_the_answer(fake: LlamaCppFake) -> None:
    rest = 500 - fake.count(body(user("")))
    assert ask(fake, user("!" * rest)).status_code == 400
    response = ask(fake, user("!" * (rest - 1))).json()
    assert response["usage"]["total_tokens"] == 500
    assert response["choices"][0]["finish_reason"] == "length"


def test_a_window_that_fills_ends_the_answer(fake: LlamaCppFake) -> None:
    events = chunks(ask(fake, stream=True, stream_options={"include_usage": True}).content)
    told = usage(events)
    assert told is not None
    assert told["total_tokens"] == 500
    assert finishes(events) == ["length"]


def test_with_context_shift_it_goes_on() -> None:
    with LlamaCppFake(window=100, context_shift=True) as fake:
        assert ask(fake, max_tokens=300).json()["usage"]["completion_tokens"] == 300


def test_shape_of_a_stream(fake: LlamaCppFake) -> None:
    response = ask(fake, stream=True, max_tokens=2, model="whatever")
    events = chunks(response.content)
    assert deltas(events) == [{"role": "assistant", "content": None}, {"content": "w"}, {"content": "1"}, {}]
    assert {event["model"] for event in events} == {"alias"}
    assert events[-1]["timings"]["predicted_n"] == 2
    assert "timings" not in events[1]
    assert response.headers["x-accel-buffering"] == "no"
    assert frames(response.content)[-1] == b"data: [DONE]"


def test_running_counts_and_progress(fake: LlamaCppFake) -> None:
    options = {"include_usage": True}
    response = ask(
        fake, stream=True, max_tokens=3, timings_per_token=True, return_progress=True, stream_options=options
    )
    events = chunks(response.content)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert (progress[0]["processed"], progress[-1]["processed"]) == (0, progress[0]["total"])
    counts = [event["timings"]["predicted_n"] for event in events if "timings" in event]
    assert counts == [0] * len(progress) + [1, 2, 3, 3]
    last = events[-1]
    assert last["choices"] == []
    assert last["timings"]["cache_n"] + last["timings"]["prompt_n"] == last["usage"]["prompt_tokens"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


PARTIAL = (user("count"), assistant("w1 w2"))


def test_a_trailing_answer_is_continued(fake: LlamaCppFake) -> None:
    events = chunks(ask(fake, *PARTIAL, stream=True, max_tokens=4).content)
    assert text(events) == " w3 w4"
    whole = ask(fake, *PARTIAL, max_tokens=4).json()
    assert whole["choices"][0]["message"]["content"] == "w1 w2 w3 w4"
    assert whole["usage"]["completion_tokens"] == 4


def test_flags_continue_too(fake: LlamaCppFake) -> None:
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=4, **flags).content)) == " w3 w4"


def test_continuing_cannot_be_switched_off_in_a_request(fake: LlamaCppFake) -> None:
    flags = {"continue_final_message": False, "add_generation_prompt": True}
    assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2, **flags).content)) == " w3"


def test_continuing_can_be_switched_off_at_the_start() -> None:
    with LlamaCppFake(prefill_assistant=False) as fake:
        assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2).content)) == "w3"
        flags = {"continue_final_message": True, "add_generation_prompt": False}
        assert text(chunks(ask(fake, *PARTIAL, stream=True, max_tokens=2, **flags).content)) == " w3"


@pytest.mark.parametrize("explicit", [True, False])
def test_both_flags_are_refused(fake: LlamaCppFake, explicit: bool) -> None:
    flags = {"continue_final_message": True} | ({"add_generation_prompt": True} if explicit else {})
    assert error(ask(fake, *PARTIAL, **flags)) == (
        400,
        "Cannot set both add_generation_prompt and continue_final_message to true.",
    )


def test_what_cannot_be_continued(fake: LlamaCppFake) -> None:
    status, message = error(ask(fake, *PARTIAL, assistant("w3")))
    assert (status, message) == (400, "Cannot have 2 or more assistant messages at the end of the list.")
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    status, message = error(ask(fake, user("go"), {**assistant(""), "tool_calls": [call]}))
    assert (status, message) == (400, "Cannot continue an assistant message that contains tool calls.")


def test_reasoning_is_continued_and_repeated(fake: LlamaCppFake) -> None:
    fake.brain = lambda question: (
        Reply(text="so", reasoning=" be it") if question.prefix_reasoning else Reply()
    )
    partial = {**assistant(""), "reasoning_content": "It may"}
    message = ask(fake, user("go"), partial).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("It may be it", "so")
    assert (
        text(chunks(ask(fake, user("go"), partial, stream=True).content), field="reasoning_content")
        == " be it"
    )


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({"max_tokens": 0}, 1), ({"n_predict": 3}, 3), ({"max_tokens": 9, "max_completion_tokens": 2}, 2)],
)
def test_limits(fake: LlamaCppFake, fields: dict[str, int], tokens: int) -> None:
    assert ask(fake, **fields).json()["usage"]["completion_tokens"] == tokens


def test_minus_one_is_no_limit(fake: LlamaCppFake) -> None:
    assert ask(fake, max_tokens=-1).json()["usage"]["total_tokens"] == 500
    assert ask(fake, max_tokens=-2).status_code == 400


def test_what_it_refuses(fake: LlamaCppFake) -> None:
    assert error(ask(fake, n=2))[0] == 400
    assert error(ask(fake, {"content": "no role"}))[0] == 500
    assert error(ask(fake, {"role": "user"})) == (400, "All non-assistant messages must contain 'content'")
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert error(ask(fake, image))[0] == 500
    bad = fetch("POST", fake.url + CHAT, content=b"{bad")
    assert "parse_error" in error(bad)[1]
    assert fetch("GET", fake.url + "/nope").json()["error"]["type"] == "not_found_error"
    assert fetch("POST", fake.url + CHAT, json={"messages": 5}).status_code == 400


def test_what_it_tells_of_itself(fake: LlamaCppFake) -> None:
    listed = get(fake, "/v1/models")["data"][0]
    assert (listed["id"], listed["owned_by"]) == ("alias", "llamacpp")
    assert (listed["meta"]["n_ctx"], listed["meta"]["n_ctx_train"]) == (500, 4000)
    props = get(fake, "/props")
    assert props["default_generation_settings"]["n_ctx"] == 500
    assert (props["total_slots"], props["chat_template_caps"]["supports_tools"]) == (1, True)
    assert get(fake, "/slots") == [{"id": 0, "n_ctx": 500, "speculative": False, "is_processing": False}]
    assert get(fake, "/health") == {"status": "ok"}


def test_exact_counts(fake: LlamaCppFake) -> None:
    request = body(user("hello there"))
    counted = post(fake, f"{CHAT}/input_tokens", request)
    assert counted == {"input_tokens": fake.count(request), "object": "response.input_tokens"}
    assert post(fake, "/v1/messages/count_tokens", request) == {"input_tokens": fake.count(request)}
    prompt = post(fake, "/apply-template", request)["prompt"]
    tokens = post(fake, "/tokenize", {"content": prompt})["tokens"]
    assert len(tokens) == fake.count(request)
    assert post(fake, "/detokenize", {"tokens": tokens}) == {"content": prompt}
    pieces = post(fake, "/tokenize", {"content": "hello", "with_pieces": True})["tokens"]
    assert [one["piece"] for one in pieces] == ["hell", "o"]


def test_loading() -> None:
    with LlamaCppFake(loading=True) as fake:
        for response in (fetch("GET", fake.url + "/health"), ask(fake)):
            assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
        fake.loading = False
        assert get(fake, "/health") == {"status": "ok"}


def test_an_error_in_mid_stream_ends_without_done() -> None:
    with LlamaCppFake(brain=scripted([Reply(text="one two", error="oh", after=1)])) as fake:
        content = ask(fake, stream=True).content
        assert chunks(content)[-1] == {"error": {"code": 500, "message": "oh", "type": "server_error"}}
        assert b"[DONE]" not in content


def test_the_connection_is_closed_after_a_stream_only() -> None:
    with LlamaCppFake() as fake, httpx.Client(verify=False, base_url=fake.url) as client:
        stream = client.post(CHAT, json=body(stream=True, max_tokens=1))
        assert "connection" not in stream.headers
        # Unannounced, so who asks again while it is being closed may find it so.
        wait_until(lambda: fake.server.connected == 0)
        assert client.post(CHAT, json=body(max_tokens=1)).status_code == 200


def test_a_conversation_id_keeps_the_answer_going() -> None:
    with LlamaCppFake(gate=Gate(at=2), window=200) as fake:
        headers = {"x-conversation-id": "one"}
        with httpx.Client(verify=False) as client, pytest.raises(httpx.ReadTimeout):
            client.post(
                fake.url + CHAT, json=body(stream=True), headers=headers, timeout=httpx.Timeout(5, read=0.1)
            )
        wait_until(lambda: fake.active == 1)
        assert fake.gate is not None
        fake.gate.open()
        wait_until(lambda: fake.active == 0)
        assert fake.cancelled == 0


def test_requests_queue_for_slots() -> None:
    with LlamaCppFake(gate=Gate(at=0), queue=True, slots=1) as fake:
        assert fake.gate is not None
        threads = [threading.Thread(target=ask, args=(fake,), kwargs={"max_tokens": 2}) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: fake.active == 2 and fake.gate is not None and fake.gate.reached)
        assert fake.gate.waiting == 1
        fake.gate.open()
        for thread in threads:
            thread.join()
        assert fake.served == 2


@pytest.mark.anyio
async def test_a_shared_pool_breaks_all_answers_when_it_is_full() -> None:
    gate = Gate(at=10)
    with LlamaCppFake(window=200, unified=True, slots=4, gate=gate) as fake:
        client = httpx.AsyncClient(verify=False, base_url=fake.url, timeout=20)
        async with client, client.stream("POST", CHAT, json=body(stream=True)) as first:
            await await_until(lambda: gate.reached)
            request = body(user("!" * 150), stream=True)
            async with client.stream("POST", CHAT, json=request) as second:
                gate.open()
                contents = [await first.aread(), await second.aread()]
        for content in contents:
            assert b"Context size has been exceeded." in content
            assert b"[DONE]" not in content


def test_router_mode() -> None:
    models = [FakeModel("one", 500, loaded=False), FakeModel("two", 900, loaded=True)]
    with LlamaCppFake(models, walk(last=1), router=True) as fake:
        listed = {entry["id"]: entry for entry in get(fake, "/v1/models")["data"]}
        assert listed["one"]["status"]["value"] == "unloaded"
        assert "meta" not in listed["one"]
        assert listed["two"]["meta"]["n_ctx"] == 900
        assert get(fake, "/props")["role"] == "router"
        quiet = fetch("GET", fake.url + "/props?model=one&autoload=false")
        assert error(quiet) == (400, "model is not loaded")
        assert fake.loads == []
        assert get(fake, "/props?model=one")["default_generation_settings"]["n_ctx"] == 500
        assert fake.loads == ["one"]
        assert error(ask(fake, model="three")) == (400, "model 'three' not found")
        assert ask(fake, model="two").json()["model"] == "two"
        post(fake, "/models/unload", {"model": "two"})
        fake.autoload = False
        assert error(ask(fake, model="two")) == (400, "model is not loaded")


def test_facts_reach_the_model_as_they_were_sent() -> None:
    with LlamaCppFake(brain=qa()) as fake:
        told = (user("remember: the code of bay is K-7"), assistant("Noted."))
        answer = ask(fake, *told, user("what is the code of bay?")).json()
        assert answer["choices"][0]["message"]["content"] == "The code of bay is K-7."
