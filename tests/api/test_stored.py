"""Responses that are kept: with the openai package, and as raw requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.core.settings import BackendSetting
from tests.fakes import GenericFake, LlamaCppFake, Reply, ToolCall, scripted
from tests.proxying import Proxy, running_proxy
from tests.sdks import openai_sdk as sdk

MODEL = "fake-model"
KEYS = ("one", "two")
both = pytest.mark.parametrize("streamed", [False, True])


@contextmanager
def talking(*replies: Any, **settings: Any) -> Iterator[tuple[LlamaCppFake, Proxy]]:
    with LlamaCppFake(brain=scripted(list(replies))) as fake, running_proxy(fake, **settings) as proxy:
        yield fake, proxy


def ask(client: openai.OpenAI, given: Any, *, streamed: bool = False, **more: Any) -> Any:
    asked = {"model": MODEL, "input": given, **more}
    if not streamed:
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        return stream.get_final_response()


def said(fake: LlamaCppFake, at: int = -1) -> list[tuple[str, str]]:
    """What the model was sent, by whom."""
    return [(each["role"], each["content"]) for each in fake.chats()[at].json["messages"]]


@both
def test_a_response_goes_on_from_the_one_before(streamed: bool) -> None:
    with talking("Blue.", "Red.", "Green.", "Grey.") as (fake, proxy):
        client = sdk(proxy)
        one = ask(client, "sky?", streamed=streamed, instructions="Be brief.")
        two = ask(client, "rose?", streamed=streamed, previous_response_id=one.id)
        three = ask(client, "grass?", streamed=streamed, previous_response_id=two.id, instructions="Be rude.")
        assert three.previous_response_id == two.id
        assert (three.output_text, three.store) == ("Green.", True)
        # Instructions are those of the newest request alone.
        assert said(fake, 1)[0] == ("user", "sky?")
        assert said(fake) == [
            ("system", "Be rude."),
            *(("user", "sky?"), ("assistant", "Blue."), ("user", "rose?"), ("assistant", "Red.")),
            ("user", "grass?"),
        ]
        # From any of them, more than once.
        ask(client, "sea?", streamed=streamed, previous_response_id=one.id)
        assert said(fake) == [("user", "sky?"), ("assistant", "Blue."), ("user", "sea?")]


@both
def test_calls_and_their_results_go_on_from_one_another(streamed: bool) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    reply = Reply(reasoning="Hm.", tool_calls=[ToolCall("weather", '{"city": "Graz"}')])
    with talking(reply, "Sunny.") as (fake, proxy):
        client = sdk(proxy)
        asked = ask(client, "weather?", streamed=streamed, tools=[tool])
        (call,) = (item for item in asked.output if item.type == "function_call")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        told = ask(client, [result], streamed=streamed, tools=[tool], previous_response_id=asked.id)
        assert told.output_text == "Sunny."
        roles = [message["role"] for message in fake.chats()[-1].json["messages"]]
        assert roles == ["user", "assistant", "tool"]
        assert fake.invalid_histories == []


@both
def test_a_response_is_given_again_and_deleted(streamed: bool) -> None:
    with talking("Blue.", "Red.") as (_, proxy):
        client = sdk(proxy)
        with_its_conversation = ask(client, "rose?", streamed=streamed)
        (row,) = proxy.client.get("/spillway/conversations").json()["conversations"]
        assert proxy.client.delete(f"/spillway/conversations/{row['id']}").status_code == 200
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(with_its_conversation.id)
        made = ask(client, "sky?", streamed=streamed, metadata={"a": "b"})
        again = client.responses.retrieve(made.id)
        assert again.model_dump(exclude={"output"}) == made.model_dump(exclude={"output"}) | {"object": "response"}
        assert again.output_text == "Red."
        with pytest.raises(openai.BadRequestError, match="close its connection"):
            client.responses.cancel(made.id)
        client.responses.delete(made.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                gone(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, "rose?", previous_response_id=made.id)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        told = proxy.client.get(f"/v1/responses/{made.id}?stream=true")
        assert told.status_code == 404


@both
def test_nothing_of_one_key_is_seen_with_another(streamed: bool) -> None:
    with talking("Blue.", "Red.", "Green.", api_keys=KEYS) as (fake, proxy):
        mine, other = (sdk(proxy, key) for key in KEYS)
        made = ask(mine, "sky?", streamed=streamed)
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.delete(made.id)
        with pytest.raises(openai.BadRequestError):
            ask(other, "rose?", streamed=streamed, previous_response_id=made.id)
        with pytest.raises(openai.BadRequestError):
            ask(other, [{"type": "item_reference", "id": made.output[0].id}], streamed=streamed)
        assert len(fake.chats()) == 1
        assert mine.responses.retrieve(made.id).output_text == "Blue."


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/s.db"])
def test_one_key_displaces_nothing_of_another(store: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"api_keys": KEYS, "store": store.format(tmp_path), "store_bytes": 20_000}
    with talking(*["Blue."] * 61, **settings) as (_, proxy):
        one, other = (sdk(proxy, key) for key in KEYS)
        made = ask(one, "sky?")
        many = [ask(other, f"rose {number}?") for number in range(60)]
        assert one.responses.retrieve(made.id).output_text == "Blue."
        assert other.responses.retrieve(many[-1].id).output_text == "Blue."
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(many[0].id)


@both
def test_items_are_referred_to_by_their_ids(streamed: bool) -> None:
    """As Vercel's AI SDK does with every item of earlier answers."""
    with talking("Blue.", "Red.") as (fake, proxy):
        client = sdk(proxy)
        made = ask(client, "sky?", streamed=streamed)
        given = [
            {"role": "user", "content": "sky?"}, {"type": "item_reference", "id": made.output[0].id},
            {"id": "rs_from_elsewhere", "type": "item_reference"}, {"role": "user", "content": "rose?"},
        ]  # fmt: skip
        ask(client, given, streamed=streamed)
        assert said(fake) == [("user", "sky?"), ("assistant", "Blue."), ("user", "rose?")]
        with pytest.raises(openai.BadRequestError, match="msg_unknown_0"):
            ask(client, [{"type": "item_reference", "id": "msg_unknown_0"}], streamed=streamed)


