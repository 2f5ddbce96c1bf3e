"""What becomes of `tools` where the model, or the server for it, has none."""

from __future__ import annotations

import pytest

from proxy.backends import backend_of
from proxy.backends.refusals import ToolRefusal, refuses_tools
from tests.backends.driver import play
from tests.fakes import FAKES, FakeModel, LlamaCppFake, OpenRouterFake, Question, Reply, VllmFake
from tests.fakes.talking import ask, body, get

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PLAIN = FakeModel("fake-model", tools=False)


@pytest.mark.parametrize(
    ("kind", "status", "origin"), [("ollama", 400, "Ollama"), ("openrouter", 404, "OpenRouter")]
)
@pytest.mark.parametrize("stream", [True, False])
def test_these_kinds_refuse_them(kind: str, status: int, origin: str, *, stream: bool) -> None:
    with FAKES[kind]([PLAIN]) as fake:
        refused = ask(fake, stream=stream, tools=[TOOL])
        assert refused.status_code == status
        assert refuses_tools(status, refused.content) == ToolRefusal(origin)
        assert ask(fake, stream=stream, tools=[]).status_code == 200


def test_vllm_refuses_them_without_a_parser() -> None:
    with VllmFake(tool_parser=False) as fake:
        refused = ask(fake, tools=[TOOL])
        assert refuses_tools(refused.status_code, refused.content) == ToolRefusal("vLLM")


def test_llamacpp_refuses_them_without_jinja() -> None:
    with LlamaCppFake(jinja=False) as fake:
        refused = ask(fake, tools=[TOOL])
        assert refuses_tools(refused.status_code, refused.content) == ToolRefusal("llama.cpp")


@pytest.mark.parametrize(("kind", "shown"), [("llamacpp", 0), ("lmstudio", 1), ("vllm", 1), ("generic", 1)])
def test_other_kinds_accept_them_and_show_them_or_not(kind: str, shown: int) -> None:
    """llama.cpp drops them where the chat template has none; LM Studio puts them in a format of its own."""
    seen: list[Question] = []

    def brain(question: Question) -> Reply:
        seen.append(question)
        return Reply(text="hello")

    with FAKES[kind]([PLAIN], brain) as fake:
        assert ask(fake, tools=[TOOL]).status_code == 200
        assert len(seen[0].tools) == shown
        more = fake.count(body(tools=[TOOL])) - fake.count(body())
        assert (more > 0) is (shown > 0)


def test_openrouters_providers_may_refuse_a_choice() -> None:
    with OpenRouterFake(forced_choice=False) as fake:
        named = {"type": "function", "function": {"name": "look"}}
        for choice in ("required", named):
            refused = ask(fake, tools=[TOOL], tool_choice=choice)
            assert refuses_tools(refused.status_code, refused.content) == ToolRefusal(
                "OpenRouter", choice_only=True
            )
        assert ask(fake, tools=[TOOL], tool_choice="auto").status_code == 200
        assert ask(fake, tools=[TOOL]).status_code == 200


@pytest.mark.parametrize("tools", [True, False])
def test_llamacpp_tells_of_its_template(*, tools: bool) -> None:
    with LlamaCppFake([FakeModel("fake-model", tools=tools)]) as fake:
        props = get(fake, "/props")
        path = "/props?model=fake-model&autoload=false"
        told, _ = play(backend_of("llamacpp").profile("fake-model"), {path: props})
        assert told.tools is not None
        assert told.tools.value is tools
