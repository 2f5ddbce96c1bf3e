"""Source of a summary, as far as code can check one against it: the user's statements and the facts in them.

Facts are things that can be searched for in another text: names, numbers, dates, paths and rare words.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, TypeAlias, cast

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
"""Weight of a capital where it says little: on a noun in German, at the beginning of a sentence."""
_BEFORE_NOUN = re.compile(r"(?:e|en|er|es|em|das|ein|mein|dein|sein|ihr|kein|im|am|zum|vom|beim)$")
"""Endings of words that precede nouns in German: articles and adjectives."""
_RARE, _PAIR = 0.5, 0.2
_OF_LETTER, _SHORT, _LONG = 0.1, 2, 9
"""Weight of a lower-case word: this much for each letter after the second, up to the ninth. Long words are rare in
every language."""
VITAL = re.compile(
    "allerg|аллерг|alergi|diabet|диабет|asthma|asma|астм|epilep|эпилеп|coeliac|celiac|celia[ck]|zoliak|zöliak|pregnan|schwanger|enceinte"
    "|embaraz|gravid|incinta|беремен|insulin|vegan|vegetar|веган|вегетар"
)
"""Beginnings of words on which a life may depend, in the languages whose rules are known; they weigh as much as a name."""
HARD = 1.5
"""Weight from which a fact means something on its own, like a name, a number or a path."""
_LONGEST_TEXT = 20_000
"""Characters of one message that are searched for facts. Longer ones are mostly pasted, and people type what they mean."""
_LONGEST, _MOST_SENTENCES, _ANSWERS = 400, 4_000, 3
_OF_A_SENTENCE = 4
"""Facts of one sentence that count; with all of them, a list would outweigh everything that was said."""
_USERS, _DATA = 2.0, 0.25
_FEW = 12
"""Longest subject, in words, that a later statement still matches if one of the words is missing there."""
_COMMON = 3
"""Most messages that a word may occur in and keep its full weight; a word in more of them says less."""
_ITEM = re.compile(r"\A(?:\d{1,3}[.)]|[-*•])\s+")
_NUMBER = re.compile(r"\A\W*(?:[^\W\d]{1,8}\s)?\d{1,3}[.):]\s")
"""Number of an item or step, at its beginning."""
_DIGITS = re.compile(r"\d")
_DAY = re.compile(r"\((\d{4}-\d\d-\d\d)\) ")
"""Date at the beginning of a statement in an extract, if it differs from the previous statement's."""
_STAMP = re.compile(r"\A\s*[\[(<{][^\])>}]{0,80}\d[^\])>}]{0,80}[\])>}]\s*")
_FIRST, _TITLE = 3, 160
"""First sentences of a message, one of which says what it asks for, and the most characters of that one."""
_TEMPLATE = 4
"""Sentences shared by two messages from which they count as a program's template around the user's request."""
_Spoken: TypeAlias = tuple[int, str, date | None]
"""Index of a sentence's message, the sentence, and the day on which it was written, or None if unknown."""


@dataclass(frozen=True, slots=True)
class TextFact:
    """A fact as it is written (`text`), folded for comparison (`key`), and how much it matters (`weight`)."""

    text: str
    key: str
    weight: float


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of the user's, and its facts."""

    text: str
    facts: tuple[TextFact, ...]
    prose: bool
    """Whether it reads like speech rather than data."""
    place: int = 0
    """Index of its message; negative if it comes from an earlier summary."""
    day: date | None = None
    """Day on which it was written, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Source:
    """Statements and facts of the messages to summarise."""

    statements: tuple[Statement, ...] = ()
    """Statements of the user, in order; one that was corrected later is left out."""
    newer: tuple[str, ...] = ()
    """Statements of the user in the turns that stay which may change one of these."""
    users: tuple[TextFact, ...] = ()
    """The user's hard facts, the heaviest first; those in data are left out if there are heavier ones in prose."""
    all: tuple[TextFact, ...] = ()
    """Hard facts of the user and the assistant together, the heaviest first."""
    languages: tuple[tuple[str, str], ...] = ()
    """Script and language of the user's words, then of everybody's, as far as they could be detected."""
    worked: bool = False
    """Whether tools were called: then statements are tasks."""
    tasks: tuple[tuple[int, str], ...] = ()
    """A line for each user message, with the index of the first message after it."""
    answers: tuple[str, ...] = ()
    """The assistant's newest answers, the last one first."""
    size: int = 0
    """Characters of everything."""

    @property
    def form(self) -> "Source":
        """A copy without facts, against which only the form of a summary is checked."""
        return Source(languages=self.languages, worked=self.worked, answers=self.answers, size=self.size)

    @property
    def language(self) -> str:
        """Language to write the summary in; empty if it could not be detected."""
        return self.languages[0][1] if self.languages else ""


NOTHING = Source()


def source_of(
    messages: Sequence[Message], visible: Sequence[Message] = (), asked: Sequence[tuple[int, Message]] = ()
) -> Source:
    """Collect statements and facts of these messages without a pause; see `read_source`."""
    flow = read_source(messages, visible, asked)
    try:
        while True:
            next(flow)
    except StopIteration as stop:
        return cast("Source", stop.value)


