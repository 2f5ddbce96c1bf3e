"""How a history is shortened is the user's choice: with a model, or without one, from so many tokens on; and what came of it is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from proxy.compaction.duplicates import AGAIN
from proxy.compaction.ladder import OMITTED
from proxy.compaction.shorten import HINT
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, Question, Reply, qa, summariser, walk, words
from tests.fakes.brains import WORD
from tests.pipeline.talk import summaries
from tests.proxying import UNREDUCED, Proxy, read_stream, running_proxy

WINDOW = 2048
STRATEGIES = ("auto", "summarize", "truncate", "mask")
WITHOUT_A_MODEL = ("truncate", "mask")
MODELS = {name: {"strategy": name} for name in STRATEGIES}


def talks(question: Question) -> Reply:
    """Says words in order where it is asked to go on with them, and answers questions else."""
    return (walk(last=1200) if WORD.search(question.last_user) else qa())(question)


@pytest.fixture
def served() -> Iterator[tuple[Proxy, FakeBackend]]:
    """A model for each strategy, known by that name; no test's reports move another's counts."""
    models = [FakeModel(name, WINDOW) for name in STRATEGIES]
    with LlamaCppFake(models, summariser(talks)) as fake, running_proxy(fake, models=MODELS) as proxy:
        yield proxy, fake


def chat(name: str, turns: int = 11) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"{name} {n} " + "word " * 150} for n in range(turns)]


def agent(name: str, steps: int = 8) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Look into every file of {name}."}]
    for number in range(steps):
        function = {"name": "read", "arguments": "{}"}
        call = {"id": f"call{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        lines = (f"line {number} " * 12 + "\n") * 10
        messages.append({"role": "tool", "tool_call_id": f"call{number}", "content": lines})
    return messages


def told(proxy: Proxy, name: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = proxy.chat({"model": name, "messages": messages, "max_tokens": 20, **fields})
    assert answer.status_code == 200, answer.text
    spillway: dict[str, Any] = answer.json()["usage"]["spillway"]
    return spillway


def asked_for(fake: FakeBackend, name: str) -> int:
    """How often a summary was asked for on behalf of a model's conversations."""
    return len([each for each in summaries(fake) if each.json["model"] == name])


@pytest.mark.parametrize(
    ("name", "action", "asks"),
    [
        ("auto", "compacted", True), ("summarize", "compacted", True), ("truncate", "trimmed", False),
        ("mask", "compacted", False),
    ],
)  # fmt: skip
def test_a_conversation_is_shortened_as_was_chosen_for_its_model(
    served: tuple[Proxy, FakeBackend], name: str, action: str, *, asks: bool
) -> None:
    proxy, fake = served
    before = asked_for(fake, name)
    spillway = told(proxy, name, chat(f"as chosen {name}"))
    assert spillway["action"] == action
    assert (asked_for(fake, name) > before) is asks
    assert spillway.get("summary", "") == {"compacted": "written" if asks else "extract"}.get(action, "")
    assert fake.overflows == 0


@pytest.mark.parametrize(("name", "action"), [("auto", "pruned"), ("mask", "pruned"), ("summarize", "compacted")])
def test_results_are_masked_unless_a_summary_was_chosen(served: tuple[Proxy, FakeBackend], name: str, action: str) -> None:
    proxy, fake = served
    before = asked_for(fake, name)
    assert told(proxy, name, agent(f"masked {name}"))["action"] == action
    assert asked_for(fake, name) - before == (name == "summarize")


@pytest.mark.parametrize("name", WITHOUT_A_MODEL)
def test_a_long_chat_gets_by_without_a_model(served: tuple[Proxy, FakeBackend], name: str) -> None:
    """And what was done lasts: it isn't done anew on each turn."""
    proxy, fake = served
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are brief."}]
    actions = []
    for number in range(24):
        filler = " ".join(f"about{number}x{i}" for i in range(40))
        messages.append({"role": "user", "content": f"Remember: the code of item{number} is c{number}. {filler}"})
        answer = proxy.chat({"model": name, "messages": messages, "max_tokens": 60})
        actions.append(answer.headers["x-spillway-action"])
        messages.append(answer.json()["choices"][0]["message"])
    assert asked_for(fake, name) == 0
    assert 2 <= len([action for action in actions if action not in UNREDUCED]) <= 10
    assert fake.chats()[-1].json["messages"][-1] == messages[-2]
    assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])


@pytest.mark.parametrize("name", WITHOUT_A_MODEL)
def test_an_answer_that_fills_the_window_goes_on_without_one(served: tuple[Proxy, FakeBackend], name: str) -> None:
    """What was said of it is shortened, too, and no model is asked for that."""
    proxy, fake = served
    messages = [*chat(f"long {name}", 6), {"role": "user", "content": "w1 w2 go on"}]
    body = {"model": name, "messages": messages, "stream": True}
    seen = read_stream(proxy.chat(body).content)
    assert (seen.finishes, seen.errors) == (["stop"], [])
    assert seen.text.strip() == words(3, 1200)
    assert asked_for(fake, name) == 0


