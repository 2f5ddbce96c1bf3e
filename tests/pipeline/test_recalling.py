"""Recall through the HTTP stack: what was compacted comes back where a turn needs it, and goes again."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.marks import RECALLED, RECALLED_END
from proxy.core.jsontext import dumps
from proxy.core.request import text_of
from proxy.store import StoreLimits, open_store
from tests.fakes import FAKES, FakeBackend, FakeModel, LlamaCppFake, Question, Reply
from tests.fakes.ollama_native import GEOMETRY
from tests.proxying import UNREDUCED, Proxy, read_stream, running_proxy

WINDOW = 2048
FACT = "My sister Mathilda keeps two hedgehogs called Pim and Pam in Leipzig."
ASK = "Which animals does my sister Mathilda keep, and what are they called?"
THINGS = (
    *("garden", "kitchen", "train", "office", "holiday", "bicycle", "window", "winter", "doctor", "violin"),
    *("river", "pancake", "museum"),
)


def talk(count: int) -> list[dict[str, Any]]:
    return [
        {
            "role": ("user", "assistant")[n % 2],
            "content": f"turn {n} is about the {THINGS[n % 13]} and the {THINGS[n * 7 % 13]}, "
            f"which were {THINGS[n * 3 % 13]} blue long ago and will be so again",
        }
        for n in range(count)
    ]


def long_chat(ask: str = ASK) -> list[dict[str, Any]]:
    # What the user says itself is told by the block that stands for it.
    fact = [{"role": "user", "content": "Tell me of them."}, {"role": "assistant", "content": FACT}]
    return [*talk(14), *fact, *talk(64), {"role": "user", "content": ask}]


def brain(question: Question) -> Reply:
    last = text_of(question.messages[-1])
    if "ummari" in last:
        return Reply(text="They talked about many things, none of which matters much for what follows now.")
    return Reply(text="They are called Pim and Pam." if "Pim" in last else "I do not know.")


@contextmanager
def staged(kind: str = "llamacpp", **settings: Any) -> Iterator[tuple[FakeBackend, Proxy]]:
    known = {"models": {"m": {"window": WINDOW}}} if kind == "generic" else {}
    fake = FAKES[kind]([FakeModel("m", WINDOW)], brain)
    with fake, running_proxy(fake, **{"ahead": "off", **known, **settings}) as proxy:
        yield fake, proxy


def ask(proxy: Proxy, messages: list[dict[str, Any]], **fields: Any) -> Any:
    answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 40, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def prompts(fake: FakeBackend) -> list[list[dict[str, Any]]]:
    sent: list[list[dict[str, Any]]] = [request.json["messages"] for request in fake.chats()]
    return [messages for messages in sent if "ummari" not in text_of(messages[-1])]


@pytest.mark.parametrize("kind", FAKES)
def test_what_was_compacted_comes_back_when_it_is_asked_for(kind: str) -> None:
    with staged(kind) as (fake, proxy):
        answer = ask(proxy, long_chat())
        assert answer.headers["x-spillway-action"] == "compacted"
        assert int(answer.headers["x-spillway-recalled"]) >= 1
        assert "Pim and Pam" in answer.json()["choices"][0]["message"]["content"]
        told = answer.json()["usage"]["spillway"]["recalled"]
        assert told["passages"] == int(answer.headers["x-spillway-recalled"])
        assert 0 < told["tokens"] <= WINDOW * 0.3
        (sent,) = prompts(fake)
        last = text_of(sent[-1])
        assert last.startswith(RECALLED)
        assert last.endswith(f"{RECALLED_END}\n\n{ASK}")
        assert FACT in last
        assert sum(FACT in text_of(message) for message in sent) == 1
        assert (fake.overflows, fake.invalid_histories) == (0, [])
        assert 'spillway_recalled_tokens_total{backend="' in proxy.client.get("/metrics").text


@pytest.mark.parametrize(
    ("question", "least"),
    [("In what order did my year go?", 9), ("What was my very first question?", 3), ("Which colour suits you?", 0)],
)
def test_a_question_about_the_conversation_gets_its_parts_by_position(question: str, least: int) -> None:
    """None of these events has a word of the questions; the very first message is in every prompt."""
    events = [f"Number {n}: the {thing} of aunt {thing.title()}a is {n * 7919}." for n, thing in enumerate(THINGS)]
    said = [(each, "Fine. " * 40 + f"What will you do with the {THINGS[n]} then?") for n, each in enumerate(events)]
    messages = [{"role": ("user", "assistant")[n], "content": pair[n]} for pair in said for n in (0, 1)]
    with staged(strategy="truncate") as (fake, proxy):
        ask(proxy, [*messages, *talk(40), {"role": "user", "content": question}])
        sent = "\n".join(map(text_of, prompts(fake)[-1]))
        assert all(each in sent for each in events[:least])
        assert least or not any(each in sent for each in events[1:])
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])


@pytest.mark.parametrize(("kind", "bounded"), [("llamacpp", True), ("openrouter", False)])
def test_a_backend_that_reads_slowly_is_given_little(kind: str, bounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading costs nothing but time; how fast it reads was seen on a turn that was streamed."""
    monkeypatch.setattr("proxy.addons.recall.SECONDS", 1e-6)
    monkeypatch.setattr("proxy.addons.recall._LEAST", 0)
    with staged(kind) as (_, proxy):
        ask(proxy, talk(3), stream=True)
        told = ask(proxy, long_chat()).json()["usage"]["spillway"]
        assert ("recalled" in told) is not bounded


