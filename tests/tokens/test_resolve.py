from pathlib import Path

import pytest

from proxy.tokens.families import FAMILIES, resolve


def family(model: str, hint: str | None = None, override: str | None = None) -> str:
    return resolve(model, hint, override)[0].id


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o-mini", "o200k"), ("openai/gpt-oss-20b", "o200k"), ("gpt-5", "o200k"), ("openai/o3-mini", "o200k"),
        ("gpt-4.1", "o200k"), ("gpt-4", "cl100k"), ("gpt-4-turbo", "cl100k"), ("gpt-3.5-turbo", "cl100k"),
        ("phi-4", "cl100k"), ("microsoft/phi4:14b", "cl100k"), ("phi3:mini", "llama2"),
        ("qwen2.5-coder:7b", "qwen"), ("Qwen/Qwen3-30B-A3B", "qwen"), ("qwq-32b", "qwen"), ("qwen3.5-35b", "qwen35"),
        ("deepseek-r1:8b", "qwen"), ("deepseek-r1-distill-qwen-7b", "qwen"), ("deepseek-r1:70b", "llama3"),
        ("deepseek-r1-distill-llama-8b", "llama3"), ("deepseek-r1", "deepseek"), ("deepseek-r1:671b", "deepseek"),
        ("deepseek/deepseek-chat-v3.1", "deepseek"), ("deepseek-coder:6.7b", None),
        ("mistral-nemo", "tekken"), ("mistral-small3.2:24b", "tekken"), ("devstral", "tekken"), ("nemotron", None),
        ("mistral", "mistral"), ("mistral:7b", "mistral"), ("mixtral-8x7b", "mistral"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("llama3.1:8b", "llama3"), ("Meta-Llama-3.1-8B-Instruct", "llama3"), ("llama-3.2-3b", "llama3"),
        ("llama4:scout", "llama4"), ("llama2:13b", "llama2"), ("gemma3:27b", "gemma3"), ("gemma-2-9b", "gemma3"),
        ("z-ai/glm-4.6", "glm"), ("whatever", None), ("", None),
    ],
)  # fmt: skip
def test_names(model: str, expected: str | None) -> None:
    assert family(model) == (expected or "general")


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("qwen2", "qwen"), ("qwen3moe", "qwen"), ("qwen25vl", "qwen"), ("qwen2_5_vl", "qwen"), ("Qwen", "qwen"),
        ("qwen35", "qwen35"), ("qwen35moe", "qwen35"), ("gpt-oss", "o200k"), ("Llama3", "llama3"),
        ("llama-bpe", "llama3"), ("Llama4", "llama4"), ("tekken", "tekken"), ("deepseek-v3", "deepseek"),
        ("DeepSeek", "deepseek"), ("gemma3", "gemma3"), ("Gemini", "gemma3"), ("glm4moe", "glm"),
        ("llama2", "llama2"), ("llama", None), ("Other", None), ("mistral3", "tekken"),
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "qwen"), ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
    ],
)  # fmt: skip
def test_hints(hint: str, expected: str | None) -> None:
    assert family("served-as", hint) == (expected or "general")


def test_the_user_is_believed_before_the_backend_and_that_before_the_name() -> None:
    assert resolve("qwen3", None, None)[1] == "name"
    assert (family("qwen3", "llama-bpe"), resolve("qwen3", "llama-bpe", None)[1]) == ("llama3", "backend")
    assert (family("qwen3", "llama-bpe", "tekken"), resolve("q", "x", "tekken")[1]) == ("tekken", "user")
    assert family("qwen3", "Other", "no such thing") == "qwen"


def test_an_architecture_that_says_too_little_leaves_it_to_the_name() -> None:
    assert (family("phi-4", "phi3"), family("phi-3-mini", "phi3")) == ("cl100k", "llama2")
    assert family("mistralai/mistral-small-3.2-24b", "Mistral") == "tekken"
    assert family("llama-3.1-8b", "llama") == "llama3"


def test_every_family_is_found_by_its_own_id() -> None:
    assert [family("x", None, each.id) for each in FAMILIES] == [each.id for each in FAMILIES]


def test_a_file_is_a_family_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    assert family("x", None, str(file)) == "general"
    file.write_text("{}")
    first = family("x", None, str(file))
    assert first.startswith(str(file))
    assert family("x", str(tmp_path)) == first
    file.write_text("{ }")
    assert family("x", None, str(file)) != first
    assert family("qwen3", None, "/no/such/file.gguf") == "qwen"
    assert family("x", None, "bad\0name.gguf") == "general"
