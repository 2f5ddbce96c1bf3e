"""OpenAI's compaction contract, with the openai package, for a model that knows nothing of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.fakes import LlamaCppFake, Reply
from tests.fakes.model import FakeModel, Question
from tests.proxying import Proxy, running_proxy
from tests.sdks import openai_sdk as sdk

MODEL = "fake-model"
WINDOW = 4096
SUMMARY = (
    "The user asked Question 0, Question 1, Question 2, Question 3, Question 4 and Question 5, about word0, word1, word2, "
    "word3, word4 and word5. Answer 0, Answer 1, Answer 2, Answer 3, Answer 4 and Answer 5 said each that so it is."
)
"""What is believed: it has the names of what it stands for."""
both = pytest.mark.parametrize("streamed", [False, True])


def brain(question: Question) -> Reply:
    last = str(question.messages[-1])
    return Reply(text=SUMMARY if "Summarise the conversation" in last else "Noted, and thank you.")


@contextmanager
def talking(*, window: int = WINDOW, **settings: Any) -> Iterator[tuple[LlamaCppFake, Proxy]]:
    fake = LlamaCppFake([FakeModel(MODEL, window=window)], brain=brain)
    with fake, running_proxy(fake, **settings) as proxy:
        yield fake, proxy


def turns(count: int, words: int = 60) -> list[Any]:
    made: list[Any] = [{"role": "developer", "content": "Be brief."}]
    for number in range(count):
        made.append({"role": "user", "content": f"Question {number}: " + f"word{number} " * words})
        made.append({"role": "assistant", "content": f"Answer {number}. " + "so it is " * words})
    return [*made, {"role": "user", "content": "And now?"}]


def ask(client: openai.OpenAI, given: Any, *, streamed: bool, **more: Any) -> tuple[Any, list[Any]]:
    asked: dict[str, Any] = {"model": MODEL, "input": given, "store": False, **more}
    if not streamed:
        return client.responses.create(**asked), []
    events = list(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response, events


def compaction_in(response: Any) -> dict[str, Any]:
    (item,) = (item for item in response.output if item.type == "compaction")
    told: dict[str, Any] = item.model_dump(exclude_none=True)
    return told


def sent(fake: LlamaCppFake) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = fake.chats()[-1].json["messages"]
    return messages


@both
def test_a_threshold_compacts_within_the_request_and_the_answer_goes_on(streamed: bool) -> None:
    manage = [{"type": "compaction", "compact_threshold": 1000}]
    with talking() as (fake, proxy):
        client = sdk(proxy)
        given = turns(6)
        said, events = ask(client, given, streamed=streamed, context_management=manage)
        assert [item.type for item in said.output] == ["compaction", "message"]
        assert said.output_text == "Noted, and thank you."
        if streamed:
            kinds = [event.type for event in events]
            assert kinds.index("response.compaction.compacting") < kinds.index("response.output_item.done")
            compacting = next(event for event in events if event.type == "response.compaction.compacting")
            assert (compacting.item_id, compacting.output_index) == (said.output[0].id, 0)
            done = [event.item.type for event in events if event.type == "response.output_item.done"]
            assert done == ["compaction", "message"]
        kept = compaction_in(said)
        # What comes before it may be left out ...
        short = [kept, said.output[1].model_dump(), {"role": "user", "content": "What do I like?"}]
        ask(client, short, streamed=streamed, context_management=manage)
        pruned = sent(fake)
        assert pruned[0] == {"role": "system", "content": "Be brief."}
        assert SUMMARY in str(pruned)
        assert [message["content"] for message in pruned[-2:]] == ["Noted, and thank you.", "What do I like?"]
        # ... or be sent all the same.
        ask(client, [*given, *short], streamed=streamed, context_management=manage)
        assert sent(fake) == pruned


@both
def test_a_trigger_is_answered_with_a_compaction_alone(streamed: bool) -> None:
    """As Codex asks for it."""
    with talking() as (fake, proxy):
        client = sdk(proxy)
        given = turns(6)
        said, events = ask(client, [*given, {"type": "compaction_trigger"}], streamed=streamed)
        assert [item.type for item in said.output] == ["compaction"]
        assert said.status == "completed"
        assert said.usage.input_tokens > 0
        if streamed:
            assert events[-1].type == "response.completed"
            assert [e.item.type for e in events if e.type == "response.output_item.done"] == ["compaction"]
            assert said.created_at > 0
        asked = len(fake.chats())
        users = [item for item in given if item["role"] == "user"]
        # Codex sends the user's messages again in front of it, and what is new of its own.
        fresh = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "<environment/>"}]
        ask(client, [*fresh, *users, compaction_in(said), {"role": "user", "content": "Go on."}], streamed=streamed)
        assert len(fake.chats()) == asked + 1
        messages = sent(fake)
        assert messages[0]["content"] == "Be kind."
        assert "Be brief." not in str(messages)
        assert str(messages).count("Question 0: word0") <= 1
        assert SUMMARY in str(messages)
        assert "<environment/>" in str(messages)
        assert messages[-1]["content"].endswith("Go on.")


def test_a_compaction_of_a_compaction_stands_for_both() -> None:
    with talking() as (fake, proxy):
        client = sdk(proxy)
        given = turns(5)
        first = client.responses.compact(model=MODEL, input=given)
        more = [*[item.model_dump(exclude_none=True, warnings=False) for item in first.output], *turns(5)[1:]]
        second = client.responses.compact(model=MODEL, input=more)
        users = [item for item in given if item["role"] == "user"]
        again = [*users, compaction_in(second), {"role": "user", "content": "Go on."}]
        ask(client, again, streamed=False)
        messages = sent(fake)
        assert messages[0] == {"role": "system", "content": "Be brief."}
        assert str(messages).count("Question 1: word1") <= 1


def test_the_endpoint_gives_the_users_messages_and_a_compaction() -> None:
    with talking() as (fake, proxy):
        client = sdk(proxy)
        compacted = client.responses.compact(model=MODEL, input=turns(6), instructions="Be rude.")
        assert compacted.object == "response.compaction"
        assert compacted.created_at > 0
        kinds = [item.type for item in compacted.output]
        assert kinds == ["message"] * 7 + ["compaction"]
        assert compacted.usage.output_tokens > 0
        again: Any = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
        ask(client, [*again, {"role": "user", "content": "Go on."}], streamed=False, instructions="Be rude.")
        messages = sent(fake)
        systems = [each["content"] for each in messages if each["role"] == "system"]
        assert systems == ["Be rude.", "Be brief."]
        assert SUMMARY in str(messages)
        named_none = proxy.client.post("/v1/responses/compact", json={"input": "x"})
        assert named_none.status_code == 200


def test_nobody_else_opens_a_compaction_and_foreign_ones_do_no_harm() -> None:
    with talking(api_keys=("one", "two")) as (fake, proxy):
        mine, other = sdk(proxy, "one"), sdk(proxy, "two")
        kept = compaction_in(mine.responses.compact(model=MODEL, input=turns(6)))
        question = {"role": "user", "content": "Go on."}
        ask(mine, [kept, question], streamed=False)
        assert SUMMARY in str(sent(fake))
        changed = kept["encrypted_content"][:-20] + "A" * 20
        for client, seal in ((other, kept["encrypted_content"]), (mine, changed), (mine, "gAAAAAB of another server")):
            ask(client, [{"type": "compaction", "encrypted_content": seal}, question], streamed=False)
            messages = sent(fake)
            assert SUMMARY not in str(messages)
            assert "can't be read here" in str(messages)
            assert messages[-1]["content"].endswith("Go on.")


@both
def test_a_stored_conversation_goes_on_from_its_compaction(streamed: bool) -> None:
    manage = [{"type": "compaction", "compact_threshold": 1000}]
    with talking() as (fake, proxy):
        client = sdk(proxy)
        one, _ = ask(client, turns(6), streamed=streamed, context_management=manage, store=True)
        assert one.output[0].type == "compaction"
        ask(client, "What do I like?", streamed=streamed, previous_response_id=one.id, store=True)
        messages = sent(fake)
        assert messages[0] == {"role": "system", "content": "Be brief."}
        assert SUMMARY in str(messages)
        assert "Answer 0. so it is" not in str(messages)
        assert messages[-1]["content"] == "What do I like?"


@both
@pytest.mark.parametrize("truncation", ["auto", "disabled", None])
def test_a_history_beyond_the_window_is_answered_whatever_is_said_of_truncation(streamed: bool, truncation: str | None) -> None:
    with talking(window=2048) as (fake, proxy):
        said, _ = ask(sdk(proxy), turns(20), streamed=streamed, truncation=truncation)
        assert (said.output_text, said.truncation) == ("Noted, and thank you.", truncation or "disabled")
        assert fake.overflows == 0
