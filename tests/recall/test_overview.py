# ruff: noqa: RUF001 - questions in Cyrillic
"""Questions about the conversation itself, in ten languages."""

import pytest

from proxy.recall.overview import about_conversation

ALL = """How did my training go over time?
In what order did I arrange things for Portugal?
Summarise everything we said so far.
How many recipes did I name?
Fasse alles zusammen, was wir besprochen haben.
Wie viele Städte habe ich genannt?
Dans quel ordre ai-je dit cela ?
¿En qué orden lo hice?
Em que ordem eu fiz isso? O que eu disse?
In che ordine ho chiesto le cose?
Что мы обсудили до сих пор?
到目前为止我们聊了什么？
これまでの話をまとめて
지금까지 한 이야기를 요약해줘""".splitlines()
START = """What did I say first?
How did this conversation start?
Was war meine erste Frage?
Quelle était ma première question ?
¿Cuál fue mi primera pregunta?
Qual foi a minha primeira pergunta?
Qual era la prima domanda?
Какой был мой первый вопрос?
我最开始问了什么？
最初に何を聞きましたか
내 첫 질문이 뭐였지?""".splitlines()
NEITHER = """Explain step by step how to install it.
I need this in order to finish.
Write a function that returns the first item.
First, say hello to the user in the script.
So far so good, next question: what is X?
Sort them in order of size.
Add a timeline component to the page.
Summarise this article.
At the beginning of the file add a licence header.
Print everything you find in the log.
Bis jetzt klappt es. Wie geht es weiter?
I feel bored, it has rained all day.
I've been painting for weeks and make no progress.
The first call with the team went well.
Ich habe heute alles geschafft.
J'ai tout fini hier.
Terminé todo, fue un buen día.
我想跟你聊聊我的写作，进展缓慢。""".splitlines()


@pytest.mark.parametrize(
    ("text", "about"), [(text, about) for about, texts in (("all", ALL), ("start", START)) for text in texts]
)
def test_a_question_about_the_conversation_is_known(text: str, about: str) -> None:
    assert about_conversation(text) == about
    assert about_conversation(text + " " + "Here is more. " * 40) is None, "a long message brings what it is about"


@pytest.mark.parametrize("text", NEITHER)
def test_other_requests_with_the_same_words_are_not(text: str) -> None:
    assert about_conversation(text) is None
