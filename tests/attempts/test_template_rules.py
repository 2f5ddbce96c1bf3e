"""Chat templates that refuse roles: seen in the template that a backend reports, else learned from its refusal."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from typing_extensions import override

from proxy.core.request import text_of
from tests.fakes.brains import echo
from tests.fakes.llamacpp import LlamaCppFake
from tests.fakes.model import FakeModel, Prompt, Refused
from tests.fakes.vllm import VllmFake
from tests.proxying import Proxy, running_proxy

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ONE = "System message must be at the beginning."
UNKNOWN = "Unexpected message role."
LITERAL = "Input should be 'system', 'user', 'assistant' or 'tool'"
TAG = "Input tag 'developer' found using 'role' does not match any of the expected tags: 'system', 'user'"
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
NO_SYSTEM = "System role not supported"
REASONS: dict[str, Callable[[Sequence[str]], bool]] = {
    ONE: lambda roles: "system" in roles[1:],
    **dict.fromkeys((UNKNOWN, LITERAL, TAG), lambda roles: "developer" in roles),
    ALTERNATE: lambda roles: [role for role in roles if role != "system"] != (["user", "assistant"] * 9)[: len(roles) - roles.count("system")],
    NO_SYSTEM: lambda roles: "system" in roles,
}  # fmt: skip
CODEX = [("developer", "rules"), ("developer", "sandbox"), ("user", "<environment/>"), ("user", "go")]
JOINED = "rules\n\nsandbox"


class StrictVllm(VllmFake):
    """Refuses what the template raises an error for."""

    raises: Sequence[str] = ()

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        roles = [message["role"] for message in body["messages"]]
        for reason in self.raises:
            if REASONS[reason](roles):
                raise Refused(400, self.error(400, reason))
        return super().parse(body, model)


class StrictLlamaCpp(LlamaCppFake):
    """Reports a template that allows one system message, and refuses others as b11549 does."""

    @override
    def properties(self, model: FakeModel) -> dict[str, Any]:
        return super().properties(model) | {"chat_template": f"{{{{- raise_exception('{ONE}') }}}}"}

    @override
    def parse(self, body: dict[str, Any], model: FakeModel) -> Prompt:
        if any(message["role"] in ("system", "developer") for message in body["messages"][1:]):
            raise Refused(400, self.error(400, f"Unable to generate parser for this template.\nJinja Exception: {ONE}"))
        return super().parse(body, model)


def ask(proxy: Proxy, path: str, *, stream: bool = True) -> None:
    """Ask as Codex does, and be answered with the last word."""
    body: dict[str, Any] = {"model": "myalias", "stream": stream}
    if path == RESPONSES:
        parts = [(role, [{"type": "input_text", "text": text}]) for role, text in CODEX]
        body |= {"input": [{"type": "message", "role": role, "content": content} for role, content in parts]}
    else:
        body |= {"messages": [{"role": role, "content": text} for role, text in CODEX]}
    answer = proxy.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert "go" in answer.text


def sent(backend: VllmFake | LlamaCppFake) -> list[list[tuple[str, str]]]:
    return [[(message["role"], text_of(message)) for message in chat.json["messages"]] for chat in backend.chats()]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_template_that_llama_cpp_reports_is_obeyed_at_once(path: str) -> None:
    with StrictLlamaCpp([FakeModel("myalias")], echo) as backend, running_proxy(backend) as proxy:
        ask(proxy, path)
        assert sent(backend) == [[("system", JOINED), *CODEX[2:]]]


@pytest.mark.parametrize(
    ("path", "raises", "learned", "expected"),
    [
        (RESPONSES, [ONE], {"one_system"}, [("system", JOINED), *CODEX[2:]]),
        (CHAT, [UNKNOWN, ONE], {"no_developer", "one_system"}, [("system", JOINED), *CODEX[2:]]),
        *((CHAT, [reason], {"no_developer"}, [("system", "rules"), ("system", "sandbox"), *CODEX[2:]]) for reason in (UNKNOWN, LITERAL, TAG)),
        (CHAT, [NO_SYSTEM, UNKNOWN, ALTERNATE], {"no_system", "no_developer", "alternate"}, [("user", f"{JOINED}\n\n<environment/>\n\ngo")]),
    ],
)  # fmt: skip
def test_a_refusal_is_mended_asked_again_and_remembered(
    path: str, raises: list[str], learned: set[str], expected: list[tuple[str, str]]
) -> None:
    with StrictVllm([FakeModel("myalias")], echo, raises=raises) as backend, running_proxy(backend) as proxy:
        ask(proxy, path)
        assert sent(backend)[-1] == expected
        rules = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["myalias"]["template_rules"]
        assert (rules["trust"], set(rules["value"])) == ("learned", learned)
        before = len(sent(backend))
        ask(proxy, path, stream=False)
        assert sent(backend)[before:] == [expected]
        proxy.client.delete("/spillway/lessons", params={"backend": "vllm", "model": "myalias", "lesson": "roles"})
        ask(proxy, path)
        assert len(sent(backend)) > before + 2


def test_a_refusal_that_no_other_roles_would_change_is_the_clients() -> None:
    with VllmFake([FakeModel("myalias")], echo) as backend, running_proxy(backend) as proxy:
        backend.fail_next(400, {"error": {"message": ALTERNATE}}, times=2)
        answer = proxy.chat({"model": "myalias", "messages": [{"role": "user", "content": "hi"}]})
        assert (answer.status_code, len(backend.chats())) == (400, 1)


PREFILL = "Assistant response prefill is incompatible with enable_thinking."
NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."
TWO_ANSWERS = "Cannot have 2 or more assistant messages at the end of the list."
SUCCESSIVE = "this model does not support successive user or assistant messages (messages[1] and messages[2] in your input)"
REASONS |= {
    **dict.fromkeys((PREFILL, NO_PREFILL), lambda roles: roles[-1] == "assistant"),
    TWO_ANSWERS: lambda roles: roles[-2:] == ["assistant"] * 2,
    SUCCESSIVE: lambda roles: any(a == b for a, b in pairwise(roles)),
}


@pytest.mark.parametrize(
    ("reason", "roles"),
    [
        (PREFILL, ["user", "assistant"]), (NO_PREFILL, ["user", "assistant"]),
        (TWO_ANSWERS, ["user", "assistant", "assistant"]), (SUCCESSIVE, ["user", "user", "assistant", "user"]),
    ],
)  # fmt: skip
def test_a_history_that_ends_or_repeats_itself_is_refused_once(reason: str, roles: list[str]) -> None:
    messages = [{"role": role, "content": f"{n} {role}"} for n, role in enumerate(roles)]
    with StrictVllm([FakeModel("myalias")], echo, raises=[reason]) as backend, running_proxy(backend) as proxy:
        for requests in (2, 3):
            assert proxy.chat({"model": "myalias", "messages": messages}).status_code == 200
            assert len(backend.chats()) == requests
        text = "\n".join(text_of(each) for each in backend.chats()[-1].json["messages"])
        assert all(text_of(each) in text for each in messages)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_an_empty_list_of_tools_is_left_out(path: str) -> None:
    body: dict[str, Any] = {"model": "myalias", "tools": [], "tool_choice": "none"}
    body |= {"input": "hi"} if path == RESPONSES else {"messages": [{"role": "user", "content": "hi"}]}
    with VllmFake([FakeModel("myalias")], echo) as backend, running_proxy(backend) as proxy:
        assert proxy.client.post(path, json=body).status_code == 200
        assert not {"tools", "tool_choice"} & backend.chats()[-1].json.keys()
