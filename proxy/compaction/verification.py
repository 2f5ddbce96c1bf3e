"""Check that what a model wrote is a summary of what it was shown, and mend what can be mended.

All of it is told by code, without a model: the same text always gets the same verdict.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from proxy.compaction.source import Source, is_mentioned, words_of
from proxy.compaction.summary import INSTRUCTION
from proxy.core.history.embedded import without_calls
from proxy.core.history.marks import CHANGED, DONE, MORE_QUOTES, OPEN_ITEMS, QUOTES
from proxy.core.history.sentences import last_end, sentences
from proxy.recall.words import UNSPACED, differ, folded, script_and_language
from proxy.stream.thinking import TAGS

Verdict = Literal["kept", "mended", "failed", "empty", "refusal", "loop", "cut", "language", "copy", "gaps"]
"""`mended`: something was taken away that was no part of it. All but the first two mean that it is not used."""

_TAGS = "|".join(TAGS)
_THOUGHT = re.compile(rf"<({_TAGS})>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_ENDED_THOUGHT = re.compile(rf"\A.*</(?:{_TAGS})>", re.DOTALL | re.IGNORECASE)
"""One whose beginning stood in the prompt."""
_CHANNEL = re.compile(r"\A.*<\|channel\|>final<\|message\|>", re.DOTALL)
_SPECIAL = re.compile(r"<\|[a-z_]{2,20}\|>(?:assistant\n)?|</?s>")
_WRAPPED = re.compile(r"\A```\w*\n(.*?)\n```\Z", re.DOTALL)
_NAMED = (
    r"summar|overview|recap|zusammenfass|überblick|résumé|resume|récapit|resumen|resumo|síntesis|síntese|riassunto|sintesi"
    r"|резюме|сводк|краткое (?:содержание|изложение)|обзор|总结|總結|摘要|概要|要約|まとめ|요약"
)
_HERE = (
    r"here|this is|below|the following|hier|nachfolgend|im folgenden|voici|ci-dessous|aquí|a continuación|aqui|a seguir|ecco|di seguito"
    r"|вот|ниже|以下|下面|这是|これ|次|다음|아래|이것"
)
_PREAMBLE = re.compile(
    rf"\A(?:[#*_> ]{{0,6}}(?:{_HERE})[^\n:：]{{0,160}}(?:[:：][*_]{{0,2}}[ \t]*|\n+)"
    rf"|[^\n:：]{{0,16}}(?:{_NAMED})[^\n:：]{{0,60}}(?:[:：][*_]{{0,2}}[ \t]*\n*|\n+))",
    re.IGNORECASE,
)
_OF_COURSE = re.compile(
    r"\A(?:sure|sure thing|certainly|of course|okay|ok|absolutely|gerne|natürlich|klar|bien sûr|d'accord|claro|por supuesto|com certeza"
    r"|certo|certamente|конечно|хорошо|当然|好的|もちろん(?:です)?|はい|물론입니다|네)[,.!，。！、]\s*",
    re.IGNORECASE,
)
_OFFER = re.compile(
    r"(?<!\n)\n++(?:please |if [^\n]{1,100}, |i )?(?:let me know|feel free|hope (?:this|that) helps|would you like|is there anything"
    r"|lass(?:en sie)? (?:es )?mich wissen|n'hésite|hazme saber|házmelo saber|me avise|fammi sapere|дайте знать|请告诉我|お知らせください|알려 ?주세요)"
    r"[^\n]{0,200}\Z",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"^\W*(?:i['’]?m sorry|i am sorry|sorry|i cannot|i can['’]?t|i['’]?m unable|i am unable|as an ai|es tut mir leid|ich kann (?:das|diese?n?)\b.{0,40}nicht"
    r"|je suis désolé|désolé|lo siento|sinto muito|desculpe|mi dispiace|извините|к сожалению|对不起|抱歉|申し訳|죄송)",
    re.IGNORECASE,
)
_HEADINGS = re.compile(
    rf"^(?:{'|'.join(re.escape(title) for title in (QUOTES, MORE_QUOTES, DONE, CHANGED, OPEN_ITEMS))})", re.MULTILINE
)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]")
_SHORTEST, _SHORT = 24, 300
_LEAST_COMPLETE = 0.5
"""Share of a text that was cut off that must be left when its last sentence is taken away."""
_WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]+"
)
_SHINGLE = 5
_COPIED, _MOST_OF_ALL = 0.6, 0.5
"""Share of it that stands in one answer; and that answer's share of everything, above which it may well."""
_PER_FACT = 12
"""Tokens of a summary for each fact that is looked for in it, within these bounds."""
_FEWEST_FACTS, _MOST_FACTS = 8, 48
_USERS, _ALL = 0.4, 0.15
"""Share of the user's facts that a summary must have; of everybody's, where the user stated too few to tell."""
_ENOUGH, _ENOUGH_OF_ALL = 4, 12
"""With fewer facts than that nothing is told by their share."""
_UNIT = re.compile(rf"(?P<marker>\d{{1,3}}[.)](?=\s))|[{UNSPACED}]|[^\W{UNSPACED}]{{1,64}}")
"""A word, or a character where words are not spaced; the number of an item says nothing."""
_LOOP_UNITS = 8
"""Units in a row that are looked for among those before."""
_LOOP = 40.0
"""Words in a row that were all said before in the same order, from which on it is a loop."""
_OF_CHARACTER = 0.6
"""Of a word, for a character of a script without spaces."""
_BLANK = 400
"""Characters without a single word in them."""
_TIMES, _SHARE = 3, 0.5
_LEAST_UNITS, _LEAST_DIFFERENT = 24, 0.2


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """Reply of a model that was asked for a summary. `cut`: the bound on its length ended it; `looped`: it was ended because it looped."""

    text: str = ""
    cut: bool = False
    looped: bool = False
    failed: bool = False
    """No answer came at all."""
    endless: bool = False
    """It was left because it had gone far beyond the bound on its length."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A verdict, and the text as it may be used; empty if it may not."""

    verdict: Verdict
    text: str = ""


