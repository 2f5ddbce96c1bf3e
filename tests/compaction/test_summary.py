import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.asking import transcripts
from proxy.compaction.extract import extract
from proxy.compaction.source import source_of
from proxy.compaction.summary import block, fenced, in_words, instruction, is_bridge
from proxy.core.history import marks
from proxy.core.history.marks import CLOSE, OPEN, is_summary
from proxy.core.request import Message, text_of
from tests.histories import assistant, call, tool, user

SAYS = "The user wants a blue house; the roof is missing."


def test_an_instruction_names_its_length_and_what_it_is_about() -> None:
    assert "at most 120 words" in instruction(tokens=200)
    assert "at most 40 words" in instruction(tokens=5)
    assert "conversation since yesterday so that" in instruction(tokens=5, what="since yesterday")


def test_a_block_is_marked_and_recognised() -> None:
    made = block(f"  {SAYS}\n", [user("Look at src/house.py, please")], limit=100)
    assert made == f"{marks.OPEN}\n{SAYS}\nIdentifiers: src/house.py\n{marks.CLOSE}"
    assert is_summary(assistant(made))
    assert not is_summary(assistant(SAYS))
    assert not is_summary({"role": "assistant", "content": [{"type": "text", "text": made}]})


def test_identifiers_that_the_summary_has_are_not_repeated() -> None:
    assert "Identifiers" not in block("It is in src/house.py, all of it.", [user("src/house.py")], limit=100)
    assert "Identifiers" not in block(SAYS, [user("src/house.py")], limit=0)


def test_a_bridge_is_one_only_behind_a_summary() -> None:
    messages = [user("a"), assistant(block(SAYS, [], limit=0)), user(marks.BRIDGE), user(marks.BRIDGE)]
    assert [is_bridge(messages, at) for at in range(-1, 5)] == [False, False, False, True, False, False]


def test_a_transcript_tells_who_said_what() -> None:
    messages = [user("Read it."), assistant(None, tool_calls=[call(1)]), tool(1, "text")]
    assert next(transcripts(messages)) == 'USER: Read it.\n\nASSISTANT: read_file({"path":"a.py"})\n\nTOOL: text'


def test_long_messages_lose_their_middle_in_a_transcript() -> None:
    text = next(transcripts([user("a" * 9000 + "b" * 9000)]))
    assert len(text) < 5000
    assert text.startswith("USER: aaa")
    assert "characters left out" in text
    assert text.endswith("bbb")


@given(
    st.lists(st.sampled_from(["<", ">", "<<<", ">>>", "conversation", "end of ", marks.FENCE, marks.FENCE_END]), max_size=12)
)
def test_a_fence_can_not_be_closed_from_inside(pieces: list[str]) -> None:
    inside = "".join(pieces)
    content = str(fenced(inside, tokens=50, before=inside)["content"])
    assert content.count(marks.FENCE) == 1
    assert content.count(marks.FENCE_END) == 1
    start, end = content.index(marks.FENCE), content.index(marks.FENCE_END)
    assert start < end


def test_a_fenced_request_goes_on_from_what_is_known() -> None:
    first = str(fenced("text", tokens=50)["content"])
    assert first.startswith(f"{marks.FENCE}\ntext\n{marks.FENCE_END}\n\nSummarise the conversation between the marks")
    later = str(fenced("text", tokens=50, before="known")["content"])
    assert later.startswith("Summary of what came before:\nknown\n\n")
    assert "together with the summary before it" in later


@pytest.mark.parametrize(
    "message", [{}, {"role": 5}, {"role": "user", "content": 5}, {"role": "assistant", "tool_calls": [5, {"function": 5}]}]
)
def test_odd_messages_are_told_as_well_as_can_be(message: Message) -> None:
    next(transcripts([message]))
    extract([message], source_of([message]), limit=300)
    block(SAYS, [message], limit=100)
    assert text_of(message) == ""


def test_a_compacted_history_in_words_is_its_summary_and_what_came_after_it() -> None:
    said = block("They built a shed.", [{"role": "user", "content": "Never paint it."}], limit=500)
    words = in_words(
        [
            {"role": "user", "content": "Build a shed."},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Now the door."},
        ]
    )
    assert "They built a shed." in words
    assert "Never paint it." in words
    assert "Now the door." in words
    assert OPEN not in words
    assert CLOSE not in words


def test_there_are_always_words() -> None:
    assert in_words([]) == "Nothing was said yet."
    assert "hello" in in_words([{"role": "user", "content": "hello"}])
