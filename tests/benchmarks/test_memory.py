"""The memory benchmark in short: recall brings back what compaction took out, and never costs an overflow."""

from __future__ import annotations

import re

from benchmarks.memory import _total
from benchmarks.memory_data import Dialogue, dialogues
from benchmarks.memory_play import Found, play


def test_the_long_chats_are_of_the_length_they_stand_for() -> None:
    for language in ("en", "cn"):
        single, long = dialogues(language)
        assert len(single) == 15
        assert all(300 < len(dialogue.messages) < 650 for dialogue in long)
        assert sum(len(d.questions) for d in single) == sum(len(d.questions) for d in long)


def test_evidence_is_where_it_was_before_the_chats_were_laid_together() -> None:
    single, long = dialogues("en")
    texts = {
        (asked.question, at): re.sub(r"^\[[\d-]+\] ", "", dialogue.messages[place]["content"])
        for dialogue in single
        for asked in dialogue.questions
        for at, place in enumerate(asked.evidence)
    }
    for dialogue in long:
        for asked in dialogue.questions:
            for at, place in enumerate(asked.evidence):
                content = dialogue.messages[place]["content"]
                assert content.endswith(texts[asked.question, at])


def test_recall_brings_back_what_was_compacted() -> None:
    single, _ = dialogues("en")
    chat = Dialogue("short", single[0].messages, single[0].questions)
    off, on = (play(chat, 2048, recall=recall) for recall in ("off", "auto"))
    assert (off.wrong, on.wrong) == (0, 0)
    assert off.recalled == 0
    assert on.spillway.evidence > max(off.spillway.evidence, on.newest.evidence)
    assert on.spillway.words > off.spillway.words
    assert on.kept / on.shown > 0.6


def test_several_chats_count_together() -> None:
    single, _ = dialogues("cn")
    one = play(Dialogue("x", single[1].messages[:8], single[1].questions[:1]), 2048)
    whole = _total([one, one])
    assert (whole.turns, whole.spillway.of_evidence) == (2 * one.turns, 2 * one.spillway.of_evidence)
    assert isinstance(whole.spillway, Found)
