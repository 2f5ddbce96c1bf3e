"""A real llama-server's answer that outgrows its window, with status in its stream, in the most used clients."""

import pytest

from tests.e2e.clients import langchain, openai_python
from tests.e2e.clients.staging import no_complaints
from tests.e2e.clients.talk import Ask, Job
from tests.engine.fixtures import WINDOW
from tests.engine.server import Engine
from tests.engine.spillway import SharedSpillway
from tests.engine.walking import after, spoken

pytestmark = pytest.mark.engine

LENGTH = WINDOW + WINDOW // 4


@pytest.mark.parametrize("ask", [openai_python.create_async, langchain.astream], ids=["openai", "langchain"])
@pytest.mark.rows(1)
def test_an_answer_longer_than_the_window(walk_engine: Engine, proxy_of: SharedSpillway, ask: Ask) -> None:
    proxy = proxy_of(walk_engine)
    word = walk_engine.words[0]
    job = Job(base=proxy.v1, key=proxy.key, messages=[after(word)], usage=True, max_tokens=LENGTH)
    with no_complaints():
        seen, _ = ask(job, job.messages)
    assert seen.text == spoken(walk_engine.words, word, LENGTH)
    assert seen.finishes == ["length"]
    assert seen.usage is not None
    assert seen.usage["completion_tokens"] == LENGTH
