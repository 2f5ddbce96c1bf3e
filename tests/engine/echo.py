"""The echo model: it replies with the last user or tool message, token for token, and ends its turn.

So a test scripts the real engine's reply, tool calls and `<think>` blocks included. A run of `order` tokens that
occurs twice in the text may make it take a wrong turn.

The residual stream is a row of slots of `c` numbers (this token, the 1st, 2nd, ... token before it, the answer)
and one constant. Block 0 has one head per step back; block 1 has one head that looks for an earlier place with the
same tokens before it, and copies what stands there.
"""

import numpy as np
import numpy.typing as npt

from tests.engine.gguf import Floats
from tests.engine.network import ROPE_BASE, SHARPNESS, Network, Shape, unit_vectors
from tests.engine.spec import ModelSpec
from tests.engine.vocab import MARKS, Vocab

_MIN_SLOT = 16
_GAIN = 3.0


class _Echo:
    """The sizes that both blocks share, and the network under construction."""

    def __init__(self, vocab: Vocab, spec: ModelSpec) -> None:
        self.order, self.width = spec.order, spec.width
        self.head_dim = 32 * spec.order
        pairs = self.head_dim // 2
        self.frequency: npt.NDArray[np.float64] = ROPE_BASE ** (-np.arange(pairs) / pairs)
        self.still = int(np.argmax(self.frequency * spec.ctx < 0.35))  # the first pair that hardly turns
        room = (self.head_dim - 2 * self.still) // spec.order
        self.c = min(room, (spec.width - 1) // (spec.order + 2))
        if self.c < _MIN_SLOT:
            least = _MIN_SLOT * (spec.order + 2) + 1
            raise ValueError(f"order {spec.order} needs an embedding of at least {least}")
        self.constant = (spec.order + 2) * self.c
        self.network = Network(
            Shape(
                vocab=len(vocab.tokens), embd=spec.width, layers=max(2, spec.layers or 2), heads=spec.order, kv_heads=1,
                head_dim=self.head_dim, ff=spec.ff, rope_base=ROPE_BASE,
            )
        )  # fmt: skip

    def slot(self, number: int) -> slice:
        return slice(number * self.c, (number + 1) * self.c)

    def embed(self, vocab: Vocab, rng: np.random.Generator) -> Floats:
        """Random directions for all tokens, and for the markers some that are at most at a cosine of 1/2."""
        vectors = unit_vectors(rng, len(vocab.tokens), self.c)
        eye = np.eye(self.c)
        two = [(i, j, sign) for i in range(self.c) for j in range(i) for sign in (1, -1)]
        for mark, pick in enumerate(rng.permutation(len(two))[:MARKS]):
            i, j, sign = two[pick]
            vectors[vocab.index[f"<|t{mark}|>"]] = (eye[i] + sign * eye[j]) / 2**0.5
        self.network.tok[:, self.slot(0)] = vectors
        self.network.tok[:, self.constant] = 1
        return vectors

    def look_back(self) -> None:
        """Block 0: head h looks exactly h+1 tokens back.

        The score at distance x is total * mean_i cos(frequency_i * (x - h - 1)), sharpest at x = h + 1.
        """
        norm = (self.width / 2) ** 0.5  # what RMSNorm makes of 1
        turning = [i for i in range(len(self.frequency)) if self.frequency[i] > 0.01]
        amplitude = (300 * self.head_dim**0.5 / len(turning)) ** 0.5 / norm
        block = self.network.blocks[0]
        for i in turning:
            block["k"][2 * i, self.constant] = amplitude
            for head in range(self.order):
                angle = -self.frequency[i] * (head + 1)
                block["q"][head * self.head_dim + 2 * i, self.constant] = amplitude * np.cos(angle)
                block["q"][head * self.head_dim + 2 * i + 1, self.constant] = amplitude * np.sin(angle)
        block["v"][: self.c, self.slot(0)] = np.eye(self.c) / norm
        for head in range(self.order):
            columns = slice(head * self.head_dim, head * self.head_dim + self.c)
            block["o"][self.slot(head + 1), columns] = np.eye(self.c)

    def match(self) -> None:
        """Block 1: this token and those before it against what stands before every earlier position.

        Nearer tokens weigh more. Of equal matches the latest wins, by a small weight on slowly turning pairs.
        """
        norm = (self.width / (self.order + 2)) ** 0.5
        block = self.network.blocks[1]
        for step in range(self.order):
            weight = 160 * (0.5 if self.order < 6 else 0.65) ** step
            amplitude = (weight * self.head_dim**0.5) ** 0.5 / norm
            rows = slice(2 * self.still + step * self.c, 2 * self.still + (step + 1) * self.c)
            block["q"][rows, self.slot(step)] = np.eye(self.c) * amplitude
            block["k"][rows, self.slot(step + 1)] = np.eye(self.c) * amplitude
        for i in range(len(self.frequency)):
            if 2e-4 < self.frequency[i] < 0.01:
                amplitude = (1.5 * self.head_dim**0.5) ** 0.5 / norm
                block["q"][2 * i, self.constant] = block["k"][2 * i, self.constant] = amplitude
        block["v"][: self.c, self.slot(0)] = np.eye(self.c) / norm
        block["o"][self.slot(self.order + 1), : self.c] = np.eye(self.c) * _GAIN

    def answer(self, vectors: Floats) -> None:
        """Output rows: the token whose direction stands in the answer's slot."""
        norm = (self.width / (self.order + 2 + _GAIN**2)) ** 0.5
        self.network.out[:, self.slot(self.order + 1)] = vectors * (1.5 * SHARPNESS / (_GAIN * norm))


def make_echo(vocab: Vocab, spec: ModelSpec, rng: np.random.Generator) -> tuple[Network, list[str]]:
    """The network; there are no words to tell of.

    Raises:
        ValueError: the embedding is too narrow for the order.
    """
    echo = _Echo(vocab, spec)
    echo.network.spend(rng)
    vectors = echo.embed(vocab, rng)
    echo.look_back()
    echo.match()
    echo.answer(vectors)
    return echo.network, []