def test_what_is_needed_most_comes_before_the_room_for_results_of_tools() -> None:
    """Which are not there yet, and may take it later; turns that were left out have no other place."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look into every module."}]
    for number, thing in enumerate(THINGS):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        lines = f"def compute_{thing}(): return {number * 7919}\n" + "# some filler for so many lines\n" * 30
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": lines})
        if number % 4 == 3:
            messages.append({"role": "assistant", "content": f"I have read {number} of them."})
            messages.append({"role": "user", "content": "Go on with the next four, please."})
    messages.append({"role": "assistant", "content": "Done."})
    messages.append({"role": "user", "content": "What does compute_train return?"})
    with staged(strategy="truncate") as (fake, proxy):
        assert ask(proxy, messages).headers["x-spillway-action"] == "trimmed"
        assert "def compute_train(): return 15838" in text_of(prompts(fake)[-1][-1])
        assert (fake.overflows, fake.cuts, fake.invalid_histories) == (0, 0, [])


def test_off_means_off_also_for_one_model() -> None:
    for settings in ({"recall": "off"}, {"models": {"m": {"recall": "off"}}}):
        with staged(**settings) as (fake, proxy):
            answer = ask(proxy, long_chat())
            assert "x-spillway-recalled" not in answer.headers
            assert RECALLED not in str(prompts(fake))
            assert answer.headers["x-spillway-action"] == "compacted"


def test_a_turn_that_needs_nothing_gets_nothing() -> None:
    with staged() as (fake, proxy):
        answer = ask(proxy, long_chat("Thank you, good night!"))
        assert answer.headers["x-spillway-action"] == "compacted"
        assert "x-spillway-recalled" not in answer.headers
        assert prompts(fake)[-1][-1] == {"role": "user", "content": "Thank you, good night!"}


def test_a_tool_loop_sees_the_same_block_on_every_step() -> None:
    with staged() as (fake, proxy):
        messages = long_chat()
        for number in range(3):
            ask(proxy, messages)
            call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            messages = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "content": f"Nothing about Leipzig {number}."},
            ]
        sent = prompts(fake)
        assert RECALLED in text_of(sent[0][-1])
        assert (sent[1][: len(sent[0])], sent[2][: len(sent[1])]) == (sent[0], sent[1])


def test_a_block_that_would_make_room_for_one_step_only_stays_until_the_prompt_is_shortened() -> None:
    """Else a loop's prompt is read anew to take it out, and once more on the next step."""
    with staged() as (fake, proxy):
        told = " ".join(f"{FACT} Number {n} of Mathilda animals eats {THINGS[n]} and {THINGS[n + 1]}." for n in range(9))
        messages = [{**each, "content": told} if each["content"] == FACT else each for each in long_chat()]
        actions = [ask(proxy, messages).headers["x-spillway-action"]]
        for number in range(9):
            call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            messages = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "content": f"Row {number} of the table. " * 23},
            ]
            actions.append(ask(proxy, messages).headers["x-spillway-action"])
        sent = prompts(fake)
        assert RECALLED in text_of(sent[0][-1])
        assert len(sent) == len(actions)
        anew = [n for n in range(1, len(sent)) if sent[n][: len(sent[n - 1])] != sent[n - 1]]
        assert anew
        assert [actions[n] for n in anew if actions[n] in UNREDUCED] == []


