"""What users of clients reported, in the wire form of their report, through every door that it concerns.

A row names the public thread. Rows of `REFUSALS` have what a backend says to a prompt that is too long for it, in the thread's own
words; rows of `REPORTS` a conversation, and what must be in the prompt that is sent for it.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.compaction.shorten import HINT
from proxy.core.jsontext import dumps, loads, omit
from proxy.core.request import Message, text_of
from tests.dialects.asking import PATHS, question, read
from tests.fakes import FAKES, FakeModel, Question, Reply, asks_summary
from tests.histories import assistant, tool, user
from tests.proxying import running_proxy
from tests.rawbackend import SSE, Call, RawBackend, answering, raw_backend

pytestmark = pytest.mark.slow
CHAT, RESPONSES, MESSAGES, OLLAMA = PATHS
LONG = [
    each
    for n in range(12)
    for each in (user(f"Question {n}: " + f"tell me about harbour {n} and its cranes. " * 12), assistant("It is old. " * 60))
]
WORDS = "request exceeds the available context size. try increasing the context size or enable context shift"
KEEP = "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input"
ANTHROPIC = (
    "input length and `max_tokens` exceed context limit: 2758 + 200 > 2048, decrease input length or `max_tokens` and try again"
)


def refused(error: Any, **beside: Any) -> bytes:
    return answering({"error": error, **beside}, "400 Bad Request")


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


USAGE = {"prompt_tokens": 3000, "completion_tokens": 0, "total_tokens": 3000}
NOTHING = SSE + chunk({"role": "assistant"}) + chunk({}, "stop") + b"data: " + dumps({"choices": [], "usage": USAGE})
ANSWER = SSE + chunk({"role": "assistant", "content": "Harbour 0."}) + chunk({}, "stop") + b"data: [DONE]\n\n"
REFUSALS: dict[str, bytes] = {
    "lmstudio-ai/lmstudio-bug-tracker#2339: an empty stream": NOTHING + b"\n\ndata: [DONE]\n\n",
    "lmstudio-ai/lmstudio-bug-tracker#2205: an event": SSE + b"event: error\ndata: " + dumps({"error": {"message": KEEP}}) + b"\n\n",
    "oobabooga/textgen#7257: status 200": answering({"error": {"code": 400, "message": f"the {WORDS}", "type": "exceed_context_size_error", "n_prompt_tokens": 3429, "n_ctx": 2048}}),
    "containers/ramalama#1914: a field of its own": SSE + b"error: " + dumps({"code": 400, "message": f"the {WORDS}"}) + b"\n\n",
    "NousResearch/hermes-agent#92211: at least": refused({"message": "This model's maximum context length is 2048 tokens. However, you requested 200 output tokens and your prompt contains at least 1849 input tokens, for a total of at least 2049 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=1849)"}),
    "NousResearch/hermes-agent#23767": refused({"message": "Prompt too long: 3578 tokens exceeds max context window of 2048 tokens"}),
    "NousResearch/hermes-agent#16649: in the stream": SSE + chunk({"role": "assistant"}) + b'data: {"error":{"code":500,"message":"Context size has been exceeded."}}\n\n',
    "Alishahryar1/free-claude-code#105": refused({"message": "The input (3060 tokens) is longer than the model's context length (2048 tokens)."}),
    "RooCodeInc/Roo-Code#11998": refused({"message": "This endpoint's maximum context length is 2048 tokens. However, you requested about 3493 tokens (3095 of text input, 198 of tool input, 200 in the output). Please reduce the length of either one, or use the context-compression plugin to compress your prompt automatically.", "code": 400}),
    "aaif-goose/goose#3635: JSON in JSON": answering({"error_code": "BAD_REQUEST", "message": dumps({"external_model_error": {"type": "error", "error": {"type": "invalid_request_error", "message": ANTHROPIC}}}).decode()}, "400 Bad Request"),
    "continuedev/continue#6080": refused({"type": "invalid_request_error", "message": ANTHROPIC}, type="error"),
    "openai/codex#4116: in the stream": SSE + b'data: {"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again."}}\n\n',
    "can1357/oh-my-pi#3752": refused({"code": 400, "message": "request (2471 tokens) exceeds the available context size (2304 tokens), try increasing it", "type": "exceed_context_size_error"}),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("thread", REFUSALS)
@pytest.mark.rows(len(REFUSALS))
def test_a_prompt_refused_in_these_words_is_shortened_and_answered(thread: str, path: str) -> None:
    def script(_: RawBackend, call: Call) -> None:
        if not call.path.endswith("/chat/completions"):
            call.send(answering({}, "404 Not Found"))
            return
        size = sum(len(text_of(each)) for each in call.json["messages"])
        call.send(REFUSALS[thread] if size > 5000 else ANSWER)

    messages = [*LONG, user("Which harbour did I ask about first?")]
    with raw_backend(script) as backend, running_proxy(backend.setting) as proxy:
        answer = proxy.client.post(path, json=question(path, stream=True, messages=messages))
        seen = read(path, answer.content, stream=True)
        assert (answer.status_code, seen.text, seen.error) == (200, "Harbour 0.", None)
        assert messages[-1]["content"] in text_of(backend.chats()[-1].json["messages"][-1])


def called(number: int, name: str, /, **arguments: Any) -> Message:
    function = {"name": name, "arguments": dumps(arguments).decode()}
    return assistant(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def as_sent(path: str, messages: list[Message]) -> list[dict[str, Any]]:
    """Write a conversation as clients of a dialect do."""
    sent: list[dict[str, Any]] = []
    for each in messages:
        calls = [(call["id"], call["function"]) for call in each.get("tool_calls", ())]
        wanted, text = each.get("tool_call_id"), each["content"]
        if path == RESPONSES:
            made = [{"type": "function_call", "call_id": id_, **function} for id_, function in calls]
            sent += made or ([{"type": "function_call_output", "call_id": wanted, "output": text}] if wanted else [each])
        elif path == MESSAGES:
            blocks = [{"type": "tool_use", "id": id_, "name": f["name"], "input": loads(f["arguments"])} for id_, f in calls]
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": wanted, "content": text}]}
            sent.append(result if wanted else {**each, "content": blocks or text} if calls else each)
            sent[-1].pop("tool_calls", None)
        elif path == OLLAMA:
            functions = [{"function": {**f, "arguments": loads(f["arguments"])}} for _, f in calls]
            sent.append({"role": each["role"], "content": text or "", **({"tool_calls": functions} if calls else {})})
        else:
            sent.append(each)
    return sent


@dataclass
class Report:
    """A conversation, and what is to become of it."""

    messages: list[Message]
    prompt: tuple[str, ...] = ()
    """Texts that the prompt holds."""
    says: tuple[Reply, ...] = (Reply(text="Fine."),)
    """What the model says to one request after the other; the last over and over."""
    window: int = 4096
    kind: str = "llamacpp"
    paths: tuple[str, ...] = PATHS
    fields: dict[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    """Fields that the forwarded body lacks."""
    call: str = ""
    """Tool that the client is to call."""


TOOLS = ("read_file", "insert_edit_into_file", "grep")
LEAK = "Let me read it.\n<tool_call> <function=read_file> <parameter=path> /a/b.md </parameter> </function> </tool_call>"
FUNCTIONS = "\n".join(f"{n}: def fn_{n}(value): return value + {n}  # of the harbour and its cranes" for n in range(1500))
TOTAL = "def closing_total(rows): return sum(r.net for r in rows) * VAT_2019"
WEIGHTS = "{" + ",".join(f'"w{n}":{n * 0.37:.4f}' for n in range(60_000)) + "}"
USED = "[Used tools: Tool: find_slots, Input: {{}}, Result: {}] There is room at nine."
SLOTS = dumps([{"staff": f"S{n}", "slot": f"{n}:00"} for n in range(40)]).decode()
REPORTS: dict[str, Report] = {
    "ollama/ollama#18107: the user's words outlast a result": Report(
        [user("Run git status."), called(1, "grep", q="x"), tool(1, "\n".join(f" M src/part{n}/module{n}.py" for n in range(600)))],
        ("Run git status.", HINT), kind="ollama",
    ),
    "zed-industries/zed#63237: a result of one line": Report(
        [user("Find it."), called(1, "grep", q="x"), tool(1, WEIGHTS), assistant("It is there."), user("And now?")],
        ("Find it.", HINT, "And now?"), window=16_384,
    ),
    "anomalyco/opencode#11286: a file above the window": Report(
        [user("What does closing_total do in file.py?"), called(1, "read_file", path="file.py"), tool(1, f"{FUNCTIONS}\n{TOTAL}\n{FUNCTIONS}")],
        (TOTAL, HINT), window=8192,
    ),
    "n8n-io/n8n#34125: a result without its call": Report(
        [tool(7, "free: 9:00"), assistant("At nine."), user("Book it.")], ("free: 9:00", "whose call is not in this conversation"),
    ),
    "n8n-io/n8n#23819: results in the answers": Report(
        [user("Never book Mondays."), *[m for n in range(12) for m in (assistant(USED.format(SLOTS)), user(f"And day {n}?"))]],
        ("Never book Mondays.", "And day 11?"), paths=(CHAT, OLLAMA),
    ),
    "arbs-io/github-copilot-llm-gateway#86: thoughts alone": Report(
        [user("Do the next step.")], says=(Reply(reasoning="I should think of it."), Reply(text="Fine.")), kind="vllm",
    ),
    "ollama/ollama-vscode#12: a call as text": Report(
        [user("Go on.")], says=(Reply(text='{"name": "insert_edit_into_file", "arguments": {"path": "a.py"}}'),), call="insert_edit_into_file",
    ),
    "langchain4j/langchain4j#4786: a call in tags": Report([user("Go on.")], says=(Reply(text=LEAK),), call="read_file"),
    "zed-industries/zed#29667: bounds and tools that are none": Report(
        [user("Hello."), user("Name this conversation.")], ("Hello.",), paths=(CHAT,),
        fields={"max_tokens": -1, "stop": [], "tools": []}, lacks=("tools",),
    ),
    "SillyTavern/SillyTavern#2379: a nudge behind the answer": Report(
        [*LONG, user("Go on, Aqua."), assistant("She looks"), {"role": "system", "content": "[Continue your last message.]"}],
        ("She looks", "[Continue your last message.]"), paths=(CHAT, OLLAMA),
    ),
    "CherryHQ/cherry-studio#9309: an answer as input": Report(
        [user("See?"), {"role": "assistant", "content": [{"type": "input_text", "text": "I see."}]}, user("Which?")], ("I see.",), paths=(RESPONSES,),
    ),
    "home-assistant/core#147150: options of its own": Report(
        [{"role": "system", "content": "Devices: lamp 1."}, user("Turn on lamp 1.")], ("lamp 1",), kind="ollama", paths=(OLLAMA,),
        fields={"options": {"num_ctx": 4096}, "keep_alive": "-1s", "think": False},
    ),
}  # fmt: skip


@pytest.mark.rows(len(REPORTS))
@pytest.mark.parametrize(("thread", "path"), [(name, path) for name, each in REPORTS.items() for path in each.paths])
def test_a_reported_conversation_is_answered(thread: str, path: str) -> None:
    report, left = REPORTS[thread], [*REPORTS[thread].says]

    def brain(asked: Question) -> Reply:
        if asks_summary(asked):
            return Reply(text="They spoke of harbours and cranes, and of what is to be done next.")
        return left.pop(0) if len(left) > 1 else left[0]

    fields = offered(path) | report.fields
    with FAKES[report.kind]([FakeModel("m", report.window)], brain) as fake, running_proxy(fake) as proxy:
        body = question(path, stream=False, messages=as_sent(path, report.messages), **fields)
        answer = proxy.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert (f'"name":"{report.call}"' if report.call else "Fine.") in answer.text
        sent = fake.chats()[-1].json
        shown = "\n".join(map(text_of, sent["messages"]))
        assert [text for text in report.prompt if text not in shown] == []
        assert {name: sent[name] for name in report.fields if name in sent} == omit(report.fields, *report.lacks)
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])


def offered(path: str) -> dict[str, Any]:
    """The tools, as clients of a dialect offer them."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    functions = [{"name": name, "description": "A tool.", "parameters": schema} for name in TOOLS]
    if path == MESSAGES:
        return {"tools": [{"name": each["name"], "input_schema": schema} for each in functions]}
    flat = path == RESPONSES
    return {"tools": [{"type": "function", **each} if flat else {"type": "function", "function": each} for each in functions]}
