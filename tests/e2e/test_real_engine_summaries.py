"""A real, weak model is its own summariser: whatever it answers, no loop is stored, and what the user told is kept."""

import json
from itertools import cycle, islice
from typing import Any

import pytest

from proxy.compaction.verification import loops
from proxy.core.history.marks import CLOSE, EARLIER, EXTRACT, OPEN
from tests.engine.spillway import StartSpillway
from tests.engine.tap import Tap

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TOLD = (
    ("My name is Torvald and I was born in Uppsala.", ("Torvald", "Uppsala")),
    ("My wife is called Henrike, and we married in 2011.", ("Henrike", "2011")),
    ("We live at 47 Linden Street in Gdansk.", ("47", "Gdansk")),
    ("Our two cats are called Muffin and Bruno.", ("Muffin", "Bruno")),
    ("The doctor is Professor Okonkwo, and I see him on 19 August.", ("Okonkwo", "August")),
    ("My brother Casimir works for Siemens.", ("Casimir", "Siemens")),
    ("The invoice has the number 88213 and is about 640 euros.", ("88213", "640")),
    ("We spent the summer in Ljubljana with Beatrix.", ("Ljubljana", "Beatrix")),
    ("The code of the garage is 5519, and the car is a Skoda.", ("5519", "Skoda")),
    ("My daughter Philippa studies in Coimbra.", ("Philippa", "Coimbra")),
)
TALK = (
    "That is good to hear, and there is a lot that could be said about such things on a long evening.",
    "A walk in the fresh air does one good, and so does a cup of tea with somebody who listens well.",
    "It is often the small things that count, and they are easily forgotten in the course of a day.",
    "There are many ways to look at it, and none of them is wrong as long as one is honest about it.",
)


@pytest.mark.heavy
def test_no_loop_is_stored_and_what_the_user_told_is_kept(instruct_tap: Tap, spillway: StartSpillway) -> None:
    # On a loaded machine it writes a word in seconds: then there is an extract all the sooner.
    proxy = spillway([instruct_tap.url], recall="off", summary_wait=12)
    said = cycle(TALK)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Hello! Let us talk a little."}]
    for number, (told, _) in enumerate((*TOLD, *(("And what do you think about that?", ()),) * 6), 1):
        history.append({"role": "assistant", "content": " ".join(islice(said, 4))})
        history.append({"role": "user", "content": told})
        if number not in (len(TOLD) + 2, len(TOLD) + 6):
            continue
        answer = proxy.chat(history, model="smollm2", max_tokens=8, stream=True)
        assert (answer.status, answer.done) == (200, 1), answer.raw
    sent = json.loads(instruct_tap.chats()[-1].asked)["messages"]
    prompt = "\n".join(str(message["content"]) for message in sent)
    facts = [fact for _, facts in TOLD for fact in facts]
    lost = [fact for fact in facts if fact not in prompt]
    assert len(facts) == 20
    assert len(lost) <= 2, f"{lost} are not in\n{prompt}"
    assert OPEN in prompt
    for block in prompt.split(f"{OPEN}\n")[1:]:
        text = block.split(f"\n{CLOSE}")[0].removeprefix(f"{EARLIER}\n")
        assert text.startswith(EXTRACT) or not loops(text)
