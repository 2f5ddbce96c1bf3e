"""LangChain's `SummarizationMiddleware`: what it has summarised is all that it sent, though it is far longer than the window."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.clients.installing import Missing, python_packages
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply, ToolCall, qa
from tests.fakes.brains import facts
from tests.proxying import running_proxy

ROOT = Path(__file__).parents[2]
WINDOW = 3072
PARTS = [
    (f"The code of part-{part} is K-{part}. " if part % 4 == 0 else "")
    + f"It was looked at by those who live in house {part} of the street. " * 38
    for part in range(32)
]
"""Of a report, each a fifth of a window; of those with a code, so few that notes on all have room for them."""
ASKED = "Context Extraction Assistant"
"""How the middleware's own request begins."""


@pytest.fixture(scope="module")
def packages() -> Path:
    """LangChain's agents, which the project's environment does without."""
    try:
        return python_packages("langchain>=1.2", "langchain-openai>=1")
    except Missing as missing:
        pytest.skip(str(missing))


def brain(question: Question) -> Reply:
    """Reads the parts it is told to read, tells codes, and writes all that it is shown into a summary."""
    newest = question.messages[-1]
    said = question.last_user.rpartition("\n")[2]
    if question.tools and newest["role"] == "user" and said.startswith("Read part"):
        return Reply(tool_calls=[ToolCall("read", json.dumps({"part": int(said.split()[-1])}))])
    if any(word in question.last_user for word in ("Summarise", "ummary", ASKED, "text that is too long")):
        codes = [f"The code of {name} is {code}" for name, code in facts(question.messages).items()]
        return Reply(text=". ".join(["Houses of a street were looked at", *codes, ""]))
    return qa()(question)


@pytest.mark.rows(1)
def test_a_summary_is_of_all_that_the_client_sent(packages: Path, stream: bool) -> None:
    read = [f"Read part {part}" for part in range(len(PARTS))]
    asked = ["What is the code of harbour?", "What is the code of part-0?"]
    turns = ["Remember: the code of harbour is amber-4471.", *read, *asked]
    with LlamaCppFake([FakeModel("m", WINDOW)], brain) as fake, running_proxy(fake) as proxy:
        job = {"base": f"{proxy.url}/v1", "key": "k", "model": "m", "stream": stream, "parts": PARTS}
        job |= {"turns": turns, "trigger": 3 * WINDOW}
        strict = ["-S", "-W", "error", "-W", "ignore::ResourceWarning"]
        command = [sys.executable, *strict, "-m", "tests.e2e.clients.summarizing_worker", json.dumps(job)]
        path = {"PYTHONPATH": f"{packages}:{ROOT}"}
        done = subprocess.run(command, cwd=ROOT, env=path, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        seen = json.loads(done.stdout)
        assert seen["answers"][-2:] == ["The code of harbour is amber-4471.", "The code of part-0 is K-0."]
        assert len(seen["summaries"]) == 2
        first, second = (facts([{"content": text}]) for text in seen["summaries"])
        told = {"harbour": "amber-4471", "part-0": "K-0", "part-4": "K-4", "part-8": "K-8"}
        assert told.items() <= first.items() <= second.items()
        assert (fake.overflows, fake.invalid_histories) == (0, [])
