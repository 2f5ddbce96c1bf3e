"""What of a beginning stays: shapes in which programs open their sessions, none of them taken from one."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.opening import opening, parts_of
from proxy.core.request import Message, text_of
from tests.histories import assistant, call, cost, histories, reduction_of, tool, user

FILE = "I have added these files.\n\nsrc/parser.py\n```\n" + "".join(f"def f{n}(x): ...\n" for n in range(60)) + "```\n"
MAP = "Here is an outline of the repository.\n" + "".join(f"src/mod{n}.py:\n  def run\n" for n in range(40))
LONG = "I looked at it from every side. " * 12


def work(path: str = "src/parser.py") -> list[Message]:
    return [assistant(None, tool_calls=[call(1, arguments=f'{{"path":"{path}"}}')]), tool(1, "read")]


def kept(messages: Sequence[Message], share: float = 3.0, **options: Any) -> list[str]:
    reduction = reduction_of(messages, 0)
    chosen = opening(reduction, parts_of(messages, len(messages)), len(messages), sum(cost(messages)) * share, **options)
    assert all(a["role"] != b["role"] for a, b in pairwise(chosen) if "system" not in (a["role"], b["role"])) or (
        any(a["role"] == b["role"] for a, b in pairwise(messages))
    )
    return [text_of(message) for message in chosen]


@pytest.mark.parametrize(
    "remark",
    [
        "I moved on to another project. Please ignore the files above from now on.",
        "That was only an example. Do not use the code above.",
        "Das war nur ein Beispiel. Bitte ignorieren Sie die obigen Dateien.",
        "Oubliez l'exemple précédent, s'il vous plaît.",
        "请忽略上面的例子。",
    ],
)
def test_an_example_that_was_taken_back_goes_with_the_remark(remark: str) -> None:
    example = [user("Rename the function in demo.py"), assistant(f"Here it is:\n{LONG}"), user(remark), assistant("Ok.")]
    messages = [*example, user(FILE), assistant("Ok."), user("Make f3 faster."), assistant(LONG)]
    assert kept(messages) == [FILE, "Ok.", "Make f3 faster."]


def test_an_example_that_nothing_refers_to_is_not_the_task() -> None:
    example = [user("Rename hello in greeter.py"), assistant("greeter.py is renamed. " + LONG)]
    messages = [*example, user("Fix the bug in src/parser.py"), *work()]
    assert kept(messages) == ["Fix the bug in src/parser.py"]
    assert kept(messages, others=True) == ["Fix the bug in src/parser.py"]


def test_where_there_is_room_more_of_what_is_long_stays_but_no_question_without_its_answer() -> None:
    messages = [user("Hi"), assistant("Hello."), user(MAP), assistant("Ok."), user("Well?"), assistant("Fine.")]
    assert kept(messages) == ["Hi"]
    assert kept(messages, others=True) == ["Hi", "Hello.", MAP]
    messages[3] = assistant(LONG)
    assert kept(messages, others=True)[0] == "Hi"
    assert MAP not in kept(messages, others=True)


def test_files_come_before_what_else_was_set_up() -> None:
    messages = [user(MAP), assistant("Ok."), user(FILE), assistant("Ok."), user("What is f7?"), assistant(LONG)]
    assert kept(messages) == [MAP, "Ok.", FILE, "Ok.", "What is f7?"]
    size = cost(messages)
    room = (size[2] + size[4] + 10) / sum(size)
    assert FILE in kept(messages, room)
    assert MAP not in kept(messages, room)


def test_a_file_that_is_shown_again_later_need_not_stay() -> None:
    newer = FILE.replace("f1(", "g1(")
    messages = [user(FILE), assistant("Ok."), user("Rename f1"), assistant(LONG), user(newer), assistant("Ok.")]
    assert FILE not in kept(messages)
    assert newer in kept(messages)


def test_what_a_program_says_before_the_task_stays_with_it() -> None:
    environment = "<environment>\n<cwd>/srv</cwd>\n</environment>"
    messages = [user(environment), user("Fix src/parser.py"), *work()]
    assert kept(messages) == [environment, "Fix src/parser.py"]


def test_rules_and_tools_that_were_taken_note_of_stay() -> None:
    tools = "These tools are available.\n" + "".join(f"- tool{n}: does {n}\n" for n in range(60))
    rules = "Custom rules:\n1. You must always answer in Dutch."
    messages = [user(tools), assistant("Understood."), user(rules), assistant("Noted."), user("Build it."), *work("x")]
    assert kept(messages) == [tools, "Understood.", rules, "Noted.", "Build it."]
    small = kept(messages, 0.4)
    assert rules in small
    assert "Build it." in small


def test_between_them_the_assistant_says_nothing_that_others_said() -> None:
    again = f"Again.\n{FILE}"
    messages = [user("Fix src/parser.py."), user(FILE), assistant(LONG), user(again), assistant("Ok."), *work()]
    assert kept(messages) == ["Fix src/parser.py.", "Noted.", again]


def test_system_messages_behind_the_first_question_stay() -> None:
    agents = {"role": "system", "content": "Agents that may be called: " + "planner, " * 30}
    messages = [user("Fix src/parser.py"), agents, *work()]
    assert kept(messages) == ["Fix src/parser.py", agents["content"]]


def test_in_a_plain_chat_it_is_the_first_question() -> None:
    messages = [m for n in range(9) for m in (user(f"Question {n}?"), assistant(f"Answer {n}."))]
    assert kept(messages) == ["Question 0?"]


@pytest.mark.no_cover
@given(histories(), st.floats(0, 1), st.booleans(), st.integers(0, 9))
def test_what_stays_is_of_the_history_in_order_and_fits(messages: list[Message], share: float, others: bool, end: int) -> None:
    reduction = reduction_of(messages, 0)
    room = reduction.total * share
    parts = parts_of(messages, len(messages))
    chosen = opening(reduction, parts, end, room, others=others)
    users = [message for message in chosen if message["role"] in ("user", "system")]
    assert sum(cost(users)) <= room + 1e-6
    places = [next((i for i, m in enumerate(messages) if m is message), None) for message in chosen]
    known = [place for place in places if place is not None]
    assert known == sorted(known)
    assert all(place < end for place in known)
    assert opening(reduction, parts_of(messages, len(messages)), end, room, others=others) == chosen
