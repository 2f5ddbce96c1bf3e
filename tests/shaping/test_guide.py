"""Guide files in prompts: where they are, as the programs paste them, and what is kept of them."""

import re
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.shaping.agent import guided, guides_in
from tests.histories import assistant, user

RULES = ("You MUST run `make lint` before each commit.", "NEVER edit files under vendor/.")
GUIDE = "\n".join(
    (
        "# Project guide",
        "",
        "## Commands",
        *("", "- Run the tests: `make test`", "```sh", "make serve PORT=9", "```"),
        *(f"## Part {n}\n\nPart {n} does many things, of which this tells at length." for n in range(90)),
        "",
        "## Rules",
        "",
        *(f"- {rule}" for rule in RULES),
        "",
        "The end of the guide.",
    )
)
ASK = "Mend the parser, and obey AGENTS.md."


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def opencode(guide: str) -> list[dict[str, Any]]:
    skills = "\nSkills provide special instructions.\n<available_skills></available_skills>"
    return [system(f"You are an agent.\nInstructions from: /home/me/work/AGENTS.md\n{guide}\n{skills}"), user(ASK)]


def qwen(guide: str) -> list[dict[str, Any]]:
    text = f"You are an agent.\n\n---\n\n--- Context from: AGENTS.md ---\n{guide}\n--- End of Context from: AGENTS.md ---\n\n# auto memory"
    return [system(text), user(ASK)]


def codex(guide: str) -> list[dict[str, Any]]:
    pasted = f"# AGENTS.md instructions for /home/me/work\n\n<INSTRUCTIONS>\n{guide}\n</INSTRUCTIONS>"
    environment = "<environment_context>\n  <cwd>/home/me/work</cwd>\n</environment_context>"
    return [
        system("You are an agent."),
        {"role": "user", "content": [{"type": "text", "text": pasted}, {"type": "text", "text": environment}]},
        user(ASK),
    ]


def claude(guide: str) -> list[dict[str, Any]]:
    told = "Contents of /home/me/work/CLAUDE.md (project instructions, checked into the codebase):"
    note = "      IMPORTANT: this context may or may not be relevant to your tasks."
    text = f"<system-reminder>\n# claudeMd\nCode rules are below.\n\n{told}\n\n{guide}\n# currentDate\nToday's date is 2026-11-22.\n\n{note}\n</system-reminder>\n\n{ASK}"
    return [system("You are an agent."), user(text)]


FORMS = [opencode, qwen, codex, claude]


def text(messages: Any) -> str:
    contents = (message["content"] for message in messages)
    return "\n".join(c if isinstance(c, str) else "\n".join(part["text"] for part in c) for c in contents)


@pytest.mark.parametrize("form", FORMS)
def test_a_guide_is_found_as_each_program_pastes_it_and_nothing_else_is_touched(form: Any) -> None:
    given_messages = form(GUIDE)
    short = guided(given_messages, 300)
    assert len(text(short)) < len(text(given_messages)) - len(GUIDE) + 1300
    # Around it not a letter is another one.
    (guide,) = guides_in(text(short))
    assert text(short)[: guide.begins] + GUIDE + text(short)[guide.ends :] == text(given_messages)
    for line in (*RULES, "`make test`", "make serve PORT=9", "# Project guide"):
        assert line in text(short)
    assert re.search(r"\[\d+ of \d+ lines of this guide are left out here\. Read \S+ where", text(short))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [None, 10_000])
def test_a_guide_that_has_room_stays(form: Any, tokens: int | None) -> None:
    messages = form(GUIDE)
    assert guided(messages, tokens) is messages


@pytest.mark.parametrize("form", FORMS)
@given(
    lines=st.lists(st.sampled_from(["", "# Head", "A line. " * 9, "NEVER do it.", "```", "`run`", "行く川" * 30]), max_size=90),
    tokens=st.integers(0, 500),
)
def test_a_guide_within_bounds_stays_within_them(form: Any, lines: list[str], tokens: int) -> None:
    messages = form("\n".join(lines))
    once = guided(messages, tokens)
    assert guided(once, tokens) == once
    (guide,) = [text(once)[each.begins : each.ends] for each in guides_in(text(once))] or [""]
    assert len(guide.encode()) <= max(tokens * 4, 600)


def test_several_guides_share_the_room() -> None:
    small = "Use tabs."
    both = f"Instructions from: /a/AGENTS.md\n{GUIDE}\nInstructions from: /b/AGENTS.md\n{small}"
    short = text(guided([system(both)], 300))
    assert small in short
    assert [guide.path for guide in guides_in(short)] == ["/a/AGENTS.md", "/b/AGENTS.md"]
    assert len(short) < 1400


@pytest.mark.parametrize("opening", ["Instructions from: /a/AGENTS.md", "Contents of /a/CLAUDE.md:"])
def test_the_users_own_words_are_no_guide(opening: str) -> None:
    said = f"Look at this.\n{opening}\n\n{GUIDE}"
    messages = [system("You are an agent."), user(said)]
    assert guided(messages, 100) is messages
    reminded = [user(f"<system-reminder>\nNothing.\n</system-reminder>\n{opening}\n\n{GUIDE}")]
    assert guided(reminded, 100) is reminded


def test_what_comes_after_the_first_answer_is_no_guide() -> None:
    messages = [user("hi"), assistant("Hello."), *claude(GUIDE)[1:]]
    assert guided(messages, 100) is messages


@pytest.mark.parametrize("piece", ["Instructions from: a\n", "Contents of a:\n\n", "\n", "--- Context from: a ---\n"])
def test_it_takes_no_longer_than_the_text_is_long(piece: str) -> None:
    def once(times: int) -> float:
        messages = [system("Instructions from: a\n" + piece * times)]
        begun = process_time()
        guided(messages, 100)
        return process_time() - begun

    def seconds(times: int) -> float:
        """The least of some: a collector of garbage may come in between."""
        return min(once(times) for _ in range(3))

    seconds(100)
    assert seconds(8000) < 60 * max(seconds(1000), 0.002)
