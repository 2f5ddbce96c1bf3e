"""Every form of status in the other dialects: told in order before an answer, and taken out when it is sent back."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import ResponseStreamEvent

from proxy.core import sse
from proxy.stream.status import FORMS
from tests.fakes import FakeModel, LlamaCppFake, Reply, scripted, summariser
from tests.proxying import running_proxy
from tests.wording import COMPACTED

MODEL = "fake-model"
PATHS = ("/v1/messages", "/v1/responses", "/api/chat")
ASKED = [
    message
    for number in range(12)
    for message in (
        {"role": "user", "content": f"question {number} " + "word " * 60},
        {"role": "assistant", "content": f"answer {number} " + "text " * 60},
    )
] + [{"role": "user", "content": "and now?"}]


# OpenAI's package for npm throws at an event that it has no schema for.
PUBLISHED = {
    get_args(each.model_fields["type"].annotation)[0]
    for union in (ResponseStreamEvent, RawMessageStreamEvent)
    for each in get_args(get_args(union)[0])
}


def request(path: str, said: list[dict[str, Any]]) -> dict[str, Any]:
    field = "input" if path == "/v1/responses" else "messages"
    return {"model": MODEL, "stream": True, field: said, **({"max_tokens": 100} if path == "/v1/messages" else {})}


def events(data: bytes) -> Iterator[dict[str, Any]]:
    for told in map(sse.data_of, sse.frames(data)):
        if told:
            event = json.loads(told)
            assert event["type"] in PUBLISHED
            yield event


def kept(path: str, data: bytes) -> list[dict[str, Any]]:
    """What a client keeps of an answer and sends back; it fails where events come in another order than they must."""
    if path == "/v1/messages":
        blocks: list[dict[str, Any]] = []
        for event in events(data):
            if event["type"] == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
            elif event["type"] == "content_block_delta":
                assert event["index"] == len(blocks) - 1
                kind = blocks[-1]["type"]
                blocks[-1][kind] += event["delta"][kind]
        return [{"role": "assistant", "content": blocks}]
    if path == "/v1/responses":
        all_of_them = list(events(data))
        assert [event["sequence_number"] for event in all_of_them] == list(range(len(all_of_them)))
        output: list[dict[str, Any]] = all_of_them[-1]["response"]["output"]
        return output
    messages = [json.loads(line)["message"] for line in data.splitlines()]
    said = {name: "".join(each.get(name, "") for each in messages) for name in ("content", "thinking")}
    return [{"role": "assistant", **said}]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.rows(6)
def test_a_notice_is_told_in_order_and_never_comes_back(path: str, form: str) -> None:
    brain = summariser(scripted([Reply(text="First said.", reasoning="I think so."), "Second said."]))
    headers = {"x-spillway-status": form}
    with LlamaCppFake([FakeModel(MODEL, window=2048)], brain=brain) as fake, running_proxy(fake) as proxy:
        told = proxy.client.post(path, json=request(path, ASKED), headers=headers)
        assert told.headers["x-spillway-action"] == "compacted"
        first = json.loads(fake.chats()[-1].body)["messages"]
        answer = kept(path, told.content)
        shown = {"content", "reasoning"} & {form}
        assert (COMPACTED in json.dumps(answer)) is bool(shown)
        comments = path != "/api/chat" and form in ("auto", "comment")  # lines of JSON have none
        assert (COMPACTED in told.text) is (comments or bool(shown))
        proxy.client.post(path, json=request(path, [*ASKED, *answer, {"role": "user", "content": "go on"}]))
        second = json.loads(fake.chats()[-1].body)["messages"]
    assert second[: len(first)] == first
    # Where a block held nothing but a notice, the break behind it stays.
    said, asked = second[len(first) :]
    said["content"] = said["content"].removeprefix("\n\n")
    assert said == {"role": "assistant", "content": "First said.", "reasoning_content": "I think so."}
    assert asked == {"role": "user", "content": "go on"}
    assert COMPACTED not in json.dumps(second)