def test_a_question_goes_with_all_that_answered_it_and_the_note_says_so(served: tuple[Proxy, FakeBackend]) -> None:
    """In the middle of a turn the note begins what is said next: the task stays the newest question."""
    proxy, fake = served
    turn = [*agent("an earlier task", 6), {"role": "assistant", "content": "It is done."}]
    messages = [*chat("truncate pairs", 2), *turn, {"role": "user", "content": "And now " + "word " * 500}]
    for kept in (["user", "assistant", "user"], ["user", "assistant", "tool"]):
        assert told(proxy, "truncate", messages)["action"] == "trimmed"
        sent = fake.chats()[-1].json["messages"]
        assert [message["role"] for message in sent[:3]] == kept
        assert sent[1]["content"].startswith(OMITTED)
        assert fake.invalid_histories == []
        messages = agent("only one task", 9)


def test_what_was_shortened_says_that_the_tool_can_be_called_again(served: tuple[Proxy, FakeBackend]) -> None:
    proxy, fake = served
    messages = [*agent("hints", 2), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    messages[2]["content"] = "\n".join(f"line {n} of the file" for n in range(400))
    told(proxy, "mask", messages)
    sent = next(m["content"] for m in fake.chats()[-1].json["messages"] if m["role"] == "tool")
    assert "left out here" in sent
    assert sent.endswith(HINT)


DOCUMENT = "\n".join(f"Paragraph {n} of the handbook says that {n * 7} boxes are kept in hall {n % 9}." for n in range(24))


@pytest.mark.parametrize("form", ["block", "part"])
def test_an_attachment_that_comes_with_each_message_counts_once(served: tuple[Proxy, FakeBackend], form: str) -> None:
    proxy, fake = served
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Answer from the handbook."}]
    for number in range(5):
        words = f"Question {number} about {form}: " + "how many boxes? " * 4
        parts = [{"type": "text", "text": text} for text in (DOCUMENT, words)]
        block = f"<attached_files>\n{DOCUMENT}\n</attached_files>\n\n{words}"
        messages += [
            {"role": "assistant", "content": f"Answer {number}."},
            {"role": "user", "content": block if form == "block" else parts},
        ]
    assert told(proxy, "mask", messages)["action"] == "pruned"
    sent = fake.chats()[-1].json["messages"]
    assert len(sent) == len(messages)
    assert str(sent).count("Paragraph 12 of") == 1
    assert str(sent[:-1]).count(AGAIN) >= 2
    assert all(f"Question {number}" in str(sent) for number in range(5))


# What came of it


def test_what_each_compaction_came_to_is_told(served: tuple[Proxy, FakeBackend]) -> None:
    proxy, _ = served
    messages = agent("told")
    spillway = told(proxy, "mask", messages)
    (one,) = spillway["compactions"]
    assert one["kind"] == "pruned"
    assert one["results_cleaned"] > 2
    assert (one["messages_before"], one["messages_after"]) == (len(messages), len(messages))
    assert one["tokens_before"] > 0.8 * WINDOW > 0.6 * WINDOW > one["tokens_after"]
    assert one["ratio"] == pytest.approx(one["tokens_after"] / one["tokens_before"], abs=0.001)
    assert one["seconds"] >= 0
    trimmed = told(proxy, "truncate", chat("told"))["compactions"][0]
    assert trimmed["messages_after"] < trimmed["messages_before"] == 11
    assert trimmed["results_cleaned"] == 0


# From so many tokens on


def test_a_prompt_is_kept_below_so_many_tokens_in_a_large_window() -> None:
    settings = {"trigger": 1500, "target": 900, "strategy": "truncate"}
    with LlamaCppFake([FakeModel("m", 32_768)], qa()) as fake, running_proxy(fake, models={"m": settings}) as proxy:
        messages = chat("so many tokens")
        answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 20})
        assert answer.headers["x-spillway-action"] == "trimmed"
        assert answer.headers["x-spillway-window"] == "32768"
        usage = answer.json()["usage"]
        assert usage["spillway"]["compactions"][0]["tokens_after"] <= 900
        assert usage["prompt_tokens"] <= 1500
        few = proxy.chat({"model": "m", "messages": messages[:5], "max_tokens": 20})
        assert few.headers["x-spillway-action"] == "forwarded"
        (backend,) = proxy.client.get("/spillway/models").json()["backends"]
        effective = backend["models"]["m"]["effective"]
        assert (effective["strategy"], effective["trigger_tokens"], effective["target_tokens"]) == ("truncate", 1500, 900)
        (listed,) = proxy.client.get("/v1/models").json()["data"]
        assert listed["spillway"]["trigger"] == round(1500 / 32_768, 4)
        explained = proxy.client.post("/spillway/explain", json={"model": "m", "messages": messages}).json()
        assert (explained["budget"]["trigger"], explained["budget"]["target"]) == (1500, 900)
