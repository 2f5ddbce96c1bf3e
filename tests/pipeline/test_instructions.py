"""Instructions that a tool brought outlast the work that they are for, as what a tool said."""

from typing import Any

import pytest

from proxy.compaction.instructions import kept_texts
from proxy.compaction.policy import PruneLimits
from proxy.compaction.results import results_of
from proxy.core.history.rules import constraints
from proxy.core.history.turns import is_user
from proxy.core.jsontext import dumps
from proxy.core.request import Message, text_of
from tests.fakes import FakeModel, LlamaCppFake, Question, Reply
from tests.histories import assistant, tool, user
from tests.proxying import running_proxy

pytestmark = pytest.mark.slow

TASK = "Go through the open reports one by one and write a reply to each."
MORE = "Keep replies short."
PLACE = "/home/me/.agents/skills/replies"
SENTENCES = (
    "Never mention ticket numbers in a reply.", "Sign every reply with QX.", "Put the date in front, as in 2026-03-01.",
    "Where a report has no address, leave it open and go on.",
)  # fmt: skip
TEXT = "# Replies\n\n" + "\n".join(f"- {each}" for each in SENTENCES)
NUMBERED = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(TEXT.split("\n"), 1))


def called(number: int, name: str, /, **arguments: Any) -> Message:
    function = {"name": name, "arguments": dumps(arguments).decode()}
    return assistant(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def brought(name: str, text: str, /, **arguments: Any) -> list[Message]:
    return [called(900, name, **arguments), tool(900, text)]


def as_text(name: str, text: str) -> list[Message]:
    call = dumps({"name": name, "arguments": {"name": "replies"}}).decode()
    return [assistant(f"<tool_call>{call}</tool_call>"), user(f"<tool_result tool_name='{name}'>{text}</tool_result>")]


FORMS: dict[str, list[Message]] = {
    "opencode": brought("skill", f'<skill_content name="replies">\n{TEXT}\n</skill_content>', name="replies"),
    "claude": [*brought("Skill", "Launching skill: replies", skill="replies"), user(f"Base directory for this skill: {PLACE}\n\n{TEXT}")],
    "librechat": [*brought("skill", 'Skill "replies" loaded. Follow the instructions below.', x="replies"), user(TEXT)],
    "codex": brought("shell", TEXT, command=["bash", "-lc", f"sed -n '1,200p' {PLACE}/SKILL.md"]),
    "hermes": brought("skill_view", dumps({"success": True, "content": TEXT}).decode(), name="replies"),
    "guide": brought("Read", NUMBERED, file_path="/work/AGENTS.md"),
    "as text": as_text("use_skill", TEXT),
}  # fmt: skip


def brain(question: Question) -> Reply:
    if asks_summary(question):
        return Reply(text="The agent goes through the open reports one by one and writes a reply to each of them.")
    return Reply(text="I go on with the next one.")


def step(number: int, words: int) -> list[Message]:
    """Read a report, and say much about it: masking results alone makes no room for that."""
    said = " ".join(f"the customer says {number * 7 + n} went wrong" for n in range(words // 6))
    return [{**called(number, "read_report", path=f"reports/{number}.txt"), "content": said}, tool(number, f"{number}: {said}")]


def asks_summary(question: Question) -> bool:
    return "Summarise the conversation" in question.last_user


def forwarded(fake: LlamaCppFake) -> list[Message]:
    questions = [Question(chat.json["messages"]) for chat in fake.chats()]
    return [*[each.messages for each in questions if not asks_summary(each)][-1]]


def after_steps(messages: list[Message], window: int = 8192, **settings: Any) -> list[Message]:
    """What is forwarded after so many more steps that the history was summarised more than once."""
    with LlamaCppFake([FakeModel("m", window)], brain) as fake, running_proxy(fake, **settings) as proxy:
        for number in range(24):
            messages = [*messages, *step(number, window // 20)]
            assert proxy.chat({"model": "m", "messages": messages, "max_tokens": 200}).status_code == 200
        assert not fake.invalid_histories
        assert len(forwarded(fake)) < len(messages)
        return forwarded(fake)


def kept(messages: list[Message]) -> list[str]:
    return list(kept_texts(results_of(messages), PruneLimits(protect_newest=0, minimum_gain=0, instructions=1000)).values())


def count(sent: list[Message], text: str) -> int:
    return sum(text in text_of(message) for message in sent)


@pytest.mark.parametrize("window", [4096, 8192, 16384])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.rows(3)
def test_instructions_outlast_forty_five_steps(form: str, window: int) -> None:
    messages, sent = [{"role": "system", "content": "You are an agent."}, user(TASK), *FORMS[form]], list[Message]()
    with LlamaCppFake([FakeModel("m", window)], brain) as fake, running_proxy(fake) as proxy:
        for number in range(45):
            messages += [assistant("Half of them are done."), user(MORE)] if number == 20 else []
            messages += step(number, window // 40)
            answer = proxy.chat({"model": "m", "messages": messages, "max_tokens": 200})
            assert answer.status_code == 200, answer.text
            sent = forwarded(fake)
            lines = [m for m in sent if all(each in text_of(m) for each in SENTENCES)]
            assert len(lines) == 1, (number, "\n".join(map(str, sent)))
            assert lines[0]["role"] in ("tool", "user")
        assert not fake.invalid_histories
        assert all(each in "\n".join(map(text_of, sent)) for each in (TASK, MORE))
        assert len(sent) < len(messages) / 2


def test_the_newest_version_of_instructions_replaces_older_ones() -> None:
    old = brought("skill", TEXT, name="replies")
    new = [called(901, "skill", name="replies"), tool(901, TEXT.replace("QX", "ZV"))]
    sent = after_steps([user(TASK), *old, *step(800, 400), *new])
    assert count(sent, "Sign every reply with ZV.") == 1
    assert count(sent, "Sign every reply with QX.") == 0


def test_instructions_that_are_called_again_are_there_once() -> None:
    again = [
        message
        for number in range(901, 905)
        for message in (called(number, "skill", name="replies"), tool(number, TEXT), *step(number, 300))
    ]
    assert count(after_steps([user(TASK), *brought("skill", TEXT, name="replies"), *again]), SENTENCES[0]) == 1


def test_of_long_instructions_what_they_demand_stays() -> None:
    long = "\n".join((*(f"It is good to know that case {n} came up in spring and was closed soon." for n in range(300)), TEXT))
    sent = after_steps([user(TASK), *brought("skill", long, name="replies")])
    assert all(count(sent, each) >= 1 for each in SENTENCES[:2])  # a passage with them may be recalled as well
    assert count(sent, "Call skill again where you need them.]") == 1


def test_results_of_tools_that_are_named_are_never_shortened() -> None:
    """Names are globs; an address that an ordinary tool returned stays word for word."""
    address = "The archive is at Elmstreet 12. " + "It has many rooms, and each has a key. " * 30
    asked = [user(TASK), *brought("address_book", address, city="Ghent")]
    assert count(after_steps(asked), address) == 0
    assert count(after_steps(asked, limits={"keep": ("address_*",)}), address) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("load_skill", {"name": "replies"}, TEXT),
        ("mcp__skills__get_skill", {"id": "team:replies"}, TEXT),
        ("activate_skill", {"name": "replies"}, f"<activated_skill>\n{TEXT}\n</activated_skill>"),
        ("read_file", {"path": ".github/copilot-instructions.md"}, TEXT),
        ("text_editor", {"command": "view", "path": "/work/CONVENTIONS.md"}, TEXT),
        ("bash", {"command": "cd pkg && cat CLAUDE.md .cursorrules"}, TEXT),
        ("filesystem__read_text_file", {"path": "docs/runbooks/replies.md"}, TEXT),
        ("docs_lookup", {"topic": "replies"}, f"# Runbook: replies\n{TEXT}"),
        ("lookup", {}, f"---\nname: replies\ndescription: how to reply\n---\n{TEXT}"),
    ],
)
def test_instructions_are_known_by_where_they_come_from(name: str, arguments: dict[str, Any], text: str) -> None:
    assert kept(brought(name, text, **arguments)) == [text]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("list_skills", {}, TEXT),
        ("skills_tool", {"method": "search", "query": "replies"}, TEXT),
        ("skill", {"name": "replies"}, "Error: no such skill. Available are: reports, letters."),
        ("grep", {"pattern": "QX", "path": "AGENTS.md"}, TEXT),
        ("bash", {"command": "sed -i s/QX/ZV/ CLAUDE.md"}, TEXT),
        ("bash", {"command": "cat notes.txt >> AGENTS.md"}, TEXT),
        ("write_file", {"path": "SKILL.md"}, TEXT),
        ("web_fetch", {"url": "https://example.com"}, f"# Instructions\n{TEXT}"),
        ("read_file", {"path": "src/agents.py"}, TEXT),
    ],
)
def test_what_brings_none_is_shortened_like_the_rest(name: str, arguments: dict[str, Any], text: str) -> None:
    assert not kept(brought(name, text, **arguments))


def test_parts_of_a_file_are_kept_beside_each_other_until_all_of_it_is_read() -> None:
    parts = [*brought("read", "Sign with QX.", path="AGENTS.md", offset=1), *brought("read", TEXT, path="AGENTS.md", offset=9)]
    assert kept(parts) == ["Sign with QX.", TEXT]
    assert kept([*parts, *brought("bash", "All of it.", command="cat AGENTS.md")]) == ["All of it."]


def test_what_a_skill_demands_is_no_rule_of_the_user() -> None:
    command = "<command-message>replies is running…</command-message>\n<command-name>/replies</command-name>"
    typed = user(f"{command}\n\nBase directory for this skill: {PLACE}\n\n{TEXT}\n\nARGUMENTS: You must never write to Ann.")
    assert constraints([FORMS["claude"][-1], typed], limit=1000) == []  # nor are its arguments, which a program put there
    assert not is_user(FORMS["claude"][-1])
    assert is_user(typed)
