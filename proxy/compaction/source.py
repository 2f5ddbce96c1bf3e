"""Source of a summary, as far as code can check it: what the user said in it, and the facts in that.

Facts are what can be looked for in another text: names, numbers, dates, paths and rare words.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from proxy.compaction.shorten import CUT_MARK
from proxy.core.history.embedded import calls_in, results_in, texts_of, without
from proxy.core.history.marks import BRIDGE, carried_statements, is_summary
from proxy.core.history.rules import constraints, is_rule, typed_text
from proxy.core.history.sentences import found_in, sentences
from proxy.core.history.turns import calls_of, is_result, is_user
from proxy.core.request import Message, text_of
from proxy.recall.passages import written_on
from proxy.recall.words import ALL_FUNCTION_WORDS, HAN, UNSPACED, folded, script_and_language, terms

_COUNTED = "年月日号歳岁個个人元円分時时点년월일살명개원시"
# One after the other at each place of a text. Every repetition is bounded.
_TOKEN = re.compile(
    rf"(?P<number>(?<![^\W{UNSPACED}])[vV$€£¥₹]?\d{{1,20}}(?:[.,:/-]\d{{1,12}}){{0,6}}(?:\s?[%€£¥°]|[a-zA-Z]{{1,3}}\b|[{_COUNTED}])?)"
    r"|(?P<katakana>[\u30a1-\u30fa\u30fc・]{2,20})"
    r"|(?P<quoted>[《「『“„«][^《》「」『』“”„«»\n]{1,40}[》」』”“»])"
    rf"|(?P<han>[{HAN}]{{2,40}})"
    r"|(?P<hangul>[\uac00-\ud7a3]{2,20})"
    rf"|(?P<word>[^\W\d_{UNSPACED}][^\W_{UNSPACED}]{{0,60}}(?:['\u2019-][^\W_{UNSPACED}]{{1,30}}){{0,4}})"
)
_WORD = re.compile(rf"[\W_]*(?:[^\W\d_]+[\W_]*){{1,4}}|.*[{UNSPACED}].*")

IDENTIFIER, NUMBER, NAME = 3.0, 2.5, 3.0
_DIGIT, _QUOTED, _KATAKANA = 0.6, 2.0, 2.0
_NOUN = 0.7
"""A capital says little on a noun where all have one, and nothing at the beginning of a sentence."""
_BEFORE_NOUN = re.compile(r"(?:e|en|er|es|em|das|ein|mein|dein|sein|ihr|kein|im|am|zum|vom|beim)$")
"""How words end that stand before nouns in German: articles, adjectives."""
_RARE, _PAIR = 0.5, 0.2
_OF_LETTER, _SHORT, _LONG = 0.1, 2, 9
"""Of a word in small letters: long ones are rare in every language; none for the first letters, nor for those of the longest."""
VITAL = re.compile(
    "allerg|аллерг|alergi|diabet|диабет|asthma|asma|астм|epilep|эпилеп|coeliac|celiac|celia[ck]|zoliak|zöliak|pregnan|schwanger|enceinte"
    "|embaraz|gravid|incinta|беремен|insulin|vegan|vegetar|веган|вегетар"
)
"""Beginnings of words on which a life may depend, in the languages whose rules are known; they tell as much as a name."""
HARD = 1.5
"""Weight from which a fact can be told on its own: a name, a number, a path."""
_LONGEST_TEXT = 20_000
"""Characters of one message in which facts are looked for: what a user means stands in what people type."""
_LONGEST = 400
_MOST_SENTENCES = 4_000
_OF_A_SENTENCE = 4
"""Facts of one sentence that count: else a list would outweigh all that was said."""
_USERS, _DATA = 2.0, 0.25
_FEW = 12
"""Words of a statement up to which one of them may be new in a later one about the same."""
_COMMON = 3
"""Messages from which on a word is no rare one."""
_ANSWERS = 3
_ITEM = re.compile(r"\A(?:\d{1,3}[.)]|[-*•])\s+")
_NUMBER = re.compile(r"\A\W*(?:[^\W\d]{1,8}\s)?\d{1,3}[.):]\s")
"""Of an item or step, at its beginning."""
_DIGITS = re.compile(r"\d")
_DAY = re.compile(r"\((\d{4}-\d\d-\d\d)\) ")
"""Begins a statement in an extract where the day is another than that of the one before it."""
_STAMP = re.compile(r"\A\s*[\[(<{][^\])>}]{0,80}\d[^\])>}]{0,80}[\])>}]\s*")
_FIRST, _TITLE = 3, 160
"""Sentences of a message among which one tells what it asks for, and the most characters of that."""
_TEMPLATE = 4
"""Sentences that two messages share, from which on these are a program's text around what the user asks."""
_Spoken: TypeAlias = tuple[int, str, date | None]
"""Which message a sentence stands in, the sentence, and the day on which it was written, if that is known."""


