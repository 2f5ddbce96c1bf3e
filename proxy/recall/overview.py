# ruff: noqa: RUF001 - words in Cyrillic
"""Questions about the conversation itself, which no ranking by words answers: how it began, what was said in all.

A closed table of phrases recognises them, and they are answered by position: with the first messages, or with a
sentence of each user message that is no longer in the prompt.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

from proxy.core.history.sentences import sentences
from proxy.core.request import Message
from proxy.recall.passages import MessagePassages, asked, spoken_text
from proxy.recall.ranking import AROUND, Passage
from proxy.recall.words import folded, terms

About = Literal["start", "all"]

_START: Final = r"""\bfirst\b \binitially\b \boriginally\b \bbegin \bbegan\b \bstart(?:ed|s)?\b \berst(?:e[nrsm]?|mals)?\b \bzuerst\b \banfang \bbegann\b
    \bpremier \bdebut \bcommence \bprimer \bprincipio\b \bcomienz \bempez \bprimeir \binicio\b \bcomec \bprim[aoi]\b \binizi[oa] \bперв
    \bначал 最初 一开始 一開始 最开始 最開始 第一 처음 \b첫"""
_SUMMARY: Final = r"""\brecap \bsummar \boverview\b \bfass(?:e|t|en)\b \bzusammen[fz] \buberblick\b \bresum \brecapitul \briassu \briepilog \bитог \bобзор
    总结 總結 回顾 回顧 まとめ 要約 요약 정리"""
_ALL: Final = r"""\border\b(?!\sto\b) \bdevelop \bprogress \bevolve \bunfold \bstages\b \bphases\b \bmilestones\b \bstory\b \bhistory\b \bsequence\b \bchronolog \btimeline\b \bover\stime\b \bfrom\s(?:the\s)?(?:first|start|beginning)\b
    \bstep\sby\sstep \bso\sfar\b \b(?:until|up\sto)\snow\b \beverything\b \ball\b \btopics\b \b(?:have|did)\swe\b \bhow\smany\b \blist\b
    \breihenfolge\b \bverlauf \bverlief\b \bablauf \breihe\snach\b \bbisher \bbis\sjetzt\b \bvon\sanfang\san\b \balle[sn]?\b \bwie\sviele
    \bordre\b \bderoul \bevolu \bjusqu \btou(?:te?s?|s)\b \bdu\sdebut\sa \bcombien\b \border \borden\b \bdesarroll \bevolucion \bhasta\s(?:ahora|aqui)\b \btod[oa]s?\b
    \bcuant[oa]s\b \bordem\b \bate\s(?:agora|aqui)\b \btud[oa]s?\b \bquant[oaie]s?\b \bordine\b \bsvilupp \bfinora\b \bfino\sa(?:d|\s|desso) \btutt[oaie]\b
    порядк \bразви \bдо\sсих\sпор\b \bвсе\b \bсколько\b 顺序 进展 進展 经过 經過 順序 順番 到目前 至今 迄今 从头 從頭 所有 全部 多少 几 幾
    これまで 経緯 今まで すべて いくつ 순서 과정 지금까지 모든 모두 몇"""
_BEFORE: Final = r"""\b(?:did|ha[ds])\b \bbeen\b \bwas\b \bwere\b \bwent\b \bhave\s(?:i|we|you)\b \b(?:i|we|you)(?:\shave|'ve)\b \bsaid\b \basked\b \btold\b
    \bmentioned\b \bnamed\b \bdiscussed\b \btalked\b \bhappened\b \b(?:conversation|chat|discussion|story|history)\b \bhab(?:e|en|t)\b \bhast\b \bhat\b \bwar(?:en)?\b \bwurde
    \bgesprach \bunterhaltung\b \bai-je\b \bavons \bas-tu\b \bj'ai\b \betai(?:t|ent)\b \b(?:c'|s')est\b \bdije\b \bpregunt[eo]\b \bh(?:e|emos|ice|icimos)\b \bfue\b \bera\b
    \bhabl(?:amos|e)\b \bdij(?:e|iste|imos)\b \bconversacion\b \bdisse \bperguntei\b \bfi(?:z|zemos)\b \bfoi\b \bfal(?:amos|ei)\b \bconversa\b \bho\b \babbiamo\b \bhai\b \bstat[oaie]\b
    \bconversazione\b \bбыл \bсказал \bспр(?:осил|ашивал) \bговорил \bобсу \bназв \bупомян \bсделал \bразговор \bбесед 说 說 聊 问 問 谈 談 提 讨论 討論 对话 對話
    聞 言 話 した 会話 말 물 질문 이야기 대화 했"""
# No word of "What did I ask first?" is in the passage that answers it, so ranking found 17 % of the evidence for such
# questions; by position it is 36 % in a window of 4,096 tokens and 70 % in 8,192 (33 and 83 % on chats that the table
# was not written for). A phrase that is missing here is ranked by words, as before.
_TABLE: Final[Sequence[tuple[About, re.Pattern[str]]]] = (
    ("all", re.compile("|".join(_SUMMARY.split()))),
    ("all", re.compile("|".join(_ALL.split()))),
    ("start", re.compile("|".join(_START.split()))),
)
"""Words for requests for the whole, for the whole, and for the beginning, folded: English, German, French, Spanish, Portuguese, Italian, Russian, Chinese, Japanese, Korean."""
_PAST: Final = re.compile("|".join(_BEFORE.split()))
"""Words that refer to what was said or happened before, in the same languages; "sort them all" and "first, add a test" have none."""
_LONGEST: Final = 400
"""Most characters of a question about the conversation: a longer message has words to rank by."""
_SENTENCE: Final = 240
_LEAST_TERMS: Final = 3
"""Fewest terms of a sentence that says something: greetings and assent have fewer."""
RANKED: Final = 0.25
"""Share of the room that is left for passages found by words."""


def about_conversation(text: str) -> About | None:
    """Return which part of the conversation a message asks about, its `start` or `all` of it, or None."""
    asks = asked(text)
    plain = folded(asks or text) if len(text) <= _LONGEST else ""
    # "I feel bored, it has rained all day": 37 of 45 overviews in real chats were for messages that ask nothing.
    table = (_TABLE if asks else _TABLE[:1]) if _PAST.search(plain) else ()
    return next((about for about, words in table if words.search(plain)), None)


def overview(
    about: About,
    messages: Sequence[Message],
    passages: Sequence[MessagePassages],
    *,
    lost: Callable[[int], bool],
    room: float,
    cost: Callable[[str], float],
    in_prompt: Callable[[str], bool],
) -> list[Passage]:
    """Choose what answers a question about the conversation: its first passages, or one per user message.

    If there are more sentences than fit into `room` tokens, those are chosen that say most for their tokens, by terms
    that are not in the prompt.
    """
    every = ((index, *span) for index, each in enumerate(passages) for span in each.spans)
    spans = every if about == "start" else _sentences(messages, passages)

    def lost_passages() -> Iterator[Passage]:
        day = None
        for index, start, end in spans:
            day = passages[index].day or day
            text = spoken_text(messages[index])[start:end]
            if lost(index) and not in_prompt(text):
                yield Passage(index, start, end, text, day, AROUND + cost(text))

    # A long history has thousands of passages; the first ones are counted only until the room is full.
    found: Iterable[Passage] = lost_passages()
    if about == "all":
        shown = set[str]().union(*(each.places for at, each in enumerate(passages) if not lost(at)))
        found = sorted(found, key=lambda each: len({*terms(each.text)} - shown) / each.tokens, reverse=True)
    chosen = list[Passage]()
    for each in found:
        room -= each.tokens
        if room < 0:
            break
        chosen.append(each)
    return chosen


def _sentences(messages: Sequence[Message], passages: Sequence[MessagePassages]) -> Iterator[tuple[int, int, int]]:
    """Yield the first sentence of each user message that says something, with its place."""
    for index, message in enumerate(messages):
        if message.get("role") != "user" or not passages[index].spans:
            continue
        text = spoken_text(message)
        candidates = (each for each in sentences(text, longest=_SENTENCE) if len(terms(each)) >= _LEAST_TERMS)
        if first := next(candidates, ""):
            yield index, (at := text.find(first)), at + len(first)
