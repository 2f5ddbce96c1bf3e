"""An agent of LangChain's with `SummarizationMiddleware`. A program: a job in JSON, and what was answered to each of its turns.

It runs in an environment of its own, where a warning is an error.
"""

import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI


def talk(job: dict[str, Any]) -> dict[str, Any]:
    """What was answered to each turn, and the summaries that the middleware put in the place of older messages."""
    model = ChatOpenAI(model=job["model"], base_url=job["base"], api_key=job["key"], streaming=job["stream"])

    def read(part: int) -> str:
        """Read a part of the report."""
        return str(job["parts"][part])

    middleware = SummarizationMiddleware(
        model, trigger=("tokens", job["trigger"]), keep=("messages", 4), trim_tokens_to_summarize=None
    )
    agent = create_agent(model, [read], middleware=[middleware])
    messages: list[Any] = []
    answers: list[str] = []
    summaries: dict[str, None] = {}
    for said in job["turns"]:
        messages = agent.invoke({"messages": [*messages, HumanMessage(said)]})["messages"]
        answers.append(messages[-1].text)
        summaries |= {each.text: None for each in messages if each.additional_kwargs.get("lc_source")}
    return {"answers": answers, "summaries": list(summaries)}


if __name__ == "__main__":
    json.dump(talk(json.loads(sys.argv[1])), sys.stdout)