@dataclass(frozen=True, slots=True)
class TextFact:
    """Something that a text tells: as it is written, folded to be compared, and how much it matters."""

    text: str
    key: str
    weight: float


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of the user's, and its facts."""

    text: str
    facts: tuple[TextFact, ...]
    prose: bool
    """Whether it is what a person says, and not data."""
    place: int = 0
    """Index of its message; negative for what an earlier summary carries."""
    day: date | None = None
    """On which it was written, if that is known."""


@dataclass(frozen=True, slots=True)
class Source:
    """Statements and facts of what is to be summarised."""

    statements: tuple[Statement, ...] = ()
    """What the user said, in order; what was corrected later is left out."""
    users: tuple[TextFact, ...] = ()
    """The user's facts that mean something on their own, the heaviest first: no data where there are statements."""
    all: tuple[TextFact, ...] = ()
    """The same of everybody, the user included."""
    languages: tuple[tuple[str, str], ...] = ()
    """Script and language of what the user said, and of all; those that can be told."""
    worked: bool = False
    """Whether tools were called: then statements are tasks."""
    tasks: tuple[tuple[int, str], ...] = ()
    """A line for each message of the user, with the index of the first message that came after it."""
    answers: tuple[str, ...] = ()
    """The assistant's newest answers, the last one first."""
    size: int = 0
    """Characters of everything."""

    @property
    def form(self) -> "Source":
        """The same without facts: only the form of a summary is checked."""
        return Source(languages=self.languages, worked=self.worked, answers=self.answers, size=self.size)

    @property
    def language(self) -> str:
        """The language to write in, if it can be told."""
        return self.languages[0][1] if self.languages else ""


NOTHING = Source()


def source_of(
    messages: Sequence[Message], visible: Sequence[Message] = (), asked: Sequence[tuple[int, Message]] = ()
) -> Source:
    """Find what there is to summarise in these messages; earlier summaries of Spillway's count, too.

    What the user said is left out where it stands in `visible` messages, which stay, and where it is a program's text.
    `asked` are messages between these that may stay as well, each with the index of the one that came after it.
    """
    facts_of = cache(facts_in)  # what tools print says the same again and again
    spoken, texts = _spoken(messages), [all_text(message)[:_LONGEST_TEXT] for message in messages]
    shown = {s for _, s, _ in _spoken(visible)}
    results = (all_text(message)[:_LONGEST_TEXT] for message in (*messages, *visible) if is_result(message))
    printed = {s for text in results for s in sentences(text, longest=_LONGEST)}
    # Rules are carried by themselves, and what reads like one without being the user's for certain is no wish either.
    printed.update((*constraints(messages, limit=_LONGEST_TEXT), *filter(is_rule, {said for _, said, _ in spoken})))
    worked = any(map(is_result, messages))
    statements = _statements(_without_templates(spoken, shown, printed, worked=worked), facts_of)
    if len({message.get("name") for message in messages if is_user(message)}) > 1:
        names = [f"{name}: " if (name := message.get("name")) else "" for message in messages]
        statements = [s if s.place < 0 else replace(s, text=f"{names[s.place]}{s.text}") for s in statements]
    users: dict[str, TextFact] = {}
    for statement in statements if not worked else [each for each in statements if each.place >= 0]:
        _weigh(users, statement.facts, _USERS * (1 if statement.prose else _DATA))
    everybody = dict(users)
    for message, text in zip(messages, texts, strict=True):
        if message.get("role") == "assistant":  # what tools print need not be told
            found = sentences(text, longest=_LONGEST)
            _weigh(everybody, [fact for s in found for fact in facts_of(s)[:_OF_A_SENTENCE]], 1.0)
    statements_text, answers = " ".join(text for _, text, _ in spoken), _assistants(messages)
    languages = (script_and_language(statements_text), script_and_language(" ".join((statements_text, *answers))))
    return Source(
        languages=tuple(dict.fromkeys(language for language in languages if language[0])),
        worked=worked,
        tasks=tuple(_tasks([*asked, *enumerate(messages)], printed)) if worked else (),
        answers=tuple(answers[-_ANSWERS:][::-1]),
        size=sum(map(len, texts)),
        statements=tuple(statements),
        users=_heaviest(users.values()),
        all=_heaviest(everybody.values()),
    )