def checked(written: SummaryReply, source: Source, *, tokens: int, brief: bool = False) -> Checked:
    """Judge a summary of `source` for which `tokens` were asked; `brief`: it may be a single word."""
    if written.failed:
        return Checked("failed")
    if written.looped or loops(written.text):
        return Checked("loop")
    text = _bare(written.text)
    mended = text != written.text.strip()
    if written.cut:
        complete = text[: last_end(text)].rstrip()
        if len(complete) < _LEAST_COMPLETE * len(text) or not _long_enough(complete):
            return Checked("cut" if _long_enough(text) else "empty")
        text, mended = complete, True
    fault = None if brief and 0 < len(text) < _SHORTEST else _fault(text, source, tokens, mended=mended)
    return Checked(fault) if fault is not None else Checked("mended" if mended else "kept", text)


def _fault(text: str, source: Source, tokens: int, *, mended: bool) -> Verdict | None:
    if not _long_enough(text):
        return "empty"
    if len(text) < _SHORT and _REFUSAL.match(text):
        return "refusal"
    if mended and loops(text):  # as it came it does not
        return "loop"
    if _is_copy(text, source):
        return "copy"
    found = script_and_language(text)
    if source.languages and all(differ(expected, found) for expected in source.languages):
        return "language"
    return "gaps" if _has_gaps(text, source, tokens) else None


def _bare(text: str) -> str:
    """The summary in what a model wrote: without its reasoning, calls, preambles, offers, and a fence around all of it."""
    text = _CHANNEL.sub("", text)
    text = _ENDED_THOUGHT.sub("", _THOUGHT.sub("", text))
    text = _SPECIAL.sub("", without_calls(text)).strip()
    text = _OF_COURSE.sub("", text).strip()
    if (wrapped := _WRAPPED.match(text)) is not None:
        text = wrapped[1].strip()
    text = _OFFER.sub("", _PREAMBLE.sub("", text, count=1)).strip()
    return _HEADINGS.sub(lambda mark: f"(as it was summed up) {mark.group()}", text)