@pytest.mark.parametrize("policy", ["auto", "local"])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_large_result_of_this_turn_is_searched_for_what_the_turn_asks(policy: str, steps: int) -> None:
    """Whether it had to be shortened to fit, or by the limits that hold from the first request on; a call is no answer."""
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": dumps({"about": ASK}).decode()}}
    asks: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    rows = [f"row {n} is about the {THINGS[n % 13]}" for n in range(300)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    for text in [*["nothing here"] * steps, "\n".join([*rows, FACT, *rows])]:
        messages += [asks, {"role": "tool", "tool_call_id": "c", "content": text}]
    with staged(policy=policy) as (fake, proxy):
        ask(proxy, messages[:-2])
        ask(proxy, messages)
        (sent,) = prompts(fake)[-1:]
        assert FACT in text_of(sent[0])
        assert FACT not in text_of(sent[-1])
        assert len(text_of(sent[-1])) < 8000 < len(text_of(messages[-1]))


def test_asking_again_gives_the_same_prompt() -> None:
    with staged() as (fake, proxy):
        messages = long_chat()
        ask(proxy, messages)
        ask(proxy, messages, stream=True)
        first, second = prompts(fake)
        assert first == second


def test_who_asks_once_more_gets_the_same_again() -> None:
    with staged() as (fake, proxy):
        messages = long_chat()
        ask(proxy, messages)
        for again in (ASK, "I mean: Which animals does Mathilda keep, and what are they called?"):
            messages += [{"role": "assistant", "content": "I do not know."}, {"role": "user", "content": again}]
            ask(proxy, messages)
            assert FACT in text_of(prompts(fake)[-1][-1])


def test_a_small_block_stays_so_that_the_prompt_only_grows() -> None:
    with staged(limits={"recall": int(WINDOW * 0.06)}, trigger=0.88) as (fake, proxy):
        said = "They are called Pim and Pam, if I remember it rightly. " * 20
        messages = [*long_chat(), {"role": "assistant", "content": said}]
        ask(proxy, messages[:-1])
        for _ in range(2):
            messages.append({"role": "user", "content": "Thank you, good night!"})
            ask(proxy, messages)
            messages.append({"role": "assistant", "content": "Good night."})
        first, second, third = prompts(fake)
        assert RECALLED in text_of(first[-1])
        assert second[: len(first)] == first
        assert third[: len(second)] == second


@pytest.mark.parametrize("kind", ["llamacpp", "ollama"])
@pytest.mark.parametrize("window", [0, 512])
def test_a_block_stays_where_a_model_would_read_all_of_a_prompt_again(
    kind: str, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a sliding window, as the model's file tells; 0 is none."""
    key, file = "gemma3.attention.sliding_window", tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" + key.encode() + (4).to_bytes(4, "little") + window.to_bytes(4, "little"))
    monkeypatch.setitem(GEOMETRY, key, window)
    properties = LlamaCppFake.properties
    monkeypatch.setattr(LlamaCppFake, "properties", lambda *of: properties(*of) | {"model_path": str(file)})
    with staged(kind) as (fake, proxy):
        messages = long_chat()
        ask(proxy, messages)
        messages += [{"role": "assistant", "content": "Pim."}, {"role": "user", "content": "Thank you, good night!"}]
        ask(proxy, messages)
        first, second = prompts(fake)
        assert RECALLED in text_of(first[-1])
        assert (second[: len(first)] == first) is bool(window)


def test_nothing_recalled_enters_a_checkpoint_or_a_summary(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.sqlite3"
    with staged(store=store) as (fake, proxy):
        messages = long_chat()
        for _ in range(4):
            ask(proxy, messages)
            messages += [{"role": "assistant", "content": "I see."}, *talk(46), {"role": "user", "content": ASK}]
        sent = [request.json["messages"] for request in fake.chats()]
        summaries = [each for each in sent if "ummari" in text_of(each[-1])]
        assert len(summaries) >= 3
        assert RECALLED not in str(summaries)
        assert [RECALLED in str(messages) for messages in prompts(fake)].count(True) >= 2
        assert (fake.overflows, fake.invalid_histories) == (0, [])
    kept = asyncio.run(exported(store))
    assert len(kept) >= 3
    assert RECALLED not in str(kept)


async def exported(url: str) -> list[Checkpoint]:
    store = open_store(url, StoreLimits(clock=lambda: 0.0, ttl=1e9, max_bytes=2**20, timeout=5.0))
    try:
        return await store.export()
    finally:
        await store.close()


def test_one_credential_never_gets_what_another_said() -> None:
    with staged() as (fake, proxy):
        ask(proxy, long_chat())
        others = [m if m["content"] != FACT else {**m, "content": "My sister Mathilda keeps quiet."} for m in long_chat()]
        answer = proxy.chat({"model": "m", "messages": others}, authorization="Bearer other")
        assert answer.status_code == 200
        assert "Pim" not in str(prompts(fake)[-1])


def test_chores_and_structured_answers_get_nothing() -> None:
    with staged() as (fake, proxy):
        ask(proxy, long_chat(), response_format={"type": "json_object"})
        proxy.chat({"model": "m", "messages": long_chat(), "max_tokens": 40}, **{"x-task": "title_generation"})
        assert len(prompts(fake)) == 2
        assert RECALLED not in str(prompts(fake))


def test_explain_and_the_status_tell_what_was_recalled() -> None:
    with staged() as (_, proxy):
        body = {"model": "m", "messages": long_chat()}
        seen = read_stream(ask(proxy, long_chat(), stream=True).content)
        assert (seen.errors, len(seen.ids)) == ([], 1)
        descriptions = [event["data"]["description"] for event in seen.events]
        assert [each[:1] for each in descriptions] == ["⚙", "✅"], descriptions
        told = proxy.client.post("/spillway/explain", json=body).json()
        assert told["action"] == "continued"
        assert told["messages"][-1]["content"].startswith(RECALLED)
        assert FACT in [passage["text"] for passage in told["recalled"]["passages"]]
        assert all(body["messages"][p["message"]]["role"] == p["role"] for p in told["recalled"]["passages"])


def test_a_prompt_that_is_refused_is_sent_without_what_was_recalled() -> None:
    """The backend's window shrank behind Spillway's back."""
    fake = LlamaCppFake([FakeModel("m", 1900)], brain)
    with fake, running_proxy(fake, models={"m": {"window": WINDOW * 2, "strategy": "mask"}}) as proxy:
        answer = ask(proxy, [*talk(60), *long_chat()])
        sent = prompts(fake)
        assert [RECALLED in str(messages) for messages in sent] == [True, False]
        assert "x-spillway-recalled" not in answer.headers
        assert "recalled" not in answer.json()["usage"]["spillway"]


@pytest.mark.parametrize(("fill", "early"), [(0.72, False), (0.785, True)])
def test_what_is_needed_is_recalled_in_a_history_that_is_nearly_due(fill: float, *, early: bool) -> None:
    with staged() as (fake, proxy):
        messages = long_chat("Thank you, good night!")
        ask(proxy, messages)
        grown: list[dict[str, Any]] = []
        while True:
            grown += [
                {"role": "assistant", "content": "Good night."},
                {"role": "user", "content": talk(9)[len(grown) % 9]["content"]},
            ]
            answer = ask(proxy, [*messages, *grown])
            if float(answer.headers["x-spillway-fill"]) > fill:
                break
        ask(proxy, [*messages, *grown[:-1], {"role": "user", "content": ASK}])
        before, after = prompts(fake)[-2:]
        assert FACT in text_of(after[-1])
        assert early or after[:-1] == before[:-1]
        assert (fake.overflows, fake.invalid_histories) == (0, [])


LINE = "My sister Mathilda keeps two hedgehogs, one called Pim and one called Pam."
LABELS = ("positive", "negative", "neutral")


def lines(first: str = "", *, labels: bool = False, ask: str = ASK) -> list[dict[str, Any]]:
    """A session of lines, each with its translation or its label, and the fact in an early one."""
    said = [each["content"] for each in talk(60)]
    said[9] = LINE
    answers = [LABELS[n % 3] if labels else f"{text[:-12]}, auf Deutsch" for n, text in enumerate(said)]
    made = [
        {"role": role, "content": text}
        for pair in zip(said, answers, strict=True)
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    opening = [{"role": "user", "content": first}, {"role": "assistant", "content": "Send the first line."}]
    return [*(opening if first else []), *made, {"role": "user", "content": ask}]


@pytest.mark.parametrize(
    ("system", "messages", "headers", "recalls"),
    [
        ("Translate each line from English to German. Give only the translation.", lines(), {}, False),
        ("Übersetze jede Zeile ins Deutsche, nur die Übersetzung.", lines(), {}, False),
        ("请把每一行翻译成德语只输出译文。", lines(), {}, False),
        ("Classify the sentiment of every review. Answer with one word only.", lines(labels=True), {}, False),
        ("Fix the grammar of any text the user sends, without comment.", lines(), {}, False),
        ("You help.", lines("Translate every line that I send into German, nothing else."), {}, False),
        ("", lines("Translate every line that I send into German, nothing else."), {}, False),
        ("You translate every line, only that.", lines(ask=f"You translated this before: {ASK}"), {}, True),
        ("You are a travel guide who can translate, too.", lines(), {}, True),
        ("You help.", long_chat(), {}, True),
        ("You help.", long_chat(), {"x-spillway-recall": "off"}, False),
    ],
)
def test_nothing_is_put_before_data(
    system: str, messages: list[dict[str, Any]], headers: dict[str, str], recalls: bool
) -> None:
    lead = [{"role": "system", "content": system}] if system else []
    with staged() as (fake, proxy):
        body = {"model": "m", "messages": [*lead, *messages]}
        assert proxy.chat(body, **headers).status_code == 200
        sent = fake.chats()[-1]
        assert (RECALLED in str(sent.json["messages"])) is recalls
        assert sent.header("x-spillway-recall") is None
        if not recalls:
            assert sent.json["messages"][-1] == messages[-1]
        assert proxy.chat(body, **{"x-spillway-recall": "no"}).status_code == 400
