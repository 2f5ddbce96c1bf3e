"""A summariser with a smaller window than the chat's model reads the history in few pieces, and never more than it can hold."""

from __future__ import annotations

import re
from itertools import cycle, islice
from typing import Any

import pytest

from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, qa
from tests.fakes.brains import asks_summary
from tests.fakes.vllm import VllmFake
from tests.proxying import running_proxy

SENTENCES = (
    "The train to the coast leaves a little after nine, so we packed the evening before.",
    "My brother wanted to bring his old guitar although two of its strings are missing.",
    "On the second day it rained, and we stayed inside with cards and a pot of tea.",
    "The landlady told us about a path through the dunes that no map shows.",
    "I would like to go there again in autumn, when there are fewer people about.",
)


def brain(question: Question) -> Reply:
    """Sums up by telling which turns it was shown."""
    if not asks_summary(question):
        return Reply(text="Noted.")
    turns = re.findall(r"Turn (\d+)|\b(\d+)(?=[,.])", question.last_user)
    told = dict.fromkeys("".join(turn) for turn in turns)
    return Reply(text=f"They spoke of a journey to the coast, in turns {', '.join(told)}.")


def chat(tokens: int) -> list[dict[str, Any]]:
    """A history of about so many tokens, in turns of some sentences each."""
    said = cycle(SENTENCES)
    return [
        {"role": "assistant" if n % 2 else "user", "content": f"Turn {n}: " + " ".join(islice(said, 3 + 4 * (n % 2)))}
        for n in range(2 * (tokens // 200) + 1)
    ]


@pytest.mark.parametrize(
    ("window", "small", "most"), [(8192, 4096, 4), (8192, 2048, 8), (32_768, 4096, 16), (8192, 8192, 2)]
)
def test_the_first_request_of_a_chat_is_read_in_few_pieces(window: int, small: int, most: int) -> None:
    with (
        LlamaCppFake([FakeModel("m", window)], qa()) as fake,
        VllmFake([FakeModel("small", small)], brain) as helper,
        running_proxy(fake, helper, summary_model="small") as proxy,
    ):
        answer = proxy.chat({"model": "m", "messages": chat(int(window * 0.95)), "max_tokens": 20})
        assert answer.headers["x-spillway-action"] == "compacted"
        sizes = [helper.count(asked.json) for asked in helper.chats()]
        assert 1 <= len(sizes) <= most, sizes
        assert (helper.overflows, fake.overflows) == (0, 0)
        # All but the last piece use the window that there is.
        assert all(size >= small * 0.5 for size in sizes[:-1]), sizes
