"""Fakes of every kind of backend: real HTTP servers on loopback that count, enforce and continue as the real ones.

    with LlamaCppFake(window=2048, brain=walk()) as fake:
        client.post(fake.url + "/v1/chat/completions", ...)
        assert fake.overflows == 0

A fake takes `models`, a `brain`, and any public class attribute as an option; options can be changed while it runs.
"""

from tests.fakes.brains import STRAYS, Walk, asks_summary, echo, facts, qa, scripted, strays, summariser, walk, words
from tests.fakes.chat import FakeBackend
from tests.fakes.generic import GenericFake
from tests.fakes.history import Flaw, check_history
from tests.fakes.http import Recorded
from tests.fakes.llamacpp import LlamaCppFake
from tests.fakes.lmstudio import LmStudioFake
from tests.fakes.model import Brain, FakeModel, Provider, Question, Reply, ToolCall
from tests.fakes.ollama import OllamaFake
from tests.fakes.openrouter import OpenRouterFake
from tests.fakes.tokens import FakeTokenizer
from tests.fakes.vllm import VllmFake
from tests.fakes.waiting import HEADERS, Gate, await_until, wait_until

FAKES: dict[str, type[FakeBackend]] = {
    "lmstudio": LmStudioFake, "ollama": OllamaFake, "openrouter": OpenRouterFake, "llamacpp": LlamaCppFake, "vllm": VllmFake,
    "generic": GenericFake,
}  # fmt: skip

__all__ = [
    "FAKES", "HEADERS", "STRAYS", "Brain", "FakeBackend", "FakeModel", "FakeTokenizer", "Flaw", "Gate", "GenericFake",
    "LlamaCppFake", "LmStudioFake", "OllamaFake", "OpenRouterFake", "Provider", "Question", "Recorded", "Reply", "ToolCall",
    "VllmFake", "Walk", "asks_summary", "await_until", "check_history", "echo", "facts", "qa", "scripted", "strays",
    "summariser", "wait_until", "walk", "words",
]  # fmt: skip
