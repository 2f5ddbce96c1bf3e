"""Texts of a wanted size in tokens, the same for the same seed: prose, Chinese, and what tools print."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.fakes import FakeTokenizer

_TOKENIZER = FakeTokenizer()

_WORDS = """
    the a of and to in that we with for from on at by it was as but not which this have had they there where when
    then also about after before between under over again still only even more most other some such own same so than
    too very can will just should now house garden river stone window paper letter table morning evening winter summer
    road bridge train station market bread water coffee music story picture number question reason answer problem idea
    plan change report budget meeting schedule customer invoice contract delivery harbour engine machine signal network
    server request response latency memory buffer thread kernel module function variable argument exception compiler
    parser token stream socket packet router gateway cluster replica backup restore migration deployment release
    version branch commit review pipeline coverage regression measurement calibration temperature pressure voltage
    careful honest plain quick slow broad narrow gentle quiet bright distant ordinary remarkable several various
    began wrote walked carried followed opened closed measured compared explained described noticed remembered
    forgot decided agreed refused promised delivered repaired replaced improved discovered observed considered
"""
_ENGLISH = tuple(_WORDS.split())
_CHINESE = (
    "我们在讨论这个项目的时候发现了很多问题需要仔细考虑因为系统的设计还没有完成所以大家决定明天继续开会"
    "天气很好春天的花开满了山坡孩子们在河边玩耍老人坐在树下喝茶聊天谈论过去的故事和未来的希望"
    "数据库连接失败请检查网络配置然后重新启动服务日志显示内存不足建议增加交换空间或者减少并发数量"
    "東京の朝はとても静かで人々はゆっくりと駅へ歩いていく電車の窓から見える景色は毎日少しずつ変わる"
)
_FOLDERS = ("src", "tests", "docs", "tools", "server", "client", "storage", "network")
_VERBS = ("load", "store", "parse", "render", "resolve", "commit", "verify", "dispatch")
_LEVELS = ("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR")


def prose(rng: Random, tokens: int) -> str:
    """English without sense, of about so many tokens of the fakes' tokenizer."""
    return "".join(_until(tokens, _sentences(rng))).lstrip()


def chinese(rng: Random, tokens: int) -> str:
    """Chinese and Japanese characters, one token each."""
    runs = (rng.randrange(len(_CHINESE) - 24) for _ in iter(int, 1))
    whole = "".join(_until(tokens, (f"{_CHINESE[at : at + rng.randint(6, 24)]}。" for at in runs)))
    return whole[:tokens]


def printed(rng: Random, tokens: int) -> str:
    """What a tool prints: numbered lines with paths, figures and now and then an error."""
    return "".join(_until(tokens, _lines(rng)))


def _until(tokens: int, pieces: Iterator[str]) -> Iterator[str]:
    count = 0
    while count < tokens:
        piece = next(pieces)
        count += _TOKENIZER.count(piece)
        yield piece


def _sentences(rng: Random) -> Iterator[str]:
    while True:
        words = "".join(f" {rng.choice(_ENGLISH)}" for _ in range(rng.randint(3, 6)))
        yield words + rng.choice(("", "", ",", "."))


def _lines(rng: Random) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        path = f"{rng.choice(_FOLDERS)}/{rng.choice(_VERBS)}_{rng.choice(_ENGLISH)}.py"
        words = " ".join(rng.choice(_ENGLISH) for _ in range(rng.randint(3, 9)))
        yield f"{number}: {rng.choice(_LEVELS)} {path}:{rng.randint(1, 900)} {words}\n"