def read_source(
    messages: Sequence[Message], visible: Sequence[Message], asked: Sequence[tuple[int, Message]] = ()
) -> Generator[None, Any, Source]:
    """Collect statements and facts of these messages, Spillway's own earlier summaries included; pauses between sentences.

    A sentence of the user's is left out if it is also in `visible` messages, which stay in the prompt, or if a program wrote
    it. `asked` are user messages that may stay as well, each with the index in `messages` of the one after it.
    """
    facts_of = cache(facts_in)  # what tools print says the same again and again
    spoken, texts = _spoken(messages), [all_text(message)[:_LONGEST_TEXT] for message in messages]
    shown = {s for _, s, _ in _spoken(visible)}
    results = (all_text(message)[:_LONGEST_TEXT] for message in (*messages, *visible) if is_result(message))
    printed = {s for text in results for s in sentences(text, longest=_LONGEST)}
    # Rules are carried in a section of their own. A sentence that only reads like a rule may not be the user's, so it is not
    # taken for a wish either.
    printed.update((*constraints(messages, limit=_LONGEST_TEXT), *filter(is_rule, {s for _, s, _ in spoken})))
    worked = any(map(is_result, messages))
    by_role = zip(messages, texts, strict=True)  # a summary need not repeat tool output
    answered = [[*sentences(text, longest=_LONGEST)] for m, text in by_role if m.get("role") == "assistant"]
    for sentence in chain((sentence for _, sentence, _ in spoken), *answered):
        facts_of(sentence)  # most of the work, which is then in the cache
        yield
    statements = _statements(_without_templates(spoken, shown, printed, worked=worked), facts_of)
    if len({message.get("name") for message in messages if is_user(message)}) > 1:
        names = [f"{name}: " if (name := message.get("name")) else "" for message in messages]
        statements = [s if s.place < 0 else replace(s, text=f"{names[s.place]}{s.text}") for s in statements]
    users: dict[str, TextFact] = {}
    for statement in statements if not worked else [each for each in statements if each.place >= 0]:
        _weigh(users, statement.facts, _USERS * (1 if statement.prose else _DATA))
    everybody = dict(users)
    for found in answered:
        _weigh(everybody, [fact for sentence in found for fact in facts_of(sentence)[:_OF_A_SENTENCE]], 1.0)
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
    """Make a source of a bare text, which has no speakers: only the form of its summary is checked."""
    language = script_and_language(text)
    return Source(languages=(language,) if language[0] else (), size=len(text))


def statement_of(text: str) -> Statement:
    """Make a statement of a sentence, with all of its facts."""
    return Statement(text, facts_in(text), is_prose(text))


def _heaviest(facts: Iterable[TextFact]) -> tuple[TextFact, ...]:
    ordered = sorted(facts, key=lambda fact: -fact.weight)
    return tuple(fact for fact in ordered if fact.weight >= ordered[0].weight * _DATA * 1.5)


def _spoken(messages: Sequence[Message]) -> list[_Spoken]:
    """Collect the user's sentences, those in earlier summaries included, but not Spillway's bridges in the user's role."""
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
            text = CUT_MARK.sub("\0", typed_text(message))  # marks sentences with a gap, which are skipped
            stamp = _STAMP.match(text)
            day = written_on({**message, "content": stamp.group() if stamp else ""})
            text = text[stamp.end() :] if stamp and day else text
            today = day or today  # many clients write the date only when a day begins
            spoken += ((index, s, today) for s in sentences(text, longest=_LONGEST) if "\0" not in s)
    return spoken[-_MOST_SENTENCES:]


def _without_templates(
    spoken: Sequence[_Spoken], shown: set[str], printed: set[str], *, worked: bool = False
) -> Iterator[_Spoken]:
    """Leave out headings, sentences that the prompt shows or tools print too, and templates that programs put into messages.

    If tools were called (`worked`), messages from a template are tasks, and all but the newest of them count as done.
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
    pairs = zip(spoken, keys, strict=True)
    return (each for each, key in pairs if each[0] not in done and key not in gone and not key.endswith(ends))


def _tasks(asked: Sequence[tuple[int, Message]], printed: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the most telling sentence near the beginning of each user message, with the message's index."""
    in_order = sorted(asked, key=itemgetter(0))
    spoken = _without_templates([s for s in _spoken([m for _, m in in_order]) if s[0] >= 0], set(), printed)
    for number, group in groupby(spoken, key=itemgetter(0)):
        first = [" ".join(text.split()) for _, text, _ in group if is_prose(text) and len(text) <= _TITLE][:_FIRST]
        if first:
            yield in_order[number][0], max(first, key=lambda text: sum(fact.weight for fact in facts_in(text)))


def _statements(spoken: Iterable[_Spoken], facts_of: Callable[[str], tuple[TextFact, ...]]) -> list[Statement]:
    """Make statements of sentences. If two differ only in a value, the later one is kept: it corrects the earlier."""
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
    """Return a sentence's subject: its terms without the last one with a digit, which is its value. Empty if it has no value."""
    found = terms(_NUMBER.sub("", sentence)) if _DIGITS.search(sentence) else []
    value = next((term for term in reversed(found) if _DIGITS.search(term)), None)
    return frozenset(found) - {value} if value is not None else frozenset()


