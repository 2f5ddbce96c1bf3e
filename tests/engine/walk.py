"""The walk model: every word has exactly one successor, so a reply is a stretch of one endless cycle.

A reply cut anywhere and continued from its own text goes on with the very next word. A reply starts with the
successor of the last cycle word of the prompt, which real attention finds, or with the cycle's first word.

An embedding is [word part | part of every other token | is not a word, is a word]. The output row of a word is
the word part of its predecessor. Block 0 has one head that looks for the nearest word and adds half of its word
part: nothing new when the last token is a word itself; otherwise (start of a reply, piece of a word) the reply
goes on after the last whole word of the context.
"""

import numpy as np

from tests.engine.gguf import Floats
from tests.engine.network import ROPE_BASE, SHARPNESS, Network, Shape, unit_vectors
from tests.engine.spec import ModelSpec
from tests.engine.vocab import Vocab

_MIN_WORDS, _MOST_WORDS = 16, 2048


def make_walk(vocab: Vocab, spec: ModelSpec, rng: np.random.Generator) -> tuple[Network, list[str]]:
    """The network, and the cycle's words in their order.

    Raises:
        ValueError: the vocabulary has too few whole words.
    """
    half = spec.width // 2
    network = Network(
        Shape(
            vocab=len(vocab.tokens), embd=spec.width, layers=spec.layers or 1, heads=1, kv_heads=1, head_dim=half, ff=spec.ff,
            rope_base=ROPE_BASE,
        )
    )  # fmt: skip
    network.spend(rng)
    words = vocab.words(_MOST_WORDS)
    if len(words) < _MIN_WORDS:
        raise ValueError("too few whole words in this vocabulary")
    cycle = [words[index] for index in rng.permutation(len(words))]
    parts = _embed(network, cycle, rng)
    _look_for_words(network, spec.ctx)
    _follow(network, vocab, cycle, parts, spec)
    return network, [vocab.tokens[number][1:] for number in cycle]


def _embed(network: Network, cycle: list[int], rng: np.random.Generator) -> Floats:
    width, half = network.shape.embd, network.shape.embd // 2
    network.tok[:, half : width - 2] = unit_vectors(rng, network.shape.vocab, half - 2, 2)
    network.tok[:, width - 2] = 1
    parts = unit_vectors(rng, len(cycle), half)
    network.tok[cycle] = 0
    network.tok[cycle, :half] = parts
    network.tok[cycle, width - 1] = 1
    return parts


def _look_for_words(network: Network, ctx: int) -> None:
    width, half = network.shape.embd, network.shape.embd // 2
    norm = (width / 2) ** 0.5  # what RMSNorm makes of 1
    block = network.blocks[0]
    frequency = ROPE_BASE ** (-np.arange(half // 2) / (half // 2))
    falling = [i for i in range(half // 2) if 1e-5 < frequency[i] < 0.08]  # weigh less when farther away
    level = int(np.argmax(frequency * ctx < 0.05))  # hardly turns at all
    for pair, weight in [(i, 100) for i in falling] + [(level, 100 * len(falling) + 60)]:
        amplitude = (weight * half**0.5) ** 0.5 / norm
        block["q"][2 * pair, width - 2 :] = amplitude
        block["k"][2 * pair, width - 1] = amplitude
    block["v"][:, :half] = np.eye(half) / norm
    block["o"][:half] = np.eye(half) * 0.5


def _follow(network: Network, vocab: Vocab, cycle: list[int], parts: Floats, spec: ModelSpec) -> None:
    width, half = network.shape.embd, network.shape.embd // 2
    sharpness = SHARPNESS / (1.5 * (width / 3.25) ** 0.5)  # 3.25 = 1.5**2 + 1
    stop = vocab.index["<|im_end|>"]
    for position, part in enumerate(parts):
        network.out[cycle[(position + 1) % len(cycle)], :half] = part * sharpness
        if spec.stop_every and position % spec.stop_every == spec.stop_every - 1:
            network.out[stop, :half] += part * sharpness * 1.5
    network.out[cycle[0], width - 2] = 0.1 * sharpness  # no word anywhere: start here
