"""The tool with which a model searches the conversation: its definition, and what a call of it asks for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from proxy.core.piece import CallPart, arguments_of

NAME = "search_conversation"
_LONGEST = 1_000
NOTHING_LOST = "Nothing was taken out of this conversation: all of it is above."
NOTHING_FOUND = "Nothing was found beyond what is above. Try other words that may have been used then, or ask the user."
NO_ROOM = "No room is left for what would be found. Answer with what is above."
NO_MORE = "No more searches for this answer. Answer now with what is above, or ask the user."
NO_QUERY = 'The arguments hold no query. Call the tool with {"query": "words to look for"}.'


def unused_name(others: Collection[str]) -> str:
    """The tool's name, which none of the client's tools has."""
    name, number = NAME, 1
    while name in others:
        number += 1
        name = f"{NAME}_{number}"
    return name


def definition(name: str) -> dict[str, Any]:
    """The tool as the chat completions API has it. The same for ever: prompts begin with it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "Search what was said earlier in this conversation, word for word. Use it when something is "
            "needed that was said before and is not in the messages above, which may have been shortened.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words that were likely used then: names, terms."}
                },
                "required": ["query"],
            },
        },
    }


def wanted(call: CallPart) -> str:
    """Return the query of a call; empty if it can't be parsed."""
    query = arguments_of(call.arguments).get("query")
    return query.strip()[:_LONGEST] if isinstance(query, str) else ""


def round_of(text: str, calls: Sequence[CallPart], results: Sequence[str], ids: Sequence[str]) -> list[dict[str, Any]]:
    """A model's calls with their results, as messages, behind what it said before them."""
    requested = [
        {"id": each, "type": "function", "function": {"name": call.name, "arguments": _valid(call)}}
        for call, each in zip(calls, ids, strict=True)
    ]
    answers = [
        {"role": "tool", "tool_call_id": each, "content": result} for each, result in zip(ids, results, strict=True)
    ]
    return [{"role": "assistant", "content": text or None, "tool_calls": requested}, *answers]


def _valid(call: CallPart) -> str:
    """The arguments as they came, where they are what backends take."""
    return call.arguments if arguments_of(call.arguments) else "{}"
