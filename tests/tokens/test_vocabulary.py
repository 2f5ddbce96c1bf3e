import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.families import VOCABULARIES
from proxy.tokens.vocabulary import CHUNK
from tests.tokens.conftest import Shipped, loaded
from tests.tokens.probe import sections

NAMES = [*VOCABULARIES]
LONG = 200_000
PATHOLOGICAL = {
    "a": "a" * LONG, "spaces": " " * LONG, "newlines": "\n" * LONG, "digits": "1234567890" * (LONG // 10), "equals": "=" * LONG,
    "han": "漢" * LONG, "emoji": "😂" * LONG, "joiners": "\u200d" * LONG, "marks": "\u0301" * LONG, "surrogates": "\ud83d" * LONG,
    "base64": "iVBORw0KGgo" * (LONG // 11),
}  # fmt: skip


def seconds(count: Callable[[str], int], text: str) -> float:
    begun = time.thread_time()
    assert count(text) > 0
    return time.thread_time() - begun


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", PATHOLOGICAL)
@pytest.mark.rows(12)
def test_no_text_is_slow_or_raises(kind: str, name: str, shipped: Shipped) -> None:
    prose = (sections()["english"] * 20)[: LONG // 10]
    usual = max(10 * seconds(shipped(name).count, prose), 0.02)
    assert seconds(shipped(name).count, PATHOLOGICAL[kind]) < 20 * usual * 4  # bytes: up to 4 for each character


@pytest.mark.parametrize("name", NAMES)
def test_chunks_count_as_the_whole(name: str, shipped: Shipped) -> None:
    text = "".join(sections()[part] for part in ("english", "python", "russian", "german")) * 50
    assert len(text) > 2 * CHUNK
    vocabulary = shipped(name)
    pieces = [text[at : at + 40_000] for at in range(0, len(text), 40_000)]
    assert abs(vocabulary.count(text) - sum(map(vocabulary.count, pieces))) <= 2 * len(pieces)


@given(st.text(alphabet=st.characters(), max_size=200))
def test_any_text_is_counted(text: str) -> None:
    for name in NAMES:
        count = loaded(name).count(text)
        assert (count > 0) == bool(text)
        assert count <= len(text.encode("utf-8", "surrogatepass")) + 1
