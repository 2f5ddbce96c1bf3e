"""Every pattern of the package takes time that grows no faster than the text, whoever wrote that text."""

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, pairwise, product
from typing import Any

import pytest
import regex

import proxy
from proxy.core.history import rules

_parser: Any = importlib.import_module("re._parser")  # undocumented, but what a pattern repeats stands only in its tree
pytestmark = [pytest.mark.slow, pytest.mark.rows(1), pytest.mark.timeout(600)]
SIZES = (2_500, 10_000, 80_000)
"""Characters: the first two pick out what is worth measuring at the last two."""
EXPONENT = 1.2
FLOOR = 0.004
"""Seconds of processor time of the second size below which no growth is measured."""
MOST = 6.0
"""Seconds of processor time after which a text is given up."""
MOST_TEXTS = 150
LONG = 16
"""Repetitions from which a bounded part is pumped too."""
SHARDS = 8
POOL = " \n\ta7-A.<>[]{}`'\"/:,*#|\\_=(\0é字"
SCANS = ("search", "finditer", "findall", "sub", "subn", "split")
GUARDED = {rules._DOCUMENT.pattern}  # text of many tags is not shown to it
METHODS = {*SCANS, "match", "fullmatch"}
LOCAL: Mapping[str, Iterable[str | bytes]] = {
    "proxy.api.access": (),  # the operator's hosts and origins
    "proxy.attempts.passing": (rb'"model"\s{0,64}:\s{0,64}"([^"\\]{0,512})"',),
    "proxy.backends.overflow": (),  # in tables, which are looked through
    "proxy.backends.refusals": (),  # in tables, which are looked through
    "proxy.emulation.forms": (),  # in tables
    "proxy.emulation.scanner": (r"\n[ \t]{0,3}`{3,64}[ \t]{0,64}(?=[\r\n])", "</think>"),
    "proxy.emulation.values": (r"(?i)\bnow\b",),
    "proxy.net.headers": (),  # the operator's keys
    "proxy.stream.status": (),  # in a global
    "proxy.tokens.families": (),  # names of models, which are bounded where they are read
}
"""By module, patterns that its functions make of their arguments, as they come out."""


