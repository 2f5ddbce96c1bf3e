"""What a client leaves out of an answer comes back with the history that it belongs to, and with no other."""

from pathlib import Path
from typing import Any

import pytest

from proxy.addons import dropped_fields
from proxy.core.jsontext import loads
from proxy.net.tasks import running
from tests.e2e.test_clients_dropped import TASK, TOOL, Strict, agent, staged, thought
from tests.fakes import FakeModel, Question, Reply, ToolCall, wait_until
from tests.proxying import Proxy, running_proxy
from tests.store.support import RedisServer, redis_server

__all__ = ["redis_server"]

SYSTEM = {"role": "system", "content": "You are an agent."}
CALL = {"id": "c0", "type": "function", "function": {"name": "read", "arguments": '{"path": "f0"}'}}
TURN: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c0", "content": "text"},
]
BEGUN: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": TASK}]


def ask(proxy: Proxy, messages: list[dict[str, Any]], **headers: str) -> Any:
    model = headers.pop("model", "m")
    answer = proxy.chat({"model": model, "messages": messages, "tools": [TOOL]}, **headers)
    assert answer.status_code == 200, answer.text
    return answer


def thoughts(backend: Strict) -> list[str | None]:
    sent = backend.chats()[-1].json["messages"]
    return [message.get("reasoning_content") for message in sent if message["role"] == "assistant"]


def edited(at: int, **fields: Any) -> list[dict[str, Any]]:
    messages = [*BEGUN, *TURN]
    messages[at] = {**messages[at], **fields}
    return messages


OTHER_CALL = {**CALL, "function": {"name": "read", "arguments": '{"path": "f7"}'}}


@pytest.mark.parametrize(
    ("messages", "headers", "expected"),
    [
        pytest.param([*BEGUN, *TURN], {}, thought(0), id="as it was"),
        pytest.param(edited(2, tool_calls=[{**CALL, "id": "other"}]), {}, thought(0), id="ids of the client's own"),
        pytest.param(edited(2, content=" \n"), {}, thought(0), id="white space"),
        pytest.param(edited(0, content="It is noon."), {}, thought(0), id="another system prompt"),
        pytest.param(edited(2, reasoning_content="mine"), {}, "mine", id="the client's own reasoning"),
        pytest.param(edited(2, tool_calls=[OTHER_CALL]), {}, None, id="another call"),
        pytest.param(edited(2, content="I read it."), {}, None, id="another text"),
        pytest.param(edited(1, content="Write."), {}, None, id="another task"),
        pytest.param([*BEGUN, *TURN], {"authorization": "Bearer other"}, None, id="another key"),
        pytest.param([*BEGUN, *TURN], {"model": "n"}, None, id="another model"),
    ],
)
def test_it_comes_back_where_it_belongs(messages: list[dict[str, Any]], headers: dict[str, str], expected: str | None) -> None:
    models = [FakeModel("m", 65_536), FakeModel("n", 65_536)]
    with Strict(models, agent, wants="", window_field="context_length") as backend, running_proxy(backend) as proxy:
        ask(proxy, BEGUN, authorization="Bearer one")
        answer = ask(proxy, messages, **{"authorization": "Bearer one", **headers})
        assert thoughts(backend) == [expected]
        assert answer.headers.get("x-spillway-restored") == ("1" if expected == thought(0) else None)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_it_is_known_after_a_restart_and_forgotten_when_the_conversation_is_deleted(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: RedisServer | None = request.getfixturevalue("redis_server") if kind == "redis" else None
    store = f"sqlite:///{tmp_path}/s.sqlite3" if server is None else server.url
    name = {"session_id": "one"}
    with staged("", agent, store=store) as (_, proxy):
        ask(proxy, BEGUN, **name)
        wait_until(lambda: all(task.get_name() != "dropped-fields" for task in running()))
    with staged("", agent, store=store) as (backend, proxy):
        ask(proxy, [*BEGUN, *TURN], **name)
        assert thoughts(backend) == [thought(0)]
        (conversation,) = proxy.client.get("/spillway/conversations").json()["conversations"]
        assert proxy.client.delete(f"/spillway/conversations/{conversation['id']}").status_code < 300
        ask(proxy, [*BEGUN, *TURN], **name)
        assert thoughts(backend) == [None]
    kept = [path.read_bytes() for path in tmp_path.iterdir()]
    if server is not None:
        with server.client() as client:
            kept = [client.dump(key) for key in client.scan_iter()]
    assert thought(0).encode() not in b"".join(kept)


def test_it_is_seen_which_messages_were_completed() -> None:
    with staged("", agent) as (_, proxy):
        ask(proxy, BEGUN)
        answer = ask(proxy, [*BEGUN, *TURN])
        path = f"/spillway/requests/{answer.headers['x-request-id']}"
        assert proxy.client.get(path).json()["restored"] == 1
        rows = proxy.client.get(f"{path}/diff").json()["rows"]
        assert [row["what"] for row in rows] == ["kept", "kept", "restored", "kept"]


def test_one_setting_turns_it_off() -> None:
    with staged("", agent, restore=False) as (backend, proxy):
        ask(proxy, BEGUN)
        answer = ask(proxy, [*BEGUN, *TURN])
        assert backend.chats()[-1].body == answer.request.content


def test_thoughts_between_tags_come_back_in_front_of_the_text() -> None:
    def brain(question: Question) -> Reply:
        return Reply(text="<think>\nAddition.\n</think>\n\nFour.")

    with staged("", brain) as (backend, proxy):
        ask(proxy, BEGUN)
        ask(proxy, [*BEGUN, {"role": "assistant", "content": "Four."}, {"role": "user", "content": "And then?"}])
        assert backend.chats()[-1].json["messages"][2]["content"] == "<think>\nAddition.\n</think>\n\nFour."


def test_of_a_long_conversation_the_newest_answers_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped_fields, "MOST_ANSWERS", 3)
    with staged("", agent) as (backend, proxy):
        messages = [*BEGUN]
        for _ in range(5):
            message = ask(proxy, messages).json()["choices"][0]["message"]
            messages += [{"role": "assistant", "content": None, "tool_calls": message["tool_calls"]}]
            messages += [{"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "text"}]
        ask(proxy, messages)
        assert thoughts(backend) == [None, None, *map(thought, (2, 3, 4))]


@pytest.mark.parametrize("wants", ["reasoning_content", "extra_content"])
def test_histories_that_were_shortened_have_what_the_server_demands(wants: str) -> None:
    def worker(question: Question) -> Reply:
        step = sum(message["role"] != "tool" for message in question.messages)
        return Reply(reasoning=f"{thought(step)} " * 8, tool_calls=[ToolCall("read", f'{{"path":"f{step}"}}')])

    backend = Strict([FakeModel("m", 4096)], worker, wants=wants, window_field="context_length")
    with backend, running_proxy(backend, strategy="mask") as proxy:
        messages, kinds = [*BEGUN], set[str]()
        for step in range(18):
            answer = ask(proxy, messages)
            kinds.add(answer.headers["x-spillway-action"])
            message = loads(answer.content)["choices"][0]["message"]
            messages += [{"role": "assistant", "content": None, "tool_calls": message["tool_calls"]}]
            text = f"Line {step} of the file. " * 20
            messages += [{"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}]
            if step % 6 == 5:
                messages += [{"role": "assistant", "content": "I go on."}, {"role": "user", "content": "Go on."}]
        assert kinds & {"pruned", "compacted"}
        assert backend.refusals <= 1