def _long_enough(text: str) -> bool:
    """Return whether it says anything; a character of a script without spaces says as much as three others."""
    return len(text) + 2 * len(_WIDE.findall(text)) >= _SHORTEST


def _is_copy(text: str, source: Source) -> bool:
    """Return whether it carries on the conversation instead of summing it up: repeats an answer, or what was asked."""
    shingles = _shingles(text)
    instruction = _shingles(INSTRUCTION)
    if len(shingles & instruction) > _COPIED * min(len(instruction), max(1, len(shingles))):
        return True
    return bool(shingles) and any(
        len(shingles & _shingles(answer)) > _COPIED * len(shingles)
        for answer in source.answers
        if len(answer) < _MOST_OF_ALL * source.size
    )


def _shingles(text: str) -> set[tuple[str, ...]]:
    units = _WORDS.findall(folded(text))
    return {tuple(units[at : at + _SHINGLE]) for at in range(len(units) - _SHINGLE + 1)}


def _has_gaps(text: str, source: Source, tokens: int) -> bool:
    known = folded(text)
    words = words_of(known)
    most = max(_FEWEST_FACTS, min(_MOST_FACTS, tokens // _PER_FACT))

    by_user = len(source.users) >= _ENOUGH  # what tools print need not be told then
    facts, share = (source.users[:most], _USERS) if by_user else (source.all[:most], _ALL)
    found = sum(is_mentioned(fact.key, known, words) for fact in facts)
    if source.worked:  # code tells of tasks and of what was done, behind it
        return by_user and not found
    return len(facts) >= (_ENOUGH if by_user else _ENOUGH_OF_ALL) and found < share * len(facts)


class LoopWatch:
    """Reads a text as it grows, in time linear in its length."""

    def __init__(self) -> None:
        self._rest = ""
        self._last: list[str] = []
        self._seen: set[tuple[str, ...]] = set()
        self._run = 0.0
        self._blank = 0
        self.looped = False
        """Whether it went round in circles; that stays so."""

    def feed(self, text: str) -> bool:
        """More of the text; whether it loops."""
        text = self._rest + text
        # Its last word may go on, and with it what stands before it.
        end = len(text) - 1
        while end > 0 and end > len(text) - 80 and (text[end].isalnum() or text[end] in "_.)"):
            end -= 1
        self._rest = text[end:] if end > 0 else text
        self._read(text[:end] if end > 0 else "")
        return self.looped

    def end(self) -> bool:
        """The text is complete; whether it looped."""
        self._read(self._rest)
        self._rest = ""
        return self.looped

    def _read(self, text: str) -> None:
        after = 0
        for unit in _UNIT.finditer(folded(text)):
            if unit["marker"] is None:
                self._take(unit.group())
                after = unit.end()
        self._blank = (0 if after else self._blank) + len(text) - after
        self.looped |= self._blank >= _BLANK

    def _take(self, unit: str) -> None:
        self._last = [*self._last[1 - _LOOP_UNITS :], unit]
        if len(self._last) < _LOOP_UNITS:
            return
        gram = tuple(self._last)
        if gram in self._seen:
            self._run += _OF_CHARACTER if re.match(f"[{UNSPACED}]", unit) else 1.0
            self.looped |= self._run >= _LOOP
        else:
            self._seen.add(gram)
            self._run = 0.0


def loops(text: str) -> bool:
    """Return whether a whole text says the same over and over: in its course, or taken together if it is short."""
    watch = LoopWatch()
    watch.feed(text)
    return watch.end() or _says_one_thing(text)


def _says_one_thing(text: str) -> bool:
    units = [unit.group() for unit in _UNIT.finditer(folded(text)) if unit["marker"] is None]
    if len(units) >= _LEAST_UNITS and len(set(units)) < _LEAST_DIFFERENT * min(len(units), 10 * _LEAST_UNITS):
        return True
    counts: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences(folded(text), longest=1000):
        counts[tuple(u.group() for u in _UNIT.finditer(sentence) if u["marker"] is None)] += 1
    again = sum(len(sentence) * count for sentence, count in counts.items() if count >= _TIMES and len(sentence) > 2)
    return again > _SHARE * len(units)