@dataclass
class Collected:
    """Patterns by source and flags, with the methods that are called on them; none: it is not known which."""

    methods: dict[tuple[str | bytes, int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    local: set[str] = field(default_factory=set)

    def add(self, pattern: Any, methods: Iterable[str] = ()) -> None:
        self.methods[pattern.pattern, pattern.flags, type(pattern).__module__].update(methods)


@cache
def collected() -> Collected:
    names = [each.name for each in pkgutil.walk_packages(proxy.__path__, "proxy.") if "__main__" not in each.name]
    found = Collected()
    modules = [importlib.import_module(name) for name in names]
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    trusted = {"proxy.config", "proxy.core.settings.entries"}  # what the operator wrote
    for module, tree in zip(modules, trees, strict=True):
        if module.__name__ in trusted:
            continue
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern | regex.Pattern):
                found.add(value, methods_of(name, [tree] if name.startswith("_") else trees))
        functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        for call in filter(is_inline, chain.from_iterable(map(ast.walk, functions))):
            add_inline(found, call, module)
    named = {pattern for pattern, methods in found.methods.items() if methods}
    ours = [value for module in modules if module.__name__ not in trusted for value in vars(module).values()]
    for pattern in reachable(ours):
        if (pattern.pattern, pattern.flags, type(pattern).__module__) not in named:
            found.add(pattern)
    for source in chain.from_iterable(LOCAL.values()):
        found.add(re.compile(source))
    return found


@cache
def attributes(tree: ast.Module) -> frozenset[tuple[str, str]]:
    """Names, or last parts of names, with what is looked up on them."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return frozenset((getattr(node.value, "id", getattr(node.value, "attr", "")), node.attr) for node in nodes)


def methods_of(name: str, trees: Iterable[ast.Module]) -> set[str]:
    return {method for tree in trees for owner, method in attributes(tree) if owner == name} & METHODS


def reachable(values: list[Any]) -> Iterator[Any]:
    """Patterns in tables, classes, closures and caches: in whatever the package's objects hold."""
    seen, waiting = set[int](), values
    while waiting:
        value = waiting.pop()
        if id(value) in seen or inspect.ismodule(value) or inspect.isframe(value):
            continue
        seen.add(id(value))
        if isinstance(value, re.Pattern | regex.Pattern):
            yield value
        elif str(getattr(value, "__module__", type(value).__module__)).startswith(("proxy", "builtins", "functools")):
            waiting += [each for each in gc.get_referents(value) if gc.is_tracked(each) and not is_globals(each)]


def is_globals(value: Any) -> bool:
    return isinstance(value, dict) and "__builtins__" in value


def is_inline(node: ast.AST) -> bool:
    module = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return isinstance(module, ast.Name) and module.id in {"re", "regex"} and bool(getattr(node, "args", None))


def add_inline(found: Collected, call: Any, module: Any) -> None:
    if call.func.attr == "escape":
        return
    try:
        pattern = eval(compile(ast.Expression(call.args[0]), "inline", "eval"), vars(module))
        found.add(re.compile(pattern), () if call.func.attr == "compile" else {call.func.attr})
    except NameError:
        found.local.add(module.__name__)


# Texts that are worst for a pattern: what it repeats, pumped


def members(items: Sequence[Any]) -> list[str]:
    """Some characters of a class, those of the pool first."""
    negated = items[0][0] is _parser.NEGATE
    source = [chr(each[1]) for each in items if each[0] is _parser.LITERAL]
    source += [chr(end) for each in items if each[0] is _parser.RANGE for end in each[1]]
    return [char for char in dict.fromkeys([*POOL, *source]) if is_member(char, items) is not negated] or ["a"]


def is_member(char: str, items: Sequence[Any]) -> bool:
    for op, value in items:
        if op is _parser.LITERAL and ord(char) == value:
            return True
        if op is _parser.RANGE and value[0] <= ord(char) <= value[1]:
            return True
        if op is _parser.CATEGORY:
            kind = str(value).lower().removeprefix("category_")
            test: dict[str, Callable[[str], bool]] = {
                "space": str.isspace,
                "digit": str.isdecimal,
                "word": lambda c: c.isalnum() or c == "_",
            }
            if test[kind.removeprefix("not_")](char) is not kind.startswith("not_"):
                return True
    return False


def example(tree: Iterable[Any], pick: int = 0) -> str:
    """A short text that the tree may match; `pick` says which of several."""
    return "".join(example_of(op, value, pick) for op, value in tree)


def example_of(op: Any, value: Any, pick: int) -> str:  # noqa: PLR0911 - one for each kind of node
    if op is _parser.LITERAL:
        return chr(value)
    if op in {_parser.NOT_LITERAL, _parser.IN, _parser.ANY}:
        items = value if op is _parser.IN else [(_parser.NEGATE, None), (_parser.LITERAL, value or ord("\n"))]
        chars = members(items)
        return str(chars[pick % len(chars)])
    if op is _parser.BRANCH:
        return example(value[1][pick % len(value[1])], pick)
    if op is _parser.SUBPATTERN:
        return example(value[3], pick)
    if op is _parser.ATOMIC_GROUP:
        return example(value, pick)
    if op in REPEATS:
        return str(example(value[2], pick) * value[0])
    return str(example(value[1], pick)) if op is _parser.ASSERT and value[0] > 0 else ""


REPEATS = {_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT}


def repeated(tree: Iterable[Any], before: str = "") -> Iterator[tuple[str, list[str]]]:
    """What is repeated often, in order: a text that leads up to it, and units."""
    for op, value in tree:
        inner: list[Any] = []
        if op in REPEATS:
            inner = [value[2]]
            if value[1] >= LONG:
                units = [example(value[2], pick) or example_once(value[2], pick) for pick in range(4)]
                yield before, [unit for unit in dict.fromkeys(units) if unit]
        elif op is _parser.BRANCH:
            inner = value[1]
        elif op in {_parser.SUBPATTERN, _parser.ATOMIC_GROUP}:
            inner = [value[3] if op is _parser.SUBPATTERN else value]
        elif op in {_parser.ASSERT, _parser.ASSERT_NOT}:
            inner = [value[1]]
        for each in inner:
            yield from repeated(each, before)
        before += example_of(op, value, 0)


def example_once(tree: Iterable[Any], pick: int) -> str:
    """An example in which what may be left out occurs once."""
    return "".join(example(value[2], pick) if op in REPEATS else example_of(op, value, pick) for op, value in tree)


def pumped(source: str | bytes, flags: int) -> list[Callable[[int], str]]:
    """Texts of a length that are hard for a pattern."""
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    flags &= re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
    tree = list(_parser.parse(text, flags))
    parts = list(repeated(tree))
    texts = dict[tuple[str, str, str, str], None]()
    for before, units in parts:
        texts |= dict.fromkeys((start, unit, "", end) for start, unit, end in product(("", before), units, ("", "\0")))
        texts |= dict.fromkeys(("", before + unit, "", "") for unit in ["", *units] if before + unit)
    for (before, units), (_, more) in pairwise(parts):
        texts |= dict.fromkeys((before, one, two, "\0") for one, two in product(units[:3], more[:3]))
    whole = [example(tree, pick) for pick in range(3)]
    texts |= dict.fromkeys(("", each[:end], "", "") for each in whole for end in (None, -1) if each[:end])
    step = -(-len(texts) // MOST_TEXTS)  # of a pattern of a hundred verbs each is like the others
    return [partial(pump, each) for each in [*texts][::step]]


def pump(parts: tuple[str, str, str, str], size: int) -> str:
    before, one, two, end = parts
    half = size // 2 if two else size
    return before + one * (half // len(one)) + (two * (half // len(two)) if two else "") + end


def seconds(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


class _TooSlow(Exception):
    pass


def give_up(*_: object) -> None:
    raise _TooSlow


def uses(pattern: Any, methods: set[str]) -> list[Callable[[Any], object]]:
    """The ways in which a pattern is used, or might be."""

    def scan(text: Any) -> int:
        return sum(1 for _ in pattern.finditer(text))

    ways: list[Callable[[Any], object]] = [scan] if not methods or methods & {*SCANS} else []
    return [*ways, *(getattr(pattern, each) for each in ("match", "fullmatch") if each in methods or not methods)]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_text_takes_a_pattern_longer_than_in_proportion(shard: int) -> None:
    patterns = sorted((each for each in collected().methods.items() if each[0][0] not in GUARDED), key=repr)
    assert len(patterns) > 200
    assert list(filter(None, (slow_text(*which, methods) for which, methods in patterns[shard::SHARDS]))) == []


def slow_text(source: Any, flags: int, library: str, methods: set[str]) -> str:
    """Describe a text for which a pattern takes more than in proportion; empty: none of those tried."""
    pattern = (regex if "regex" in library else re).compile(source, flags)
    previous = signal.signal(signal.SIGVTALRM, give_up)
    try:
        for use, text in product(uses(pattern, methods), pumped(source, flags)):
            texts = [text(size) for size in SIZES]
            texts = [each.encode("latin-1", "replace") for each in texts] if isinstance(source, bytes) else texts
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST)
            try:
                linear = is_linear(use, texts)
            except _TooSlow:
                linear = False
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if not linear:
                return f"{use.__name__} {source!r} {sorted(methods)}: {texts[0][:40]!r} … {texts[0][-40:]!r}"
    finally:
        signal.signal(signal.SIGVTALRM, previous)
    return ""


def is_linear(use: Callable[[Any], object], texts: Sequence[Any]) -> bool:
    """Whether time grows in proportion; what is fast, or grows so from the first size, is not measured at the last."""
    for _ in range(3):
        small, middle = (seconds(partial(use, text)) for text in texts[:2])
        if middle < FLOOR or middle <= small * (SIZES[1] / SIZES[0]) ** EXPONENT:
            return True
    middle, large = (min(seconds(partial(use, text)) for _ in range(2)) for text in texts[1:])
    return bool(large <= middle * (SIZES[2] / SIZES[1]) ** EXPONENT)


def test_patterns_that_are_made_of_arguments_are_named_here() -> None:
    assert collected().local == {*LOCAL}


@pytest.mark.heavy
@pytest.mark.parametrize("source", [r"\s+$", r"(a+)+b", r"/c\s+(.{0,2000}?)\s*\Z", "<[^>]*>", r"\A(?:x|\w+)*!", ".*=.*;"])
def test_a_slow_pattern_is_found(source: str) -> None:
    assert slow_text(source, 0, "re", set())
