"""What a model wrote is believed only as far as code can tell that it is a summary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.source import NOTHING, Source, source_of
from proxy.compaction.summary import focused, instruction
from proxy.compaction.verification import LoopWatch, SummaryReply, checked, loops
from tests.histories import assistant, call, tool, user

SAYS = "The user wants a blue house; the roof is missing."
TALK = [
    user("My sister Ingrid moved to Bergen in 2019 and works at the harbour there."),
    assistant("Bergen is a lovely place, with its wooden houses along the quay and a lot of rain in autumn."),
    user("Her phone number is 555-0142, and her dog is called Pluto."),
    assistant("I will remember the number and the name of the dog, so that you can ask me later about them."),
    user("We meet on 14 March at gate B12, and Ingrid brings her friend Tobias."),
    assistant("Noted: a meeting at the gate, with three people, and you will want to be there in good time."),
]
GOOD = (
    "The user's sister Ingrid lives in Bergen since 2019; her number is 555-0142 and her dog is Pluto. "
    "They meet on 14 March at gate B12, and Tobias comes as well."
)


def verdict(text: str, source: Source = NOTHING, *, cut: bool = False, tokens: int = 200) -> str:
    return checked(SummaryReply(text, cut=cut), source, tokens=tokens).verdict


def text_of(text: str, *, cut: bool = False) -> str:
    return checked(SummaryReply(text, cut=cut), NOTHING, tokens=200).text


@pytest.mark.parametrize(
    "text", [SAYS, "  " + SAYS, "用户想要一座蓝色的房子,屋顶还没有完成。", "I cannot say that much happened. " + GOOD * 2]
)
def test_a_summary_that_says_something_is_kept(text: str) -> None:
    assert verdict(text) == "kept"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("OK.", "empty"),
        ("I'm sorry, but I can't help with that request.", "refusal"),
        ("Sorry, no summary can be made of this.", "refusal"),
        ("**I cannot** summarise this conversation.", "refusal"),
        ("As an AI I have no memory of it at all.", "refusal"),
        ("Es tut mir leid, aber dabei kann ich nicht helfen.", "refusal"),
        ("对不起，我无法总结这段对话，因为内容不完整，请再发一次。", "refusal"),
        (instruction(tokens=50), "copy"),
        (instruction(tokens=400, prompt=focused("the boat and its engine")), "copy"),
        (f"Yes. {instruction(tokens=50)} Thank you.", "copy"),
        ("<think>The user wants a summary, so I will think about it", "empty"),
        ("<think>Let me see.</think>", "empty"),
    ],
)
def test_what_is_no_summary(text: str, found: str) -> None:
    assert verdict(text) == found


@pytest.mark.parametrize(
    "text",
    [
        f"<think>What did they say? A house.</think>\n\n{SAYS}",
        f"<thinking>\nHm.\n</thinking>{SAYS}",
        f"What did they say? A house.\n</think>\n{SAYS}",
        f"{SAYS}\n<think>Is that all? I could go on",
        f"<|channel|>analysis<|message|>They want this.<|channel|>final<|message|>{SAYS}<|im_end|>",
        f'<tool_call>{{"name": "read", "arguments": {{}}}}</tool_call>{SAYS}',
        f"Here is a summary of the conversation so far:\n\n{SAYS}",
        f"Sure! Here's the summary:\n{SAYS}",
        f"**Summary:**\n\n{SAYS}",
        f"## Summary\n\n{SAYS}",
        f"Certainly. {SAYS}\n\nLet me know if you need anything else!",
        f"{SAYS}\n\nI hope this helps. Would you like more?",
        f"Hier ist die Zusammenfassung des Gesprächs:\n{SAYS}",
        f"Voici un résumé de la conversation :\n\n{SAYS}",
        f"Aquí tienes el resumen de la conversación:\n{SAYS}",
        f"以下是对话的总结：\n{SAYS}",
        f"会話の要約：\n{SAYS}",
        f"대화 요약:\n{SAYS}",
        f"Краткое содержание беседы:\n{SAYS}",
        f"```text\n{SAYS}\n```",
    ],
)
def test_reasoning_and_calls_and_what_stands_around_a_summary_are_cut(text: str) -> None:
    assert verdict(text) == "mended"
    assert text_of(text) == SAYS


@pytest.mark.parametrize(
    "text",
    [
        "The user asked for a summary of the book: it is Moby Dick, and it has 135 chapters.",
        "Okay is the name of the dog, and it lives in a small house near the sea.",
        "Goal: a summary of the report is due on Friday, and the user writes it.",
    ],
)
def test_what_belongs_to_it_is_not(text: str) -> None:
    assert (verdict(text), text_of(text)) == ("kept", text)


def test_one_that_was_cut_off_ends_with_its_last_whole_sentence_or_is_none() -> None:
    assert text_of(f"{SAYS} It costs 3.50 euros. The door is", cut=True) == f"{SAYS} It costs 3.50 euros."
    assert text_of(f"- {SAYS}\n- One more thing\n- The do", cut=True) == f"- {SAYS}\n- One more thing"
    assert text_of("用户想要一座蓝色的房子，屋顶还没有完成。下一步是选", cut=True) == "用户想要一座蓝色的房子，屋顶还没有完成。"
    assert verdict("The user wants a house that is blue, and whose roof is", cut=True) == "cut"
    assert verdict(f"{SAYS} " + "and then they went on to another house and " * 3, cut=True) == "cut"
    assert verdict(SAYS, cut=True) == "mended", "it may end where the bound is"


def test_the_assistant_does_not_carry_on_instead() -> None:
    source = source_of([*TALK, assistant("You may take the tram to the gate, which leaves every ten minutes from the market.")])
    copies = "You may take the tram to the gate, which leaves every ten minutes from the market."
    assert verdict(copies, source) == "copy"
    assert verdict(f"Of course! {copies}", source) == "copy"
    assert verdict(f"{GOOD} The tram to the gate leaves every ten minutes.", source) == "kept"


LANGUAGES = {
    "english": "The user would like to know how the train to the coast is going to be paid, and when it is that they have to be there with all of the others.",
    "german": "Der Benutzer möchte wissen, wie die Fahrt mit dem Zug an die Küste bezahlt wird, und wann sie mit allen anderen dort sein sollen, wenn es nicht regnet.",
    "french": "L'utilisateur veut savoir comment le train pour la côte est payé, et quand il faut que tous les autres soient là avec lui, si ce n'est pas sous la pluie.",
    "spanish": "El usuario quiere saber cómo se paga el tren para la costa, y cuándo es que tienen que estar allí con todos los demás, si no es con la lluvia.",
    "portuguese": "O usuário quer saber como é que se paga o trem para a costa, e quando é que eles têm de estar lá com todos os outros, se não for com a chuva.",
    "italian": "L'utente vuole sapere come si paga il treno per la costa, e quando è che devono essere là con tutti gli altri, se non è sotto la pioggia.",
    "russian": "Пользователь хочет знать, как оплачивается поезд до моря и когда они должны быть там со всеми остальными, если это будет не во время дождя.",
    "chinese": "用户想知道去海边的火车票怎么付款，以及他们什么时候必须和其他人一起到达那里，如果不下雨的话。",
    "japanese": "ユーザーは海岸までの電車の料金をどうやって払うのか、また雨が降らなければいつほかの人たちと一緒に着くべきかを知りたい。",
    "korean": "사용자는 바닷가로 가는 기차 요금을 어떻게 내는지, 그리고 비가 오지 않으면 언제 다른 사람들과 함께 도착해야 하는지 알고 싶어 한다.",
}


@pytest.mark.parametrize("spoken", LANGUAGES)
@pytest.mark.parametrize("written", LANGUAGES)
def test_it_is_in_the_language_of_the_conversation(spoken: str, written: str) -> None:
    source = Source(languages=source_of([user(LANGUAGES[spoken])]).languages)
    assert source.language == spoken
    assert verdict(LANGUAGES[written], source) == ("kept" if spoken == written else "language")


def test_of_short_or_mixed_texts_nothing_is_guessed() -> None:
    assert source_of([user("Hallo, wie geht es?")]).languages == ()
    mixed = source_of([user(f"{LANGUAGES['german']} {LANGUAGES['chinese']}")])
    assert all(verdict(text, Source(languages=mixed.languages)) == "kept" for text in LANGUAGES.values() if "海" in text)
    assert verdict("Gehäuse und Türen sind blau.", source_of([user(LANGUAGES["english"])])) == "kept"


def test_the_language_is_asked_for_where_it_is_not_english() -> None:
    assert instruction(tokens=100, language="german").endswith("Write it in German.")
    assert "Write it in" not in instruction(tokens=100, language="english")


def test_a_chat_is_asked_for_other_sections_than_an_agent_and_for_a_third_less() -> None:
    chat, agent = instruction(tokens=300, chat=True), instruction(tokens=300)
    assert ("open questions" in chat, "at most 120 words" in chat) == (True, True)
    assert ("files and identifiers" in agent, "at most 180 words" in agent) == (True, True)


def test_a_share_of_what_the_user_told_must_be_there() -> None:
    source = source_of(TALK)
    assert verdict(GOOD, source) == "kept"
    assert verdict("The user talked about the family and about a meeting, and all of it went well.", source) == "gaps"
    assert verdict("Ingrid was mentioned, and the rest of it was about a meeting of some people.", source) == "gaps"
    assert verdict("The user talked about the weather.", source_of(TALK[:1])) == "kept", "too little to tell"


def test_what_only_others_said_counts_too_but_less() -> None:
    talk = [user("Look into it."), *(assistant(f"The file src/part{n}.py of Module{n} has {n}7 lines.") for n in range(20))]
    assert verdict("Somebody looked into something, and there was a lot of it to be seen there.", source_of(talk)) == "gaps"
    assert verdict("Looked at src/part1.py, src/part2.py, src/part3.py, src/part4.py, and 15 more.", source_of(talk)) == "kept"


def test_one_that_has_what_the_user_stated_may_lack_what_tools_printed() -> None:
    printed = [f"src/part{n // 3}.py of Module{n // 3}, {n // 3}7 lines" for n in range(60)]
    talk = [*TALK, *(m for n, text in enumerate(printed) for m in (assistant(None, tool_calls=[call(n)]), tool(n, text)))]
    assert verdict(GOOD, source_of(talk)) == "kept"


def test_paths_and_numbers_are_whole() -> None:
    source = source_of([user("Use port 8080, host 10.0.0.7, file /etc/spill/a.toml and user Karla17.")])
    assert verdict("It is about ports 80801 and 18080, hosts and files, and some users as well.", source) == "gaps"
    assert verdict("Port 8080, host 10.0.0.7, the file /etc/spill/a.toml, the user Karla17.", source) == "kept"


# -- loops

words = st.text(alphabet="abcdefgh", min_size=1, max_size=6)


@given(st.lists(words, min_size=1, max_size=25), st.lists(words, max_size=20), st.sampled_from([" ", ", ", "\n", ". "]))
def test_no_loop_is_ever_accepted(unit: list[str], before: list[str], between: str) -> None:
    times = 120 // len(unit) + 3
    text = between.join([*before, *(unit * times)])
    assert loops(text)
    assert verdict(text) in ("loop", "empty")
    assert verdict(text, cut=True) in ("loop", "empty")


@given(st.text(alphabet="的一是了我不人在他有这个上们来到时大地为子中你说", min_size=2, max_size=30), st.text(max_size=50))
def test_nor_one_without_spaces(unit: str, before: str) -> None:
    assert loops(before + unit * (220 // len(unit) + 2))


@pytest.mark.parametrize(
    "text",
    [
        "The user is happy with that. " * 17,
        "1. The user said hello.\n2. The user said hello.\n3. The user said hello.\n4. The user said hello.",
        "!" * 500,
        "no no no no no no no no no no no no no no no no no no no no no no no no no no",
        "😀" * 500,
    ],
)
def test_loops_of_other_kinds(text: str) -> None:
    assert loops(text)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "\n".join(f"- the code of item{n} is c{n * 7}" for n in range(60)),
        "| name | state |\n|---|---|\n" + "\n".join(f"| part{n} | done |" for n in range(40)),
        "".join(LANGUAGES.values()),
        f"{GOOD} {SAYS} To repeat it: {GOOD}",
    ],
)
def test_lists_and_repetitions_are_no_loops(text: str) -> None:
    assert not loops(text)


@given(st.text(max_size=300), st.lists(st.integers(1, 300), max_size=8))
def test_a_loop_is_seen_however_the_text_comes(text: str, cuts: list[int]) -> None:
    text = f"{text} so it goes on and on again and again" * 12
    pieces, at = [], 0
    for cut in sorted(cuts):
        pieces.append(text[at : max(at, cut)])
        at = max(at, cut)
    whole, parts = LoopWatch(), LoopWatch()
    whole.feed(text)
    for piece in (*pieces, text[at:]):
        parts.feed(piece)
    assert whole.end()
    assert parts.end()


def test_it_is_seen_long_before_the_end() -> None:
    watch, unit = LoopWatch(), "The user was told that the assistant is here to help. "
    seen = next(n for n in range(1, 100) if watch.feed(unit))
    assert seen <= 7


@given(text=st.text(max_size=400), cut=st.booleans())
def test_the_same_text_gets_the_same_verdict(text: str, *, cut: bool) -> None:
    source = source_of(TALK)
    first = checked(SummaryReply(text, cut=cut), source, tokens=100)
    assert first == checked(SummaryReply(text, cut=cut), source_of(TALK), tokens=100)
    if first.text:
        again = checked(SummaryReply(first.text), source, tokens=100)
        assert again.text, "what was found fit stays so"
