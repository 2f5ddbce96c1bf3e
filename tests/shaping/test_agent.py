"""The short prompt that stands for a coding agent's own."""

import pytest

from proxy.shaping.agent import is_agent, shortened_prompt
from tests.agent_prompts import ENVIRONMENT, PROMPT, TOOLS
from tests.shaping.test_guide import GUIDE

NAMES = tuple(str(tool["function"]["name"]) for tool in TOOLS)
FILLER = "Something is said here at length that nobody needs. " * 80


def short(text: str, window: int = 16_384) -> str:
    made = shortened_prompt(text, window)
    assert made is not None
    return made


def test_rules_are_kept_in_their_order_and_the_strictest_where_not_all_have_room() -> None:
    rules = [f"NEVER touch part {n} of it." for n in range(9)] + [f"You MUST do {n}." for n in range(40)]
    made = short("You are crafter, a coding agent.\n" + FILLER + "\n".join(reversed(rules)), window=4096)
    kept = [rule for rule in reversed(rules) if f"- {rule}\n" in f"{made}\n"]
    assert [line.removeprefix("- ") for line in made.split("Rules:\n")[1].split("\n\n")[0].split("\n")] == kept
    assert set(rules[:9]) <= set(kept) < set(rules)


@pytest.mark.parametrize(
    "line",
    [
        *ENVIRONMENT,
        " - Primary working directory: /home/me/work",
        *(" - Is a git repository: true", "Current branch: main", "My operating system is: linux"),
        *("- Operating System: macOS", "cwd: /home/me"),
    ],
)
def test_what_is_told_of_the_environment_is_kept(line: str) -> None:
    assert line.strip() in short(f"You are crafter.\n{FILLER}\n{line}\n{FILLER}")


def test_guides_are_kept_with_what_opens_and_closes_them() -> None:
    guides = (
        f"--- Context from: AGENTS.md ---\n{GUIDE}\n--- End of Context from: AGENTS.md ---",
        f"Instructions from: /home/me/AGENTS.md\n{GUIDE}",
    )
    for guide in guides:
        made = short(f"You are crafter.\n{FILLER * 3}\n{guide}\n\nSkills provide help.")
        assert made.endswith(guide)
        assert made.count("Project guide") == 1


@pytest.mark.parametrize(
    ("begins", "named"),
    [
        ("You are crafter, an agent.", "You are crafter, a coding agent that"),
        ("You are Qwen Code, an interactive CLI agent", "You are Qwen Code, a coding agent that"),
        ("You are a Claude agent, built on it.", "You are a coding agent that"),
        ("Help the user.", "You are a coding agent that"),
    ],
)
def test_the_agent_keeps_its_name(begins: str, named: str) -> None:
    assert short(f"{begins}\n{FILLER}").startswith(named)


def test_who_is_an_agent() -> None:
    assert is_agent(PROMPT, NAMES)
    assert not is_agent(PROMPT, ("webfetch", "get_weather", "bash"))
    assert not is_agent(PROMPT[:1000], NAMES)
    assert not is_agent("You are a poet. " * 300, NAMES)
    # What comes late in a prompt of the user's own does not make it an agent's.
    assert not is_agent("You are a poet. " * 300 + PROMPT, NAMES)
