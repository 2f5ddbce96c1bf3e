from __future__ import annotations

import base64
import struct
from dataclasses import replace
from typing import Any

from proxy.compaction.ladder import drop_duplicates
from proxy.compaction.results import NOTE
from proxy.core.request import Message
from tests.histories import assistant, call, reduction_of, tool, user

LONG = "some text that is long enough to be worth a pointer in its place " * 4


def read(number: int, text: str, arguments: str = "{}", name: str = "read") -> list[Message]:
    return [assistant(None, tool_calls=[call(number, name, arguments)]), tool(number, text)]


def shortened(messages: list[Message]) -> list[Message]:
    return list(drop_duplicates(replace(reduction_of(messages, 0), tail=len(messages))).messages)


def changed(messages: list[Message]) -> list[int]:
    return [n for n, (a, b) in enumerate(zip(messages, shortened(messages), strict=True)) if a is not b]


def test_of_equal_results_the_newest_stays() -> None:
    messages = [
        user("a"),
        *read(1, LONG, '{"p":1}'),
        *read(2, LONG, '{"p":2}', "cat"),
        *read(3, "other " + LONG, '{"p":3}'),
        *read(4, LONG, '{"p":4}'),
        assistant("b"),
    ]
    assert changed(messages) == [2, 4]
    done = shortened(messages)
    assert done[4]["content"] == f"{NOTE}: a later call of cat returned the same, see there.]"
    assert {**done[4], "content": 0} == {**messages[4], "content": 0}


def test_a_call_that_was_made_again_supersedes_the_older_result() -> None:
    messages = [
        user("a"),
        *read(1, "old " + LONG, '{"p":1}'),
        *read(2, "other file " + LONG, '{"p":2}'),
        *read(3, "other tool " + LONG, '{"p":1}', "stat"),
        *read(4, "new " + LONG, '{"p":1}'),
    ]
    assert changed(messages) == [2]
    assert shortened(messages)[2]["content"].startswith(f"{NOTE}: read was called again with the same arguments")


def test_a_pointer_never_leads_to_a_result_that_is_gone() -> None:
    """What equals a superseded result is not dropped for it; a newest result may itself be repeated further on."""
    messages = [
        user("a"),
        *read(1, "one " + LONG, '{"p":1}'),
        *read(2, "two " + LONG, '{"p":2}'),
        *read(3, "two " + LONG, '{"p":1}'),
        *read(4, "three " + LONG, '{"p":1}'),
        assistant("b"),
    ]
    assert changed(messages) == [2, 6]


def test_answers_to_one_batch_do_not_supersede_each_other_before_they_are_read() -> None:
    batch = [user("a"), assistant(None, tool_calls=[call(1), call(2)]), tool(1, "one " + LONG), tool(2, "two " + LONG)]
    assert changed(batch) == []
    assert changed([*batch, assistant("b")]) == [2]


def test_results_without_known_arguments_are_superseded_by_equals_only() -> None:
    first, second = (f"See <tool_result tool_name='x'>{n} {LONG}</tool_result> ok" for n in (1, 2))
    messages = [user("a"), *(m for t in (first, second, first) for m in (user(t), assistant("b"))), user("c")]
    assert changed(messages) == [1]
    content = shortened(messages)[1]["content"]
    assert content.startswith(f"See <tool_result tool_name='x'>{NOTE}")
    assert content.endswith("</tool_result> ok")


def test_the_newest_user_message_and_the_pinned_ones_stay() -> None:
    text = f"See [TOOL_RESULT]{LONG}[/TOOL_RESULT]"
    messages = [user(text), assistant("b"), user(text), assistant("c"), user(text), *read(1, LONG)]
    assert changed(messages) == [2]


def test_short_results_and_notes_stay() -> None:
    messages = [user("a"), *read(1, "ok", '{"p":1}'), *read(2, "ok"), *read(3, NOTE + "]"), *read(4, NOTE + "]")]
    assert changed(messages) == []


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    return "data:image/png;base64," + base64.b64encode(head + bytes(900)).decode()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_all_but_the_newest_images_leave_a_note() -> None:
    text = {"type": "text", "text": "What is this?", "x": 1}
    far = image("https://example.org/" + "far" * 100)
    messages = [
        {"role": "user", "content": [image(png(9, 9))]},
        assistant("?"),
        {"role": "user", "content": [text, image(png(640, 480)), far], "id": 7},
        assistant(None, tool_calls=[call(1, "screenshot")]),
        {**tool(1, ""), "content": [image(png(1, 2))]},
        {"role": "user", "content": [image(png(3, 4))]},
        assistant("."),
        {"role": "user", "content": [image(png(5, 6))]},
    ]
    assert changed(messages) == [2]
    done = shortened(messages)[2]
    assert done["id"] == 7
    assert done["content"][0] is text
    assert [part["text"] for part in done["content"][1:]] == [
        "[An image was here and was left out to save room.]",
        "[An image was here and was left out to save room.]",
    ]


def test_the_newest_message_keeps_all_of_its_images() -> None:
    messages = [user("a"), assistant("b"), {"role": "user", "content": [image(png(5, 6)) for _ in range(9)]}]
    assert changed(messages) == []
