"""The real engine embeds what is recalled, and calls the tool that searches the conversation."""

import json
from typing import Any

import pytest

from proxy.recall.block import NOTHING_FOUND
from tests.engine.fixtures import StartEngine
from tests.engine.server import Engine
from tests.engine.spec import ModelSpec
from tests.engine.spillway import StartSpillway
from tests.engine.tap import Tap, tapped

pytestmark = pytest.mark.engine

TOLD = (
    ("My sister Annika keeps two hedgehogs, Pim and Pam.", "What are my sister's hedgehogs called?"),
    ("Our boat, the Kestrel, lies at berth 47 in Stavoren.", "At which berth does our boat lie?"),
    ("The plumber comes on 14 May at 16:30, his name is Bertil.", "When does the plumber come?"),
    ("I am allergic to cashew nuts and to penicillin.", "What am I allergic to?"),
    ("The spare key hangs behind the barometer in the hall.", "Where does the spare key hang?"),
)
"""What the user tells in passing, and what they ask about it at the end."""
TALK = (
    "Today we talked about the weather over the fields, and how the light changes late in the afternoon.",
    "A good loaf needs time, warm hands and an oven that holds its heat, and salt should not be forgotten.",
    "The old train to the coast stops at each village, so that there is always somebody who waves.",
    "Some people read three books at once, others one book three times, and both are happy with that.",
    "In the museum there is a room with nothing but clocks, and each of them shows another hour.",
)
"""What else is said, in other words than those that are asked for."""


def history() -> list[dict[str, Any]]:
    """A chat of more tokens than the window: what the user tells lies early in it."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Let us talk about this and that."},
        {"role": "assistant", "content": "With pleasure!"},
    ]
    for number in range(20):
        talk = " ".join(TALK[(number + step) % len(TALK)] for step in range(3))
        told = f" {TOLD[number][0]}" if number < len(TOLD) else ""
        messages.append({"role": "user", "content": talk[: 40 + 7 * number] + "." + told})
        messages.append({"role": "assistant", "content": f"{number}. {talk}"})
    return messages


@pytest.mark.heavy
def test_the_engine_gives_vectors(echo_engine: Engine, engine: StartEngine, spillway: StartSpillway) -> None:
    """Of a tiny model, whose vectors mean little: what counts is that they are asked for, taken, and not asked for again."""
    vectors = engine(ModelSpec(mode="echo"), alias="vectors", embeddings=True)
    told, question = TOLD[0]
    asked = [*history(), {"role": "user", "content": question}]
    with tapped(vectors.url) as tap:
        proxy = spillway([echo_engine.url, tap.url], recall_model="vectors")
        first = proxy.chat(asked, model="echo", max_tokens=8)
        texts = _embedded(tap)
        again = [*asked, {"role": "assistant", "content": "Pim and Pam."}, {"role": "user", "content": TOLD[1][1]}]
        second = proxy.chat(again, model="echo", max_tokens=8)
        more = _embedded(tap)[len(texts) :]
    assert (first.status, second.status) == (200, 200)
    assert any(told in text for text in texts)
    assert question in texts
    assert 1 <= len(more) <= 3
    assert not set(more) & set(texts)
    assert "embeddings from" not in proxy.log


def test_the_engine_searches(echo_tap: Tap, spillway: StartSpillway) -> None:
    """The echo model says what it is told: first the call of the tool, then what that has found."""
    proxy = spillway([echo_tap.url], recall="tool")
    # In a form that only who reads the JSON understands: by its words nothing is recalled.
    query = "".join(f"\\u{ord(letter):04x}" for letter in "clocks")
    call = f'{{"name": "search_conversation", "arguments": {{"query": "{query}"}}}}'
    asked = [*history(), {"role": "user", "content": f"<tool_call>\n{call}\n</tool_call>"}]
    answer = proxy.chat(asked, model="echo", stream=True)
    assert answer.status == 200, answer.raw
    assert answer.reasons == ["stop"]
    assert b"tool_calls" not in answer.raw
    echo_tap.wait_for(4)
    messages = json.loads(echo_tap.chats()[-1].asked)["messages"]
    assert [message["role"] for message in messages[-2:]] == ["assistant", "tool"]
    found = messages[-1]["content"]
    assert found.startswith(("- ", NOTHING_FOUND))
    assert answer.text.endswith(found)


def _embedded(tap: Tap) -> list[str]:
    found = [each for each in tap.seen if each.path == "/v1/embeddings" and b'"embedding"' in each.answered]
    return [text for each in found for text in json.loads(each.asked)["input"]]