@both
def test_what_is_not_to_be_stored_is_not(streamed: bool, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.sqlite3"
    with talking("Blue.", "Red.", store=store) as (fake, proxy):
        client = sdk(proxy)
        made = ask(client, "a secret sky?", streamed=streamed, store=False)
        assert made.store is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError):
            ask(client, "rose?", previous_response_id=made.id)
        assert len(fake.chats()) == 1
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret sky" not in held
    assert made.id.encode() not in held


def test_responses_outlive_a_restart_and_go_with_a_purge(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.sqlite3"
    with talking("Blue.", store=store) as (_, proxy):
        made = ask(sdk(proxy), "sky?")
    with talking("Red.", store=store) as (fake, proxy):
        ask(sdk(proxy), "rose?", previous_response_id=made.id)
        assert said(fake)[0] == ("user", "sky?")


@both
def test_a_conversation_that_openai_keeps_is_refused_with_what_to_do(streamed: bool) -> None:
    with talking("Blue.") as (fake, proxy):
        for conversation in ("conv_1", {"id": "conv_1"}):
            with pytest.raises(openai.BadRequestError, match="use `previous_response_id`") as refused:
                ask(sdk(proxy), "sky?", streamed=streamed, conversation=conversation)
            assert refused.value.param == "conversation"
        assert fake.chats() == []


@both
def test_a_prompt_is_counted_with_what_it_goes_on_from(streamed: bool) -> None:
    with talking("Blue.", "Red.") as (_, proxy):
        client = sdk(proxy)
        one = ask(client, "sky " * 200)
        alone = client.responses.input_tokens.count(model=MODEL, input="rose?").input_tokens
        both_ = client.responses.input_tokens.count(model=MODEL, input="rose?", previous_response_id=one.id)
        assert both_.input_tokens > alone + 150


@both
def test_without_its_store_answers_go_on_and_what_is_stored_is_told_to_be_out_of_reach(streamed: bool) -> None:
    """Nothing listens there."""
    with talking("Blue.", store="redis://127.0.0.1:9/0") as (_, proxy):
        client = sdk(proxy)
        made = ask(client, "sky?", streamed=streamed)
        assert made.output_text == "Blue."
        for call in (
            lambda: client.responses.retrieve("resp_other"),
            lambda: ask(client, "rose?", streamed=streamed, previous_response_id="resp_other"),
            lambda: client.responses.delete(made.id),
        ):
            with pytest.raises(openai.InternalServerError) as refused:
                call()
            assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")


def test_what_is_not_kept_here_is_asked_of_a_backend_that_is_not_managed() -> None:
    with GenericFake() as fake:
        setting = BackendSetting(url=fake.url, name="b", managed=False)
        with running_proxy(setting) as proxy:
            proxy.client.get("/v1/responses/resp_theirs")
            proxy.client.delete("/v1/conversations/conv_theirs")  # passed, like all that is not managed
        assert {("GET", "/v1/responses/resp_theirs"), ("DELETE", "/v1/conversations/conv_theirs")} <= {
            (request.method, request.path) for request in fake.requests
        }
    with GenericFake() as fake, running_proxy(fake) as proxy:
        assert proxy.client.get("/v1/responses/resp_theirs").status_code == 404
        proxy.client.get("/v1/responses/resp_theirs", headers={"x-spillway-bypass": "1"})
        assert len([each for each in fake.requests if each.path == "/v1/responses/resp_theirs"]) == 1


def test_a_long_chain_is_bounded() -> None:
    with talking(*["Yes."] * 30, max_body=60_000) as (_, proxy):
        client = sdk(proxy)
        name = ask(client, "a" * 40_000).id
        name = ask(client, "b" * 40_000, previous_response_id=name).id
        with pytest.raises(openai.APIStatusError, match="Begin a new conversation") as refused:
            ask(client, "c", previous_response_id=name)
        assert refused.value.status_code == 413
