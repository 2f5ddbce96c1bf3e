"""The place of the summary in the prompt that is sent."""

import pytest

from proxy.backends.profile import RepairRules
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.layout import beginning_of_answer, laid_out
from proxy.core.history.marks import BRIDGE, CLOSE, EARLIER, HEADING, NOTED, OPEN, READ
from proxy.core.request import Message, Request
from proxy.emulation.offer import Offer
from proxy.prompt import Prompt
from proxy.shaping.repair import violates


def said(script: str) -> list[Message]:
    """Messages of a script such as `u:hello a:hi`, with blocks for `1`, `2` and a bridge for `bridge`."""
    words = {
        "1": f"{OPEN}\none\n{CLOSE}", "r": f"{OPEN}\none\n{HEADING}\n- Be brief.\n{CLOSE}", "bridge": BRIDGE, "noted": NOTED,
        "read": READ,
    }  # fmt: skip
    words |= {
        "2": f"{words['1']}\n{OPEN}\ntwo\n{CLOSE}",
        "one": f"{OPEN}\n{EARLIER}\none\n{CLOSE}",
        "two": f"{OPEN}\n{EARLIER}\ntwo\n{CLOSE}",
    }
    words |= {"one+res": f"{words['one']}\n\nres", "both+res": f"{words['one']}\n{OPEN}\ntwo\n{CLOSE}\n\nres"}
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    parts = (part.split(":", 1) for part in script.split(" ") if part)
    return [{"role": roles[role], "content": words.get(text, text)} for role, text in parts]


SENT = "u:task a:Sure.\nMore. u:old a:gone u:q1 a:a1 u:q2"


@pytest.mark.parametrize(
    ("history", "place", "laid"),
    [
        ("u:task a:1 u:q1 a:a1 u:q2", 4, "u:task a:Sure. u:q1 a:a1 u:one a:read u:q2"),
        ("u:task a:1 u:q1 a:a1 u:q2 a:a2 u:q3", 4, "u:task a:Sure. u:q1 a:a1 u:one a:read u:q2 a:a2 u:q3"),
        ("u:task a:1 u:bridge a:a0 u:q1", 4, "u:task a:a0 u:one a:read u:q1"),
        ("u:task a:ok u:1 a:noted u:q1 a:a1 u:q2", 6, "u:task a:ok u:q1 a:a1 u:one a:read u:q2"),
        ("u:task a:2 u:q1 a:a1 u:q2", 4, "u:task a:Sure. u:one a:read u:q1 a:a1 u:two a:read u:q2"),
        ("u:1 a:noted u:q1 a:a1 u:q2", 4, "u:q1 a:a1 u:one a:read u:q2"),
        ("u:task a:1 u:bridge a:a0 t:r0 a:a1 t:res a:a2 t:r2", 6, "u:task a:a0 t:r0 a:a1 t:one+res a:a2 t:r2"),
        ("u:2 a:noted u:q1 a:a0 t:res", 4, "u:q1 a:a0 t:both+res"),
        ("u:task a:1 u:q1", 2, ""),
        ("u:task a:1 u:q1 a:a1", 4, ""),
        ("u:task a:1 u:q1 a:a1 a:a2", 4, ""),
        ("u:other a:1 u:q1 a:a1 u:q2", 4, ""),
        ("u:1 a:a0 u:q1", 2, ""),
        ("u:task a:2 u:bridge a:a0 u:q1", 4, ""),
        ("u:task a:ok u:q1", 2, ""),
    ],
)
def test_a_summary_follows_the_tail_if_roles_alternate_there(history: str, place: int, laid: str) -> None:
    system = said("s:help")
    began, step = beginning_of_answer(said(history), said(SENT)), "t:" in laid
    messages = laid_out(system, said(history), place, began, step=step)
    assert messages == [*system, *said(laid or history)]
    assert not laid or "t:" in laid or not violates(messages, "alternate")


@pytest.mark.parametrize("begins", ["<think>", "[CALL]", "```", ""])
def test_an_answer_that_may_open_what_it_does_not_close_is_not_begun(begins: str) -> None:
    history = said("u:task a:1 u:q1 a:a1 u:q2")
    sent = [history[0], {"role": "assistant", "content": f"{begins}\nSo. More."}, *history[2:]]
    laid = laid_out([], history, 4, beginning_of_answer(history, sent))
    assert (laid == history) == bool(begins)


@pytest.mark.parametrize("system", ["", "s:help"])
def test_rules_are_at_the_end_of_the_system_message(system: str) -> None:
    stated = f"{HEADING}\n- Be brief."
    messages = laid_out(said(system), said("u:task a:r u:q1 a:a1 u:q2"), 4, "Sure.")
    assert messages[0] == {"role": "system", "content": f"help\n\n{stated}" if system else stated}
    assert messages[1:] == said("u:task a:Sure. u:q1 a:a1 u:one a:read u:q2")


def test_rules_do_not_have_the_descriptions_of_tools_read_again() -> None:
    system, ruled, bare = said("s:help"), said("u:task a:r u:q1 a:a1 u:q2"), said("u:task a:1 u:q1 a:a1 u:q2")
    assert laid_out(system, ruled, 4, "Sure.", tools=True) == [*system, *ruled]
    assert laid_out(system, bare, 4, "Sure.", tools=True) == laid_out(system, bare, 4, "Sure.")


@pytest.mark.parametrize("offer", [None, Offer({})])
def test_tools_described_in_the_prompt_are_tools_too(offer: Offer | None) -> None:
    history, system = said("u:task a:r u:q1 a:a1 u:q2"), said("s:help")
    found = Checkpoint(
        scope="", digest=b"", covered=2, replacement=(*history[:2],), tokens_before=0, tokens_after=0, kind="compacted", created=0,
        place=4, began="Sure.",
    )  # fmt: skip
    prompt = Prompt(
        request=Request(body={}), offer=offer, builtin={}, system=system, sent=history, shown=history, digests=[], links=[],
        as_received=True, fields={}, rules=RepairRules(), checkpoint=found,
    )  # fmt: skip
    assert (prompt.messages[0] == system[0]) is (offer is not None)


def test_rules_are_a_part_of_their_own_where_the_system_message_has_parts() -> None:
    parts = [{"type": "text", "text": "help"}]
    first = laid_out([{"role": "system", "content": parts}], said("u:task a:r u:q1 a:a1 u:q2"), 4, "Sure.")[0]
    assert [part["text"] for part in first["content"]] == ["help", "\n\n", f"{HEADING}\n- Be brief."]


@pytest.mark.parametrize("text", ["", " \n", "…", "   ."])
def test_an_answer_without_a_sentence_has_no_beginning(text: str) -> None:
    """An agent's answer is often only calls."""
    history = said("u:task a:1 u:q1 a:a1 u:q2")
    assert beginning_of_answer(history, [history[0], {"role": "assistant", "content": text}]) in ("", text)
