"""Rules of the user survive a summary word for word."""

from __future__ import annotations

from proxy.compaction import summary
from proxy.core.history.constraints import constraints
from proxy.core.history.marks import HEADING


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_sentences_that_state_a_rule_are_taken_as_they_are() -> None:
    found = constraints(
        [user("Hello. You must never touch the folder legacy! Thanks."), user("Use only tabs.\nI like tea.")], limit=500
    )
    assert found == ["You must never touch the folder legacy!", "Use only tabs."]
    assert constraints([user("Answers have at most 50 words.")], limit=500) == ["Answers have at most 50 words."]


def test_what_others_say_is_no_rule() -> None:
    messages = [{"role": "assistant", "content": "You must rest."}, {"role": "tool", "content": "Never do that."}]
    assert constraints(messages, limit=500) == []


def test_the_newest_are_kept_within_the_limit_once_each() -> None:
    rules = [f"Rule {number} must always hold." for number in range(50)]
    found = constraints([user(" ".join(rules)), user(rules[3])], limit=100)
    assert found[-1] == rules[3]
    assert found[-2] == rules[49]
    assert sum(map(len, found)) <= 100
    assert len(set(found)) == len(found)


def test_they_survive_that_summaries_are_merged() -> None:
    first = summary.block("We talked.", [user("The port must be 9000.")], limit=400)
    assert f"{HEADING}\n- The port must be 9000." in first
    second = summary.block("We talked more.", [{"role": "assistant", "content": first}, user("Well.")], limit=400)
    assert "- The port must be 9000." in second
    assert second.count(HEADING) == 1
    assert first != second


def test_long_text_without_a_sentence_takes_no_time() -> None:
    assert constraints([user("x" * 2_000_000), user("must " * 400_000)], limit=300) != [""]
