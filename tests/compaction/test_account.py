"""What an account finds where a conversation has no tools, or such as it does not know."""

from typing import Any

import pytest

from proxy.compaction.account import account
from tests.histories import assistant, call, tool, user

BOXES = "So far:\n- [x] parser\n- [ ] docs\n- [ ] tests"


@pytest.mark.parametrize(
    ("messages", "answer", "expected"),
    [
        ([], "", ["Done: 7 tokens of the answer"]),
        ([user("Go.")], "One two", ["Done: 7 tokens of the answer (up to “…One two”)", "Open: your request “Go.”"]),
        ([user("Go.")], BOXES, ["Open: your request “Go.” · docs · tests"]),
        ([user("a"), assistant(BOXES), user("Go.")], "", ["Open: your request “Go.” · docs · tests"]),
        ([user("a"), assistant(BOXES), user("Go.")], "- [x] docs", ["Open: your request “Go.”"]),
        *(
            ([user("Go."), assistant(None, tool_calls=[call(1, "plan", arguments)]), tool(1, "")], "", expected)
            for arguments, expected in (
                ('{"plan": [{"step": "docs", "status": "pending"}, 1]}', ["Open: your request “Go.” · docs"]),
                ('{"plan": [{"step": "docs", "status": "completed"}]}', ["Open: your request “Go.”"]),
                ('{"status": "pending"', ["Open: your request “Go.”"]),
                ('["status"]', ["Open: your request “Go.”"]),
                ('{"file": "a b.py https://example.org/x.py", "n": 12.50}', ["1 tool call (plan 1) · plan({", "→ nothing", "Files: b.py"]),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_found(messages: list[dict[str, Any]], answer: str, expected: list[str]) -> None:
    lines = account(messages, answer, tokens=7, window=0, steps=(), detailed=False)
    assert all(any(part in line for line in lines) for part in expected), lines
    assert len({line.split(":")[0] for line in lines}) == len(lines) <= 3