def _weighed(fact: TextFact, messages: int, *, name: bool) -> TextFact:
    """Weigh a fact by the number of `messages` that have it: more tell less. A `name` weighs as one wherever it occurs."""
    weight = (NAME if name else fact.weight) * min(1.0, _COMMON / messages)
    return fact if weight == fact.weight else replace(fact, weight=weight)


def _weigh(known: dict[str, TextFact], facts: Iterable[TextFact], factor: float) -> None:
    """Add the hard facts of a sentence to `known`, each with the largest weight that it ever has."""
    for fact in sorted(facts, key=lambda fact: -fact.weight)[:_OF_A_SENTENCE]:
        weight = fact.weight * factor
        if fact.weight >= HARD and (fact.key not in known or known[fact.key].weight < weight):
            known[fact.key] = replace(fact, weight=weight)


def _assistants(messages: Sequence[Message]) -> list[str]:
    answers = (each for each in messages if each.get("role") == "assistant" and not is_summary(each))
    return [*filter(None, map(text_of, answers))]


def call_lines(message: Message) -> list[str]:
    """Return the calls of a message, one per line."""
    functions = [call.get("function") for call in calls_of(message)]
    called = [(f.get("name"), f.get("arguments")) for f in functions if isinstance(f, dict)]
    if message.get("role") == "assistant":
        called += ((call.name, call.arguments) for _, text in texts_of(message) for call in calls_in(text))
    return [f"{name}({str(arguments)[:120]})" for name, arguments in called]


def all_text(message: Message) -> str:
    """Return the text of a message, with its calls below."""
    return "\n".join(part for part in (text_without_calls(message), *call_lines(message)) if part)


def text_without_calls(message: Message) -> str:
    """Return a message's text without calls written in it, and without the marks around results if it holds only these."""
    if message.get("role") == "assistant":
        texts = (without(text, [call.span for call in calls_in(text)]) for _, text in texts_of(message))
        return "\n".join(texts).strip("\n")
    if message.get("role") == "user" and is_result(message):
        inside = ((text, result.inside) for _, text in texts_of(message) for result in results_in(text))
        return "\n".join(text[start:end] for text, (start, end) in inside)
    return text_of(message)


def facts_in(sentence: str) -> tuple[TextFact, ...]:
    """Return the facts of a sentence, in order, with repetitions."""
    names, rest = list(found_in(sentence)), sentence
    for name in names:
        rest = rest.replace(name, " ", 1)
    tokens = list(_TOKEN.finditer(rest))
    texts = [token.group().strip() for token in tokens]
    # Fold all keys in one call: one for each would take much longer.
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
            # The first two syllables serve as the stem: in Korean, endings change and stems do not.
            facts.append(TextFact(text, text[:2], _RARE))
        elif kind == "katakana":
            facts.append(TextFact(text, key, _KATAKANA))
        else:
            facts.append(TextFact(text[1:-1].strip(), key[1:-1].strip(), _QUOTED))
        before = text
    return tuple(facts)


def is_mentioned(key: str, text: str, words: Collection[str]) -> bool:
    """Return whether a fact is in a folded text, whose words are `words`. ASCII words and numbers only match as a whole."""
    return key in words or (not (key.isalnum() and key.isascii()) and key in text)


def words_of(text: str) -> frozenset[str]:
    """Return the words and numbers of a folded text."""
    found = {token.group() for token in _TOKEN.finditer(text)}
    parts = {part for token in found if not token.isalnum() for part in re.findall(r"\w+", token)}
    return frozenset(found | parts | set(re.findall(r"[^\W_]+", text)))


def is_prose(sentence: str) -> bool:
    """Return whether at least half of the tokens are words, as in speech; in data most of them have digits and signs."""
    words = sentence.split()
    return 2 * sum(_WORD.fullmatch(word) is not None for word in words) >= len(words)


def _of_word(text: str, key: str, *, capital: float) -> list[TextFact]:
    if key in ALL_FUNCTION_WORDS or key.replace("\u2019", "'").partition("'")[0] in ALL_FUNCTION_WORDS:
        return []
    if not text.isalpha() and any(map(str.isdigit, text)):
        return [TextFact(text, key, NUMBER)]
    if capital and text[0].isupper() and len(text) > 1:
        return [TextFact(text, key, capital)]
    weight = NAME if VITAL.match(key) else _OF_LETTER * (min(len(text), _LONG) - _SHORT)
    return [TextFact(text, key, weight)] if weight > 0 else []


def _titled(words: Sequence[tuple[str, str]]) -> bool:
    """Return whether most words of a sentence begin with a capital: a title, something shouted, or German with its nouns."""
    content = [word for word, key in words if key not in ALL_FUNCTION_WORDS]
    capitals = sum(word[0].isupper() for word in content)
    return len(content) >= 4 and capitals > 0.6 * len(content)
