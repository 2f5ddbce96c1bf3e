"""Check that a model's text is a summary of what it was shown, and repair what can be repaired.

Code alone decides, without a model, so the same text always gets the same verdict.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from proxy.compaction.source import Source, is_mentioned, words_of
from proxy.compaction.summary import INSTRUCTIONS
from proxy.core.history.embedded import without_calls
from proxy.core.history.marks import CHANGED, DONE, MORE_QUOTES, OPEN_ITEMS, QUOTES
from proxy.core.history.sentences import last_end, sentences
from proxy.recall.words import UNSPACED, differ, folded, script_and_language
from proxy.stream.thinking import TAGS

Verdict = Literal["kept", "mended", "failed", "empty", "refusal", "loop", "cut", "language", "copy", "gaps"]
"""`mended`: text around the summary was removed. All but the first two verdicts mean that the text is not used."""

_TAGS = "|".join(TAGS)
_THOUGHT = re.compile(rf"<({_TAGS})>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_ENDED_THOUGHT = re.compile(rf"\A.*</(?:{_TAGS})>", re.DOTALL | re.IGNORECASE)
"""Reasoning whose opening tag was in the prompt."""
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
"""Smallest share of a truncated text that has to remain without its unfinished last sentence."""
_WORDS = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]+"
)
_SHINGLE = 5
_COPIED, _MOST_OF_ALL = 0.6, 0.5
"""Share of a text found in one answer that makes it a copy; and share of the source above which an answer may be copied."""
_PER_FACT = 12
"""Tokens of a summary for each fact that it is searched for, within the next two bounds."""
_FEWEST_FACTS, _MOST_FACTS = 8, 48
# For an agent's work one fact is enough (see `_has_gaps`): summaries were refused for lacking what tools had printed,
# and 8 to 10 of 100 steps at 16k asked for another one.
_USERS, _ALL = 0.4, 0.15
"""Share of the user's facts that a summary must have, or of everybody's facts if the user stated too few."""
_ENOUGH, _ENOUGH_OF_ALL = 4, 12
"""Fewest facts of the user, and of everybody, whose share means anything."""
_UNIT = re.compile(rf"(?P<marker>\d{{1,3}}[.)](?=\s))|[{UNSPACED}]|[^\W{UNSPACED}]{{1,64}}")
"""A word, or a character in scripts without spaces. Numbers of list items are matched apart, because they are ignored."""
_LOOP_UNITS = 8
"""Consecutive units that are searched for in the text before them."""
_LOOP = 40.0
"""Consecutive words, all said before in the same order, that make a loop."""
_OF_CHARACTER = 0.6
"""Words that a character of a script without spaces counts for."""
_BLANK = 400
"""Characters without a single word that make a loop."""
_TIMES, _SHARE = 3, 0.5
_LEAST_UNITS, _LEAST_DIFFERENT = 24, 0.2


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """Reply to a request for a summary. `cut`: `max_tokens` ended it; `looped`: it was stopped because it repeated itself."""

    text: str = ""
    cut: bool = False
    looped: bool = False
    failed: bool = False
    """Whether no answer came at all."""
    endless: bool = False
    """Whether it was abandoned because it had gone far beyond `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A verdict, and the usable text; empty if it is not usable."""

    verdict: Verdict
    text: str = ""


def checked(written: SummaryReply, source: Source, *, tokens: int, brief: bool = False) -> Checked:
    """Judge a summary of `source` of which `tokens` were asked for; `brief`: a single word may be enough."""
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
    if mended and loops(text):  # the whole text was checked before it was repaired
        return "loop"
    if _is_copy(text, source):
        return "copy"
    found = script_and_language(text)
    if source.languages and all(differ(expected, found) for expected in source.languages):
        return "language"
    return "gaps" if _has_gaps(text, source, tokens) else None


def _bare(text: str) -> str:
    """Return the summary in a model's text: without reasoning, calls, preamble, closing offer, and a fence around it all."""
    text = _CHANNEL.sub("", text)
    text = _ENDED_THOUGHT.sub("", _THOUGHT.sub("", text))
    text = _SPECIAL.sub("", without_calls(text)).strip()
    text = _OF_COURSE.sub("", text).strip()
    if (wrapped := _WRAPPED.match(text)) is not None:
        text = wrapped[1].strip()
    text = _OFFER.sub("", _PREAMBLE.sub("", text, count=1)).strip()
    return _HEADINGS.sub(lambda mark: f"(as it was summed up) {mark.group()}", text)


def _long_enough(text: str) -> bool:
    """Return whether a text is long enough to say anything. A character of a script without spaces counts as three."""
    return len(text) + 2 * len(_WIDE.findall(text)) >= _SHORTEST


def _is_copy(text: str, source: Source) -> bool:
    """Return whether a text repeats an answer or an instruction: a model may continue instead of summarising."""
    shingles = _shingles(text)
    for instruction in map(_shingles, INSTRUCTIONS):
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

    by_user = len(source.users) >= _ENOUGH  # if so, the assistant's facts may be left out
    facts, share = (source.users[:most], _USERS) if by_user else (source.all[:most], _ALL)
    found = sum(is_mentioned(fact.key, known, words) for fact in facts)
    if source.worked:  # code appends the tasks and the work done, so one fact is enough
        return by_user and not found
    return len(facts) >= (_ENOUGH if by_user else _ENOUGH_OF_ALL) and found < share * len(facts)


class LoopWatch:
    """Detector of loops in a text as it grows; takes time linear in its length."""

    def __init__(self) -> None:
        self._rest = ""
        self._last: list[str] = []
        self._seen: set[tuple[str, ...]] = set()
        self._run = 0.0
        self._blank = 0
        self.looped = False
        """Whether the text has ever looped."""

    def feed(self, text: str) -> bool:
        """Take in more of the text, and return whether it loops."""
        text = self._rest + text
        # The last word may not be complete, and if it is a number it may turn out to be that of a list item: keep it back.
        end = len(text) - 1
        while end > 0 and end > len(text) - 80 and (text[end].isalnum() or text[end] in "_.)"):
            end -= 1
        self._rest = text[end:] if end > 0 else text
        self._read(text[:end] if end > 0 else "")
        return self.looped

    def end(self) -> bool:
        """Take in the end of the text, and return whether it looped."""
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
    """Return whether a complete text repeats itself: in long runs, or in most of its words or sentences."""
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
