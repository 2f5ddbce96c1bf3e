"""Long sessions of programs through the whole stack: what they opened with stays, results reach the model, little is said."""

from typing import Any

from proxy.core.request import text_of
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.fakes.brains import asks_summary
from tests.histories import function
from tests.proxying import running_proxy

WINDOW = 8192
FILE = "I have added this file.\n\nsrc/shop.py\n```\n" + "".join(f"def f{n}(x): return x*{n}\n" for n in range(110)) + "```\n"
MAP = "Summaries of other files:\n" + "".join(f"lib/mod{n}.py:\n│def run{n}(x)\n" for n in range(70))
OPENING = [
    {"role": "system", "content": "Act as an expert developer. " * 20},
    {"role": "user", "content": "Make the greeting in hello.py friendlier"},
    {"role": "assistant", "content": "hello.py:\n```\n" + "print('Hey there!')\n" * 20 + "```"},
    {"role": "user", "content": "I switched to a new code base. Please don't consider the above files any longer."},
    {"role": "assistant", "content": "Ok."},
    {"role": "user", "content": MAP},
    {"role": "assistant", "content": "Ok."},
    {"role": "user", "content": FILE},
    {"role": "assistant", "content": "Ok, I will edit this file."},
]
TOOLS = [function("bash", "Run it.")]


def brain(question: Question) -> Reply:
    if asks_summary(question):
        return Reply(text="The user gave prices of goods, turn by turn; each time the assistant told what it made of them.")
    return Reply(text="Done as you said.")


def prompts(fake: LlamaCppFake) -> list[dict[str, Any]]:
    bodies = [request.json for request in fake.chats()]
    return [body for body in bodies if "Summarise the conversation" not in text_of(body["messages"][-1])]


def test_the_file_that_a_session_is_about_outlasts_its_turns_and_an_example_does_not() -> None:
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        messages = list(OPENING)
        actions = []
        for turn in range(8):
            prices = " ".join(f"Good{turn}.{n} costs {n} coins." for n in range(110))
            messages.append({"role": "user", "content": f"Turn {turn}: {prices}"})
            answer = proxy.chat({"model": "m", "messages": messages})
            assert answer.status_code == 200
            actions.append(answer.headers["x-spillway-action"])
            messages.append({"role": "assistant", "content": "Done as you said."})
            sent = prompts(fake)[-1]
            assert FILE in [text_of(message) for message in sent["messages"]]
            if actions[-1] == "compacted":
                assert 0.4 < fake.count(sent) / WINDOW < 0.65
                assert OPENING[1] not in sent["messages"]
        assert "compacted" in actions
        assert actions.count("compacted") <= 4
        assert (fake.overflows, fake.invalid_histories) == (0, [])


def test_a_large_result_fills_what_the_window_has_for_it() -> None:
    text = "\n".join(f"line {n} of the file that was asked for" for n in range(1400))
    calls = [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        answer = proxy.chat({"model": "m", "messages": messages, "tools": TOOLS})
        assert answer.status_code == 200
        (sent,) = prompts(fake)
        assert fake.count({**sent, "messages": messages}) > 1.4 * WINDOW
        assert 0.5 * WINDOW < fake.count(sent) <= 0.65 * WINDOW
        shown = text_of(sent["messages"][-1])
        assert shown.startswith("line 0 of")
        assert "line 1399 of the file that was asked for" in shown[-120:]  # and where to get the rest
