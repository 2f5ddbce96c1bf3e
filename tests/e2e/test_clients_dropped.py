"""Agents whose clients return text and calls only, in front of servers that want all of their answers back.

Wordings: DeepSeek (deepseek-ai/awesome-deepseek-agent#63), Moonshot (QwenLM/qwen-code#3578), Gemini ("Thought signatures"), Groq
and pydantic's (servers that refuse reasoning in messages).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import anthropic
import ollama
import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from typing_extensions import override

from tests.attempts.test_searching import PAST, says, search
from tests.fakes import FakeModel, GenericFake, Question, Recorded, Reply, ToolCall
from tests.fakes.model import Prompt, Refused
from tests.pipeline.test_recalling import WINDOW
from tests.proxying import Proxy, metric, read_stream, running_proxy

STEPS = 5
TASK = "Read the files."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": SCHEMA}}
FOREIGN = [
    {"role": "user", "content": TASK},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c9", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}]},
    {"role": "tool", "tool_call_id": "c9", "content": "text"},
]  # fmt: skip
"""A history of another machine."""


def thought(step: int) -> str:
    return f"Step {step}: file {step} comes next."


def details(step: int) -> list[dict[str, Any]]:
    return [
        {"type": "reasoning.text", "text": thought(step), "signature": f"s{step}", "index": 0},
        {"type": "reasoning.encrypted", "data": "ZW5j", "id": f"r{step}", "index": 1},
    ]


def signature(step: int) -> dict[str, Any]:
    return {"google": {"thought_signature": f"sig-{step}"}}


class Strict(GenericFake):
    """Refuses calls without what came with them, in the words of a service."""

    wants: str = "reasoning_content"
    refusals: int = 0

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        for index, message in enumerate(body["messages"]):
            if (text := self.refusal(message, index)) is not None:
                self.refusals += 1
                raise Refused(400, self.error(400, text))
        return super().parse(body, model)

    def refusal(self, message: dict[str, Any], index: int) -> str | None:
        calls = message.get("tool_calls")
        if self.wants == "nothing":
            if "reasoning_content" in message:
                return f"'messages.{index}' : for 'role:assistant' : property 'reasoning_content' is unsupported"
        elif not calls or not self.wants:
            return None
        elif self.wants == "extra_content":
            if not (calls[0].get("extra_content") or {}).get("google", {}).get("thought_signature"):
                return "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly."
        elif not isinstance(message.get("reasoning_content"), str):
            return (
                "The `reasoning_content` in the thinking mode must be passed back to the API."
                if self.wants == "reasoning_content"
                else f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
            )
        return None


def agent(question: Question) -> Reply:
    """Read a file in each of five steps."""
    step = sum(message["role"] == "tool" for message in question.messages)
    if step >= STEPS:
        return Reply(text="Done.")
    return Reply(reasoning=thought(step), tool_calls=[ToolCall("read", f'{{"path":"f{step}"}}', id=f"c{step}")])


def raw(fields: Callable[[int], tuple[dict[str, Any], dict[str, Any]]]) -> Callable[[Question], Reply]:
    """The same, with fields of the message and of its call that no fake has."""

    def brain(question: Question) -> Reply:
        step = sum(message["role"] == "tool" for message in question.messages)
        if step >= STEPS:
            return Reply(text="Done.")
        of_message, of_call = fields(step)
        call: dict[str, Any] = {"index": 0, "id": f"c{step}", "type": "function", "function": {"name": "read", "arguments": f'{{"path":"f{step}"}}'}, **of_call}  # fmt: skip
        message: dict[str, Any] = {"role": "assistant", "content": None, **of_message, "tool_calls": [call]}
        head = {"id": "1", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        if not question.body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            return Reply(raw=[json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()])  # fmt: skip
        deltas: list[dict[str, Any]] = [{"role": "assistant", name: [each]} for name, value in of_message.items() if isinstance(value, list) for each in value]  # fmt: skip
        deltas.append({name: value for name, value in message.items() if not isinstance(value, list) or name == "tool_calls"})  # fmt: skip
        choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
        chunks = [{**head, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
        return Reply(raw=[*(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"])

    return brain


# -- the loops: each returns what the model said last


def openai_chat(proxy: Proxy, stack: ExitStack, *, stream: bool, keep: bool = False) -> str:
    client = stack.enter_context(openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0))
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        if stream:
            with client.chat.completions.stream(model="m", messages=messages, tools=[TOOL]) as events:  # type: ignore[list-item]
                message: Any = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model="m", messages=messages, tools=[TOOL]).choices[0].message  # type: ignore[list-item]
        if not message.tool_calls:
            return str(message.content)
        calls = [call.model_dump(include={"id": True, "type": True, "function": {"name", "arguments"}}) for call in message.tool_calls]  # fmt: skip
        more = (message.model_extra or {}) if keep else {}
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls, **more})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "text"} for call in calls]


def openai_responses(proxy: Proxy, stack: ExitStack, *, stream: bool, keep: bool = False) -> str:
    client = stack.enter_context(openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0))
    tool: Any = {"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}
    items: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        if stream:
            with client.responses.stream(model="m", input=items, tools=[tool], store=False) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(model="m", input=items, tools=[tool], store=False)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return str(response.output_text)
        items += [item.model_dump(exclude_none=True) for item in response.output if keep and item.type == "reasoning"]
        for call in calls:
            items.append({"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments})  # fmt: skip
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "text"})


def anthropic_messages(proxy: Proxy, stack: ExitStack, *, stream: bool, keep: bool = False) -> str:
    client = stack.enter_context(anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0))
    fields: Any = {"model": "m", "max_tokens": 900, "tools": [{"name": "read", "input_schema": SCHEMA}]}
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        if stream:
            with client.messages.stream(messages=messages, **fields) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **fields)
        blocks = [block for block in message.content if keep or block.type in ("text", "tool_use")]
        calls = [block for block in blocks if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in blocks if block.type == "text")
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in blocks]})
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "text"} for call in calls]
        messages.append({"role": "user", "content": results})


def ollama_chat(proxy: Proxy, stack: ExitStack, *, stream: bool, keep: bool = False) -> str:
    client: Any = stack.enter_context(closing(ollama.Client(host=proxy.url)))
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        answer = client.chat(model="m", messages=messages, tools=[TOOL], stream=stream)
        parts = list(answer) if stream else [answer]
        calls = [call.model_dump() for part in parts for call in part.message.tool_calls or ()]
        text = "".join(part.message.content or "" for part in parts)
        if not calls:
            return text
        more = {"thinking": "".join(part.message.thinking or "" for part in parts)} if keep else {}
        messages.append({"role": "assistant", "content": text, "tool_calls": calls, **more})
        messages += [{"role": "tool", "tool_name": "read", "content": "text"} for _ in calls]


def langchain(proxy: Proxy, stack: ExitStack, *, stream: bool, keep: bool = False) -> str:
    model = ChatOpenAI(model="m", base_url=f"{proxy.url}/v1", api_key=SecretStr("k"), max_retries=0, streaming=stream)
    stack.callback(model.root_client.close)
    bound = model.bind_tools([TOOL])
    messages: list[Any] = [HumanMessage(TASK)]
    while True:
        message = bound.invoke(messages)
        messages.append(message)
        if not message.tool_calls:
            return str(message.content)
        messages += [ToolMessage("text", tool_call_id=call["id"]) for call in message.tool_calls]


def run(client: Callable[..., str], proxy: Proxy, *, stream: bool, **more: bool) -> str:
    """Run a loop with connections that are closed after it; `keep`: its client sends back all that it was given."""
    with ExitStack() as stack:
        return client(proxy, stack, stream=stream, **more)


CLIENTS = (openai_responses, anthropic_messages, ollama_chat, langchain)
SERVERS: dict[str, tuple[str, Callable[[Question], Reply], str, Callable[[int], Any]]] = {
    "deepseek": ("reasoning_content", agent, "reasoning_content", thought),
    "moonshot": ("moonshot", agent, "reasoning_content", thought),
    "gemini": ("extra_content", raw(lambda step: ({}, {"extra_content": signature(step)})), "tool_calls", signature),
    "openrouter": ("", raw(lambda step: ({"reasoning": thought(step), "reasoning_details": details(step)}, {})), "reasoning_details", details),
    "encrypted": ("", raw(lambda step: ({"reasoning_details": details(step)[1:]}, {})), "reasoning_details", lambda step: details(step)[1:]),
    "vllm": ("", raw(lambda step: ({"reasoning": thought(step)}, {})), "reasoning", thought),
}  # fmt: skip
"""What the server wants back, what it says, and the field that the last request has to have at each step."""


@contextmanager
def staged(wants: str, brain: Callable[[Question], Reply], **settings: Any) -> Iterator[tuple[Strict, Proxy]]:
    backend = Strict([FakeModel("m", 65_536)], brain, wants=wants, window_field="context_length")
    with backend, running_proxy(backend, **settings) as proxy:
        yield backend, proxy


def answers(chats: Sequence[Recorded]) -> list[dict[str, Any]]:
    return [message for message in chats[-1].json["messages"] if message["role"] == "assistant"]


def fields(messages: Sequence[dict[str, Any]], name: str) -> list[Any]:
    if name == "tool_calls":
        return [message["tool_calls"][0].get("extra_content") for message in messages]
    return [message.get(name) for message in messages]


@pytest.mark.parametrize(
    ("client", "server", "stream"),
    [
        *((openai_chat, server, stream) for server in SERVERS for stream in (True, False)),
        *((client, "deepseek", at % 2 == 0) for at, client in enumerate(CLIENTS)),
        *((client, "openrouter", at % 2 == 1) for at, client in enumerate(CLIENTS)),
        *((client, "gemini", at % 2 == 0) for at, client in enumerate(CLIENTS)),
    ],
)
@pytest.mark.rows(6)
def test_an_agent_works_on_though_its_client_drops_what_is_wanted(
    client: Callable[..., str], server: str, stream: bool
) -> None:
    wants, brain, name, value = SERVERS[server]
    with staged(wants, brain) as (backend, proxy):
        assert run(client, proxy, stream=stream) == "Done."
        assert fields(answers(backend.chats()), name) == [value(step) for step in range(STEPS)]
        assert len(backend.chats()) == STEPS + 1  # none was refused
        assert sum(metric(proxy, "spillway_restored_messages_total").values()) == sum(range(STEPS + 1))


@pytest.mark.parametrize(
    ("client", "server", "stream", "restore"),
    [
        *((client, server, stream, False) for client in CLIENTS[:2] for server in ("openrouter", "encrypted") for stream in (True, False)),
        *((openai_chat, server, at % 2 == 0, at % 2 == 0) for at, server in enumerate(("openrouter", "vllm"))),
        *((client, "deepseek", at % 2 == 0, at % 2 == 1) for at, client in enumerate(CLIENTS[:3])),
        (anthropic_messages, "openrouter", True, True),
    ],
)  # fmt: skip
@pytest.mark.rows(4)
def test_what_a_client_sends_back_reaches_the_server_in_its_own_form(
    client: Callable[..., str], server: str, stream: bool, restore: bool
) -> None:
    wants, brain, name, value = SERVERS[server]
    with staged(wants, brain, restore=restore) as (backend, proxy):
        assert run(client, proxy, stream=stream, keep=True) == "Done."
        assert fields(answers(backend.chats()), name) == [value(step) for step in range(STEPS)]
        assert len(backend.chats()) == STEPS + 1


@pytest.mark.parametrize(
    ("wants", "name", "value"),
    [
        ("reasoning_content", "reasoning_content", ""),
        ("moonshot", "reasoning_content", ""),
        ("extra_content", "tool_calls", {"google": {"thought_signature": "skip_thought_signature_validator"}}),
    ],
)
def test_what_is_not_known_is_replaced_as_the_service_allows_after_one_refusal(wants: str, name: str, value: Any) -> None:
    with staged(wants, agent) as (backend, proxy):
        for _ in range(2):
            assert proxy.chat({"model": "m", "messages": FOREIGN, "tools": [TOOL]}).status_code == 200
            assert fields(answers(backend.chats()), name) == [value]
        assert len(backend.chats()) == 3


def test_reasoning_that_a_server_refuses_is_left_out_after_one_refusal() -> None:
    with staged("nothing", agent) as (backend, proxy):
        assert run(openai_chat, proxy, stream=True) == "Done."
        assert len(backend.chats()) == STEPS + 2
        assert fields(answers(backend.chats()), "reasoning_content") == [None] * STEPS


@pytest.mark.parametrize(
    ("wants", "reasoning", "expected", "refused"),
    [
        ("", "Search.", "Search.", 0), ("reasoning_content", "Search.", "Search.", 0), ("reasoning_content", "", "", 1),
        ("extra_content", "", None, 1), ("nothing", "Search.", None, 1),
    ],
)  # fmt: skip
def test_a_search_in_an_answer_has_what_the_server_wants(
    wants: str, reasoning: str, expected: str | None, refused: int
) -> None:
    brain = says(Reply(reasoning=reasoning, tool_calls=[search()]))
    known = {"m": {"window": WINDOW, "tools": True}}
    with staged(wants, brain, recall="tool", models=known) as (backend, proxy):
        answer = proxy.chat({"model": "m", "messages": PAST, "stream": True})
        assert read_stream(answer.content).text.startswith("Told: ")
        (made,) = [message for message in answers(backend.chats()) if "tool_calls" in message]
        assert made.get("reasoning_content") == expected
        assert backend.refusals == refused


def test_an_answer_that_is_resumed_has_what_the_server_wants() -> None:
    def brain(question: Question) -> Reply:
        return Reply(text=" ".join(f"w{n}" for n in range(900)), reasoning="Long.")

    backend = Strict([FakeModel("m", 2048)], brain, wants="moonshot", window_field="context_length")
    with backend, running_proxy(backend) as proxy:
        answer = proxy.chat({"model": "m", "messages": FOREIGN, "tools": [TOOL]})
        assert answer.json()["usage"]["spillway"]["attempts"] > 1
        assert backend.refusals == 1