def of_text(text: str) -> Source:
    """A text by nobody in particular as something to be summarised: only the form of its summary is checked."""
    language = script_and_language(text)
    return Source(languages=(language,) if language[0] else (), size=len(text))


def statement_of(text: str) -> Statement:
    """A sentence with all of its facts."""
    return Statement(text, facts_in(text), is_prose(text))


def _heaviest(facts: Iterable[TextFact]) -> tuple[TextFact, ...]:
    ordered = sorted(facts, key=lambda fact: -fact.weight)
    return tuple(fact for fact in ordered if fact.weight >= ordered[0].weight * _DATA * 1.5)


def _spoken(messages: Sequence[Message]) -> list[_Spoken]:
    """The user's sentences, earlier summaries' included; not what Spillway says in the user's place."""
    spoken: list[_Spoken] = []
    today: date | None = None
    for index, message in enumerate(messages):
        day = None
        if is_summary(message):
            for number, line in enumerate(carried_statements(message), 1):
                dated = _DAY.match(line)
                day = date.fromisoformat(dated[1]) if dated else day
                spoken.append((-number, line[dated.end() :] if dated else line, day))
        elif is_user(message) and message.get("content") != BRIDGE:
            text = CUT_MARK.sub("\0", typed_text(message))  # a sentence with something left out is none
            stamp = _STAMP.match(text)
            day = written_on({**message, "content": stamp.group() if stamp else ""})
            text = text[stamp.end() :] if stamp and day else text
            today = day or today  # many clients tell only where a day begins
            spoken += ((index, said, today) for said in sentences(text, longest=_LONGEST) if "\0" not in said)
    return spoken[-_MOST_SENTENCES:]


def _without_templates(
    spoken: Sequence[_Spoken], shown: set[str], printed: set[str], *, worked: bool = False
) -> Iterator[_Spoken]:
    """Leave out what the prompt shows or tools print as well, headings, and what programs put into several messages.

    Where tools have `worked` on messages of the last kind, these are tasks: only the newest of them is not done yet.
    """
    keys = [_ITEM.sub("", text) for _, text, _ in spoken]
    gone = {_ITEM.sub("", text) for text in (*shown, *printed)}
    once = {(place, key) for (place, _, _), key in zip(spoken, keys, strict=True)}
    times = Counter((*(key for _, key in once), *gone))
    shared = Counter(place for place, key in once if times[key] > 1)
    tasks = sorted(place for place, number in shared.items() if number >= _TEMPLATE)
    under_way = tasks[-1:] if sum(times[key] > 1 for key in gone) < _TEMPLATE else []  # else it is shown
    gone |= {key for place, key in once if times[key] > 1 and shared[place] >= _TEMPLATE}
    done = set(tasks).difference(under_way) if worked else ()
    ends = (":", "：")  # noqa: RUF001 - the same in Chinese
    told = zip(spoken, keys, strict=True)
    return (each for each, key in told if each[0] not in done and key not in gone and not key.endswith(ends))


