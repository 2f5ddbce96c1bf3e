"""A chat far longer than the window, through the proxy to the real engine."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.client import Answer
from tests.engine.fixtures import WINDOW, StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import Spillway, StartSpillway
from tests.engine.walking import Turn, conversation, user
from tests.proxying import UNREDUCED

pytestmark = pytest.mark.engine

TURNS = 30
REFUSAL = "exceeds the available context size"
RETOKENIZED = 8
"""Tokens at a message's end that may be cut differently when the next turn sends it back."""


def ask(proxy: Spillway, history: list[dict[str, Any]], turn: Turn, **fields: Any) -> Answer:
    """One turn of a stateless client: all of the history goes along, and grows by this turn."""
    history.append(user(turn.content))
    answer = proxy.chat(history, model="walk", max_tokens=turn.max_tokens, **fields)
    history.append({"role": "assistant", "content": answer.text})
    return answer


def check(answer: Answer, turn: Turn) -> None:
    assert answer.status == 200, answer.raw
    assert (answer.text, answer.reasons) == (turn.expected, ["length"])
    assert (answer.roles, len(answer.ids)) == (["assistant"], 1)


def test_thirty_turns_in_a_window_of_ten(walk_engine: Engine, spillway: StartSpillway) -> None:
    proxy = spillway([walk_engine.url])
    refused = walk_engine.process.text().count(REFUSAL)
    history: list[dict[str, Any]] = []
    actions: list[str] = []
    spent = 0
    for number, turn in enumerate(conversation(walk_engine.words, TURNS)):
        asked = {"stream_options": {"include_usage": True}} if turn.stream and number % 4 else {}
        answer = ask(proxy, history, turn, stream=turn.stream, **asked)
        check(answer, turn)
        assert answer.done == (1 if turn.stream else 0)
        assert (answer.usage is not None) == (not turn.stream or bool(asked))
        if answer.usage is not None:
            assert answer.usage["completion_tokens"] == turn.max_tokens
            spent += answer.usage["completion_tokens"]
        actions.append(answer.action)
    whole = walk_engine.post("/tokenize", {"content": " ".join(m["content"] for m in history)}).json()
    assert len(whole["tokens"]) > 2.5 * WINDOW
    assert walk_engine.process.text().count(REFUSAL) == refused
    # From the target to the trigger there is room for three of these turns.
    assert 3 <= actions.count("compacted") <= TURNS // 2.5, actions
    assert sum(action in UNREDUCED for action in actions) >= TURNS // 2, actions


def test_the_cache_of_the_engine_is_reused(walk_engine: Engine, spillway: StartSpillway) -> None:
    proxy = spillway([walk_engine.url])  # of its own: what others have taught a shared one would change what is asked
    history: list[dict[str, Any]] = []
    answers: list[Answer] = []
    read: list[int] = []
    for turn in conversation(walk_engine.words, 20):
        before = prompt_tokens_read(walk_engine)
        answers.append(ask(proxy, history, turn))
        read.append(prompt_tokens_read(walk_engine) - before)
        check(answers[-1], turn)
    compacted = [number for number, answer in enumerate(answers) if answer.action == "compacted"]
    assert compacted, [answer.action for answer in answers]
    # A summary is asked for at the end of the live prompt: little is read but that and the new prompt. This model writes
    # none that is fit to be used, and is asked for it in the other form too, until that has been in vain twice.
    assert len(compacted) > 1
    assert read[compacted[-1]] - new_tokens(answers[compacted[-1]]) < WINDOW // 8
    after_it = range(compacted[0] + 1, len(answers))
    forwarded = [number for number in after_it if answers[number].action in UNREDUCED]
    assert len(forwarded) >= 4
    # What was recalled for a turn may go with it: then that turn is read once more.
    same = [number for number in forwarded if not recalled(answers[number - 1])]
    assert len(same) >= len(forwarded) // 2
    for number in same:
        assert answers[number].cached >= prompt_tokens(answers[number - 1]) - RETOKENIZED, f"turn {number + 1}"
        assert read[number] == new_tokens(answers[number]), f"turn {number + 1}"


def recalled(answer: Answer) -> bool:
    return "recalled" in (answer.usage or {}).get("spillway", {})


def prompt_tokens(answer: Answer) -> int:
    assert answer.usage is not None
    return int(answer.usage["prompt_tokens"])


def new_tokens(answer: Answer) -> int:
    """Prompt tokens that were not in the engine's KV cache."""
    timings = answer.frames[0]["timings"]
    assert timings["cache_n"] == answer.cached
    return prompt_tokens(answer) - answer.cached


def prompt_tokens_read(engine: Engine) -> int:
    """Prompt tokens that the engine has read so far, for whomever."""
    metrics = httpx.get(engine.url + "/metrics", timeout=10.0, trust_env=False).text
    name = "llamacpp:prompt_tokens_total "
    return next(int(float(line[len(name) :])) for line in metrics.split("\n") if line.startswith(name))


@pytest.mark.parametrize("reason", ["System message must be at the beginning.", "Only the first, please."])
@pytest.mark.rows(1)
def test_a_template_of_one_system_message(engine: StartEngine, spillway: StartSpillway, tmp_path: Path, reason: str) -> None:
    """As Codex sends two, to a model whose id says nothing; a reason of unknown words stays the engine's."""
    strict = tmp_path / "strict.jinja"
    strict.write_text(
        "{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}{{- raise_exception('REASON') -}}"
        "{%- endif -%}{{- m.content -}}{%- endfor -%}".replace("REASON", reason)
    )
    proxy = spillway([engine(ModelSpec(template=strict), alias="myalias").url])
    lead = [{"role": "developer", "content": text} for text in ("rules", "sandbox")]
    answer = proxy.chat([*lead, user("go")], model="myalias", max_tokens=3)
    assert answer.status == (200 if "beginning" in reason else 400)