def _tasks(asked: Sequence[tuple[int, Message]], printed: set[str]) -> Iterator[tuple[int, str]]:
    """Find the sentence that tells most at the beginning of each message of the user, by place."""
    in_order = sorted(asked, key=itemgetter(0))
    spoken = _without_templates([s for s in _spoken([m for _, m in in_order]) if s[0] >= 0], set(), printed)
    for number, group in groupby(spoken, key=itemgetter(0)):
        first = [" ".join(text.split()) for _, text, _ in group if is_prose(text) and len(text) <= _TITLE][:_FIRST]
        if first:
            yield in_order[number][0], max(first, key=lambda text: sum(fact.weight for fact in facts_in(text)))


def _statements(spoken: Iterable[_Spoken], facts_of: Callable[[str], tuple[TextFact, ...]]) -> list[Statement]:
    """The sentences with their facts; of two that differ in a value alone the later one."""
    found = [(place, text, day, facts_of(text)) for place, text, day in spoken]
    names = {fact.key for _, _, _, facts in found for fact in facts if fact.weight == NAME}
    often = Counter(key for key, _ in {(fact.key, place) for place, _, _, facts in found for fact in facts})
    statements: list[Statement] = []
    later: set[frozenset[str]] = set()
    for place, text, day, facts in reversed(found):
        subject = _subject(text)
        if not subject or subject not in later:
            weighed = tuple(dict.fromkeys(_weighed(fact, often[fact.key], name=fact.key in names) for fact in facts))
            statements.append(Statement(" ".join(text.split()), weighed, is_prose(text), place, day))
        later.update((subject, *(subject - {term} for term in subject if 2 < len(subject) <= _FEW)))
    return statements[::-1]


def _subject(sentence: str) -> frozenset[str]:
    """What a sentence is about: its terms without the last that has a digit, which is its value; empty if it has none."""
    found = terms(_NUMBER.sub("", sentence)) if _DIGITS.search(sentence) else []
    value = next((term for term in reversed(found) if _DIGITS.search(term)), None)
    return frozenset(found) - {value} if value is not None else frozenset()


def _weighed(fact: TextFact, messages: int, *, name: bool) -> TextFact:
    """A fact as it counts when so many messages have it: what is in many tells little, and a name is one everywhere."""
    weight = (NAME if name else fact.weight) * min(1.0, _COMMON / messages)
    return fact if weight == fact.weight else replace(fact, weight=weight)


def _weigh(known: dict[str, TextFact], facts: Iterable[TextFact], factor: float) -> None:
    """Take in the hard facts of a sentence, each with the most that it ever weighs."""
    for fact in sorted(facts, key=lambda fact: -fact.weight)[:_OF_A_SENTENCE]:
        weight = fact.weight * factor
        if fact.weight >= HARD and (fact.key not in known or known[fact.key].weight < weight):
            known[fact.key] = replace(fact, weight=weight)


def _assistants(messages: Sequence[Message]) -> list[str]:
    said = (each for each in messages if each.get("role") == "assistant" and not is_summary(each))
    return [*filter(None, map(text_of, said))]


def call_lines(message: Message) -> list[str]:
    """The calls of a message, a line each."""
    functions = [call.get("function") for call in calls_of(message)]
    called = [(f.get("name"), f.get("arguments")) for f in functions if isinstance(f, dict)]
    if message.get("role") == "assistant":
        called += ((call.name, call.arguments) for _, text in texts_of(message) for call in calls_in(text))
    return [f"{name}({str(arguments)[:120]})" for name, arguments in called]


def all_text(message: Message) -> str:
    """Text of a message, and the calls that it makes."""
    return "\n".join(part for part in (text_without_calls(message), *call_lines(message)) if part)


def text_without_calls(message: Message) -> str:
    """The text without what stands for calls, and of messages that are nothing but results without their marks."""
    if message.get("role") == "assistant":
        texts = (without(text, [call.span for call in calls_in(text)]) for _, text in texts_of(message))
        return "\n".join(texts).strip("\n")
    if message.get("role") == "user" and is_result(message):
        inside = ((text, result.inside) for _, text in texts_of(message) for result in results_in(text))
        return "\n".join(text[start:end] for text, (start, end) in inside)
    return text_of(message)


def facts_in(sentence: str) -> tuple[TextFact, ...]:
    """The facts of a sentence, in order, with repetitions."""
    names, rest = list(found_in(sentence)), sentence
    for name in names:
        rest = rest.replace(name, " ", 1)
    tokens = list(_TOKEN.finditer(rest))
    texts = [token.group().strip() for token in tokens]
    # Folded together: that costs one call and not one for each.
    keys = folded("\n".join((*names, *texts))).split("\n")
    facts = [TextFact(name, key, IDENTIFIER) for name, key in zip(names, keys, strict=False)]
    keys = keys[len(names) :]
    words = [(text, key) for token, text, key in zip(tokens, texts, keys, strict=False) if token["word"]]
    titled, before = _titled(words), ""
    for token, text, key in zip(tokens, texts, keys, strict=False):
        kind = token.lastgroup
        if kind == "word":
            noun = titled and _BEFORE_NOUN.search(before) is not None
            facts += _of_word(text, key, capital=(_NOUN if noun else NAME) if before else 0.0)
        elif kind == "number":
            long = sum(map(str.isdigit, text)) > 1 or not text.isdecimal()
            facts.append(TextFact(text, key, NUMBER if long else _DIGIT))
        elif kind == "han":
            facts += (TextFact(text[at : at + 2], text[at : at + 2], _PAIR) for at in range(len(text) - 1))
        elif kind == "hangul":
            # Endings change, stems do not.
            facts.append(TextFact(text, text[:2], _RARE))
        elif kind == "katakana":
            facts.append(TextFact(text, key, _KATAKANA))
        else:
            facts.append(TextFact(text[1:-1].strip(), key[1:-1].strip(), _QUOTED))
        before = text
    return tuple(facts)


def is_mentioned(key: str, text: str, words: Collection[str]) -> bool:
    """Return whether a fact is in a folded text, whose words are `words`; a number or a word only as a whole."""
    return key in words or (not (key.isalnum() and key.isascii()) and key in text)


def words_of(text: str) -> frozenset[str]:
    """The words and numbers of a folded text."""
    found = {token.group() for token in _TOKEN.finditer(text)}
    parts = {part for token in found if not token.isalnum() for part in re.findall(r"\w+", token)}
    return frozenset(found | parts | set(re.findall(r"[^\W_]+", text)))


def is_prose(sentence: str) -> bool:
    """Return whether most of its words are words, as in what a person says; data has digits and signs in most of them."""
    words = sentence.split()
    return 2 * sum(_WORD.fullmatch(word) is not None for word in words) >= len(words)


def _of_word(text: str, key: str, *, capital: float) -> list[TextFact]:
    if key in ALL_FUNCTION_WORDS or re.split("['\u2019]", key)[0] in ALL_FUNCTION_WORDS:
        return []
    if any(map(str.isdigit, text)):
        return [TextFact(text, key, NUMBER)]
    if capital and text[0].isupper() and len(text) > 1:
        return [TextFact(text, key, capital)]
    weight = NAME if VITAL.match(key) else _OF_LETTER * (min(len(text), _LONG) - _SHORT)
    return [TextFact(text, key, weight)] if weight > 0 else []


def _titled(words: Sequence[tuple[str, str]]) -> bool:
    """Return whether a sentence has capitals all over: a title, something shouted, or German, whose nouns have them."""
    content = [word for word, key in words if key not in ALL_FUNCTION_WORDS]
    capitals = sum(word[0].isupper() for word in content)
    return len(content) >= 4 and capitals > 0.6 * len(content)
